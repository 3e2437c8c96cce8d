"""Makes glibc return freed host memory to the system, and measures the cost."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from forgather_mem.system.allocator import empty_host_cache
from forgather_mem.system.procfs import own_memory
from forgather_mem.system.time_budget import TimeBudget
from forgather_mem.telemetry.records import RunInfo, Work
from forgather_mem.telemetry.triggers import check_share


@dataclass(unsafe_hash=True)
class TrimHost:
    """Calls `malloc_trim(0)`, and empties torch's cache of pinned host memory if there is one.

    glibc keeps what a program frees: a resident size that does not fall is not necessarily a leak. Returns the seconds
    it took (505 ms for 4 GB returned, up to 114 ms for nothing) and by how much the process shrank. Returns nothing if
    the C library has no `malloc_trim`.

    Args:
        budget_frac: The fraction of the time that trims may take: one that took 100 ms is not repeated within 5 s at
            the default 0.02. Calls in between do nothing and return nothing.

    Raises:
        ValueError: for a budget that is not positive.
    """

    books: ClassVar = "trim"
    budget_frac: float = 0.02

    def __post_init__(self) -> None:
        check_share("TrimHost", budget_frac=self.budget_frac)

    def begin(self, run: RunInfo) -> Work:
        pace = TimeBudget(0.0, budget_frac=self.budget_frac)
        return lambda moment, sample: pace.take(trim_host)


def trim_host() -> dict[str, float]:
    """Trim, and return the results under the names of `TrimHost`."""
    trim = _malloc_trim()
    if trim is None:
        return {}
    before = own_memory().resident_bytes
    began_s = time.perf_counter()
    empty_host_cache()
    trim(0)
    took_s = time.perf_counter() - began_s
    return {"trim/time_s": took_s, "trim/freed_bytes": max(0, before - own_memory().resident_bytes)}


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:  # musl, macOS
        return None
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    return trim  # type: ignore[no-any-return]
