"""Headroom: how much more memory this process could take now, and which limit it would hit first."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forgather_mem.system.allocator import current_allocator, driver_memory, gauge
from forgather_mem.system.memory_limit import MemoryLimit
from forgather_mem.system.procfs import PAGE_BYTES, kib_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One limit on one kind of memory.

    Attributes:
        where: Which memory: the host's or a device's.
        limit: The source of the limit: "address space (RLIMIT_AS)", "data (RLIMIT_DATA)", "container", "host", "GPU 0".
        used_bytes: This process's usage: for a container or a host everything that counts against its limit, for a
            device what is in tensors.
        free_bytes: What is left below the limit.
    """

    where: Literal["host", "device"]
    limit: str
    used_bytes: int
    free_bytes: int


def host_rooms() -> list[Room]:
    """All limits on this process's host memory, tightest first. Costs about 0.2 ms."""
    rooms = []
    try:
        memory = MemoryLimit()
    except OSError:  # no /proc
        return []
    used = memory.used_bytes()
    kind = "container" if memory.kind == "cgroup" else "host"
    rooms.append(_host(kind, used, memory.limit_bytes))
    memory.close()
    for name, number, taken in (
        ("address space (RLIMIT_AS)", resource.RLIMIT_AS, _address_space_bytes),
        ("data (RLIMIT_DATA)", resource.RLIMIT_DATA, _data_bytes),
    ):
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            rooms.append(_host(name, taken(), soft))
    return sorted(rooms, key=lambda room: room.free_bytes)


def device_room() -> Room | None:
    """The limit of the current accelerator's memory; None without one, or before it is used.

    Memory reserved but unused by torch counts as free.
    """
    allocator = current_allocator()
    if allocator is None:
        return None
    stats = allocator.stats()
    allocated, reserved = gauge(stats, "allocated_bytes"), gauge(stats, "reserved_bytes")
    memory = driver_memory(allocator)
    if allocated is None or reserved is None or memory is None:
        return None
    name = f"GPU {allocator.index}"
    return Room(where="device", limit=name, used_bytes=allocated, free_bytes=memory[0] + reserved - allocated)


def _host(limit: str, used_bytes: int, limit_bytes: int) -> Room:
    return Room(where="host", limit=limit, used_bytes=used_bytes, free_bytes=max(0, limit_bytes - used_bytes))


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[0]) * PAGE_BYTES


def _data_bytes() -> int:
    return kib_fields(Path("/proc/self/status").read_bytes())[b"VmData"]
