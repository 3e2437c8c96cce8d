"""High-water marks of this process: the kernel's, and a device allocator's."""

from __future__ import annotations

import os
from pathlib import Path

from forgather_mem.system.allocator import Allocator, gauge
from forgather_mem.system.installed import installed
from forgather_mem.system.procfs import PAGE_BYTES, KernelFile, resident_bytes
from forgather_mem.units import MIB

resource = installed("resource")
Reading = tuple[int, int]  # bytes now, highest since the mark was reset


class HostMark:
    """The kernel's mark of resident memory, read in 2 us and reset by writing "5" to `clear_refs` (0.6 us).

    `ru_maxrss` is cheap to read. It never falls below the process's value before an exec, so if it stays above the
    resident size after a reset, readings below that value come from `VmHWM` (7 us).
    """

    def __init__(self, proc_root: str | Path = "/proc") -> None:
        # The kernel's count of resident pages may be off by one batch per CPU (lib/percpu_counter.c)
        num_cpus = os.cpu_count() or 1
        self.slack_bytes = max(MIB, num_cpus * max(32, 2 * num_cpus) * PAGE_BYTES)
        here = Path(proc_root) / "self"
        self._statm = KernelFile(here / "statm")
        self._status = KernelFile(here / "status")
        self._clear_refs = KernelFile(here / "clear_refs", write=True)
        self.resettable = os.access(here / "clear_refs", os.W_OK)
        self._floor_bytes = 0
        self._find_floor()
        self.rest()

    def read(self) -> Reading:
        current = resident_bytes(self._statm)
        return current, self.peak_bytes(current)

    def peak_bytes(self, current_bytes: int) -> int:
        """The mark alone, for a caller that has just read the resident size."""
        # Not `_max_rss_bytes`: in a real step, with cold caches, a call costs some 3 us
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if peak <= self._floor_bytes:
            peak = self._high_water_bytes()
        return peak if peak > current_bytes else current_bytes

    def reset(self, current_bytes: int) -> None:
        self._clear_refs.write(b"5")
        if _max_rss_bytes() > current_bytes + self.slack_bytes:
            self._find_floor()  # or another thread has just allocated

    def rest(self) -> None:
        """No window is open any more: close what is kept open."""
        for file in (self._statm, self._status, self._clear_refs):
            file.close()

    def _find_floor(self) -> None:
        peak = _max_rss_bytes()
        if peak > self._high_water_bytes() + self.slack_bytes:
            self._floor_bytes = peak

    def _high_water_bytes(self) -> int:
        return int(self._status.read().split(b"VmHWM:", 1)[1].split(None, 1)[0]) * 1024


class DeviceMark:
    """The peak of allocated bytes kept by a device's allocator."""

    slack_bytes = 0

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self.resettable = allocator.reset_peaks is not None

    def read(self) -> Reading:
        stats = self._allocator.stats()
        current = gauge(stats, "allocated_bytes") or 0
        return current, gauge(stats, "allocated_bytes", "peak") or current

    def reset(self, current_bytes: int) -> None:
        if self._allocator.reset_peaks is not None:
            self._allocator.reset_peaks()

    def rest(self) -> None:
        pass


def _max_rss_bytes() -> int:
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024
