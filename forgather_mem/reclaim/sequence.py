"""Collects, clears and trims together, outside a training."""

from __future__ import annotations

import time
from dataclasses import dataclass

from forgather_mem.actions.clear import clear_cache
from forgather_mem.actions.collect import collect
from forgather_mem.actions.trim import trim_host
from forgather_mem.system.allocator import current_allocator, gauge
from forgather_mem.system.procfs import own_memory
from forgather_mem.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNow:
    """The memory of this process.

    Attributes:
        host_bytes: Resident memory, as in a report.
        device_bytes: Memory reserved by the accelerator's allocator, in tensors or not; None without one.
        device: The accelerator's index.
    """

    host_bytes: int
    device_bytes: int | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """The result of `give_back`.

    Attributes:
        before, after: Memory before and after.
        num_objects: Number of objects that the collector found unreachable.
        took_s: Duration in seconds.
    """

    before: MemoryNow
    after: MemoryNow
    num_objects: int
    took_s: float

    def __str__(self) -> str:
        return f"{write_steps(self.before, self.after)}, {self.num_objects:,} objects collected"


def memory_now() -> MemoryNow:
    """One reading; takes 20 us."""
    allocator = current_allocator()
    if allocator is None:
        return MemoryNow(host_bytes=own_memory().resident_bytes)
    reserved = gauge(allocator.stats(), "reserved_bytes")
    return MemoryNow(host_bytes=own_memory().resident_bytes, device_bytes=reserved, device=allocator.index)


def give_back() -> GivenBack:
    """Collect garbage, empty the device's cache, trim the host: in this order, each finds what the one before freed."""
    before = memory_now()
    began_s = time.perf_counter()
    num_objects = int(collect()["collect/objects"])
    clear_cache()
    trim_host()
    took_s = time.perf_counter() - began_s
    return GivenBack(before=before, after=memory_now(), num_objects=num_objects, took_s=took_s)


def write_steps(*steps: MemoryNow) -> str:
    """Consecutive readings, for people.

    >>> write_steps(MemoryNow(host_bytes=3 << 30), MemoryNow(host_bytes=1 << 30))
    'host 3.0 GiB -> 1.0 GiB'
    """
    parts = ["host " + " -> ".join(format_bytes(step.host_bytes) for step in steps)]
    device = [step.device_bytes for step in steps if step.device_bytes is not None]
    if device:
        parts.append(f"GPU {steps[-1].device} reserved " + " -> ".join(map(format_bytes, device)))
    return ", ".join(parts)
