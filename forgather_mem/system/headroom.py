"""Headroom: how much more memory this process could take now, and which limit it would hit first.

Every number of ours that says what is left, and every forecast when nothing will be, comes from here.
"""

from __future__ import annotations

import functools
import os

from forgather_mem.errors import missing
from forgather_mem.system.allocator import Allocator, Nested, current_allocator, driver_memory, gauge, used_allocators
from forgather_mem.system.memory_limit import MemoryLimit, Room, own_limits
from forgather_mem.system.peak_windows import peaks_of
from forgather_mem.units import MIB

# Below this much unused memory nobody asks whether it lies in private pools.
_WORTH_ASKING_BYTES = 64 * MIB


class HostRooms(MemoryLimit):
    """All limits on this process's host memory, found once.

    Args:
        proc_root, cgroup_root: Locations of the kernel's files; for tests.

    Attributes:
        pressure: The pressure (PSI) file of the level with the smallest limit, which may not exist.

    Raises:
        OSError: if there is no /proc.
    """

    def read(self) -> list[Room]:
        """The rooms, tightest first: one below the limits shared with other processes, and one for each of our own."""
        shared = [room._replace(num_ranks=ranks_on_this_host()) for room in self.rooms()[:1]]
        return sorted([*shared, *own_limits(self.proc / "self")], key=lambda room: room.free_bytes)


def host_rooms() -> list[Room]:
    """All limits on this process's host memory, tightest first; none without /proc.

    Costs about 0.5 ms: keep `HostRooms` to ask often.
    """
    with missing(OSError):
        return HostRooms().read()
    return []


def ranks_on_this_host() -> int:
    """How many processes the launcher (torchrun, accelerate, mpirun) has started here; 1 if none tells."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        number = os.environ.get(name, "")
        if number.isascii() and number.isdigit():
            return max(1, int(number))
    return 1


def device_room(allocator: Allocator | None = None) -> Room | None:
    """The limit of this accelerator's memory, by default of the current one; None without one, or before it is used."""
    allocator = allocator or current_allocator()
    return None if allocator is None else room_of(allocator, allocator.stats())


def device_rooms() -> list[Room]:
    """The limits of all devices on which this process holds memory: what a training can keep least of comes first."""
    rooms = (room_of(allocator, allocator.stats()) for allocator in used_allocators())
    return sorted((room for room in rooms if room is not None), key=lambda room: room.lasting_bytes)


def room_of(allocator: Allocator, stats: Nested) -> Room | None:
    """The limit of this device's memory; None if the allocator or the driver keeps no numbers.

    Free is what the driver has, up to the fraction that is allowed to this process, and what torch holds without using
    it; but not in private pools (of CUDA graphs), whose blocks only their own graphs can take.
    """
    allocated, reserved = gauge(stats, "allocated_bytes"), gauge(stats, "reserved_bytes")
    memory = driver_memory(allocator)
    if allocated is None or reserved is None or memory is None:
        return None
    unused = max(0, reserved - allocated)
    unused -= private_bytes(allocator, reserved, unused)
    peaks = peaks_of(allocator)
    highest = 0 if peaks is None else peaks.highest_bytes  # also where someone resets the allocator's at each step
    limit_bytes = allocated + allowed_bytes(allocator, reserved, *memory) + unused
    return Room(f"GPU {allocator.index}", limit_bytes, allocated, "device", max(0, highest - allocated))


def allowed_bytes(allocator: Allocator, reserved: int, free: int, total: int) -> int:
    """How much torch may still take of what the driver has free, under `set_per_process_memory_fraction`."""
    fraction = 1.0 if allocator.fraction is None else allocator.fraction()
    return free if fraction >= 1 else max(0, min(free, int(fraction * total) - reserved))


def private_bytes(allocator: Allocator, reserved: int, unused: int) -> int:
    """How much of the unused memory lies in private pools. Asked again when the reserved memory has changed.

    Not asked while allocations are recorded: then each block comes with a stack, which takes long.
    """
    is_recording = allocator.history is not None and allocator.history.is_recording()
    if allocator.segments is None or unused < _WORTH_ASKING_BYTES or is_recording:
        return 0
    return min(unused, _unused_in_pools(allocator, reserved))


@functools.lru_cache(maxsize=16)
def _unused_in_pools(allocator: Allocator, reserved: int) -> int:
    """The unused memory of a device's private pools, from a walk over all blocks, while so much is reserved."""
    assert allocator.segments is not None
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in allocator.segments()
        if segment["device"] == allocator.index and tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    )
