"""What grows: how much it is a step in all, what it is called, and when memory will be full of it."""

from __future__ import annotations

from collections.abc import Mapping

from forgather_mem.growth.trend import GROWTH, Trend
from forgather_mem.system.allocator import current_allocator
from forgather_mem.system.headroom import device_room, host_rooms

# Growth per step that is not reported. Arenas and maps grow by a MiB at a time.
FLOORS = {"mapped": 4 * GROWTH.floor_bytes, "shared": 4 * GROWTH.floor_bytes, "workers": 2 * GROWTH.floor_bytes}


def floor_of(name: str) -> float:
    """Growth of this size, in bytes a step, that is not reported."""
    return FLOORS.get(name, GROWTH.floor_bytes)


def whole_of(growing: Mapping[str, Trend]) -> Trend:
    """The growth on the device alone, or else the sum of what grows on the host; Python's arenas count once."""
    for name in ("device", "pinned"):
        if name in growing:
            return growing[name]
    parts = [growing[name] for name in ("native", "shared", "workers") if name in growing]
    small = [growing[name] for name in ("mapped", "objects") if name in growing]
    parts += small[:1]
    return Trend(
        kind="leak",
        per_step=sum(part.per_step for part in parts),
        low=sum(part.low for part in parts),
        high=sum(part.high for part in parts),
        since_step=min(part.since_step for part in parts),
        steps=max(part.steps for part in parts),
    )


def label_of(growing: Mapping[str, Trend]) -> str:
    allocator = current_allocator()
    if "device" in growing and allocator is not None:
        return f"GPU {allocator.index}"
    if set(growing) == {"shared"}:
        return "shared memory (/dev/shm)"
    return "the data workers' memory" if set(growing) == {"workers"} else "host memory"


def full_at(step: int, rate: float, on_device: bool) -> int | None:
    """The step at which memory will be full at this rate: on a device, at the peak of a step; on the host, if all ranks
    that share what is left grow alike."""
    if rate <= 0:
        return None
    room = device_room() if on_device else next(iter(host_rooms()), None)
    return None if room is None else step + round(room.lasting_bytes / (rate * room.num_ranks))
