"""Measuring windows: peaks for several readers at once, from a high-water mark that can only be reset.

The kernel and the device's allocator each keep one high-water mark per process, and a reset destroys it for every
reader. So each mark has one owner here, and all peaks of this library come from it:

    window = host_peaks().open()
    ...
    window.close()  # the peak in between

Windows nest and overlap in any order and from any thread; one that is dropped has ended. Before a mark is reset, its
value is folded into every open window, so an inner window never loses the peak of an outer one.

Limits: changes in the microseconds between reading and resetting a mark are lost. A reset by other code is noticed only
if the mark is then lower than before; the open windows are then no longer `exact`.
"""

from __future__ import annotations

import functools
import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Generic, TypeVar

from forgather_mem.errors import missing
from forgather_mem.system.allocator import Allocator, current_allocator, gauge
from forgather_mem.system.forks import FORKS
from forgather_mem.system.installed import installed
from forgather_mem.system.procfs import PAGE_BYTES, KernelFile
from forgather_mem.telemetry.beside import marked
from forgather_mem.units import MIB

# ---- high-water marks of this process: the kernel's, and a device allocator's ----

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
        self.statm = KernelFile(here / "statm")
        self._status = KernelFile(here / "status")
        self._clear_refs = KernelFile(here / "clear_refs", write=True)
        self.resettable = os.access(here / "clear_refs", os.W_OK)
        self._floor_bytes = 0
        self._find_floor()
        self.rest()

    def read(self) -> Reading:
        current = int(self.statm.read(128).split()[1]) * PAGE_BYTES
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
        for file in (self.statm, self._status, self._clear_refs):
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


M = TypeVar("M", bound=HostMark | DeviceMark, covariant=True)


class PeakWindows(Generic[M]):
    """The owner of one mark: opens windows and keeps them correct. Thread-safe.

    Use `host_peaks()` and `device_peaks()` to get the process's owners; two owners of one mark would corrupt each
    other's windows.
    """

    def __init__(self, mark: M) -> None:
        self.mark = mark
        self._windows = marked()
        self._begin_process()

    def open(self, *, reset: bool = True) -> PeakWindow:
        """A window that starts now.

        Args:
            reset: Reset the mark, which is visible to other readers in this process. Without it the window is `exact`
                only if memory rises above the older mark while it is open.
        """
        with self.held():
            window = PeakWindow(self, reset)
            self._start(window, self.fold(None))
            self._windows[window] = True
            return window

    @property
    def highest_bytes(self) -> int:
        """The highest value seen in this process, despite any resets by us, or by others after a reading."""
        with self.held():
            self.fold(None)
            return self._highest_bytes

    def held(self) -> AbstractContextManager[bool]:
        """The lock, for `with`: no window of this owner begins or ends while it is held."""
        if self._forks != FORKS.number:
            self._begin_process()  # in a forked child: other memory, a new lock, no windows
        return self._lock

    def _begin_process(self) -> None:
        self._forks = FORKS.number
        self._lock = threading.RLock()
        for window in self._windows:
            window._end()
        self._windows.clear()
        self._seen_bytes = self._highest_bytes = 0

    def _start(self, window: PeakWindow, reading: Reading) -> None:
        current, peak = reading
        if window._resets and self.mark.resettable and peak > current:
            self.mark.reset(current)
            self._seen_bytes = peak = current
            for other in self._windows:
                other._older_mark_bytes = -1
        older_mark = peak if peak > current + self.mark.slack_bytes else -1
        window.start_bytes = window.seen_bytes = current
        window._older_mark_bytes = window._unknown_bytes = older_mark
        window._disturbed = False

    def fold(self, reading: Reading | None) -> Reading:
        """Read the mark (unless the caller just did) and fold its value into every open window; while `held`."""
        current, peak = self.mark.read() if reading is None else reading
        if peak < self._seen_bytes - self.mark.slack_bytes:  # other code has reset it
            for window in self._windows:
                window._disturbed = True
                window._older_mark_bytes = window._unknown_bytes = -1
        self._seen_bytes = peak
        if peak > self._highest_bytes:
            self._highest_bytes = peak
        for window in self._windows:
            seen = peak if peak > window._older_mark_bytes else current
            if seen > window.seen_bytes:
                window.seen_bytes = seen
        return current, peak

    def _close(self, window: PeakWindow) -> None:
        window._end()
        self._windows.discard(window)
        if not self._windows:
            self.mark.rest()


class PeakWindow:
    """From `PeakWindows.open()` to `close()`: the highest memory in between.

    Attributes:
        start_bytes: Memory at the opening.
        seen_bytes: The highest value at the last reading of the mark by any caller.
        closed: Whether it has ended, by `close()` or because this is a forked child.
    """

    def __init__(self, owner: PeakWindows[HostMark | DeviceMark], resets: bool) -> None:
        self._owner: PeakWindows[HostMark | DeviceMark] | None = owner
        self._resets = resets
        self.start_bytes = self.seen_bytes = 0
        self.closed = False
        # A mark so low says nothing about this window, and a peak so low may have been missed
        self._older_mark_bytes = self._unknown_bytes = -1
        self._disturbed = False

    @property
    def risen(self) -> bool:
        """Whether the mark is meaningful for this window: it rose or was reset in it."""
        return self.seen_bytes > self._unknown_bytes

    @property
    def exact(self) -> bool:
        """Whether the peak is the true one, and not only a lower bound."""
        return not self._disturbed and self.seen_bytes > self._unknown_bytes

    def look(self, reading: Reading | None = None) -> int:
        """The highest memory since the opening, until now or until it was closed; a lower bound if not `exact`.

        Args:
            reading: The mark's value, if the caller has just read it (while the owner is `held`).
        """
        owner = self._owner
        if owner is not None:
            with owner.held():
                owner.fold(reading)
        return self.seen_bytes

    def restart(self, reading: Reading) -> None:
        """Start again at this instant, as if closed and reopened.

        Args:
            reading: The mark's value at an immediately preceding `look` (while the owner is `held`).
        """
        if self._owner is not None:
            self._owner._start(self, reading)

    def close(self) -> int:
        """Ends the window and returns its peak in bytes. Closing twice is harmless."""
        owner = self._owner
        if owner is not None:
            with owner.held():
                try:
                    owner.fold(None)
                finally:  # also where a device has failed, and has no answer
                    if self._owner is not None:  # another thread may have closed it, or this is a forked child
                        owner._close(self)
        return self.seen_bytes

    def _end(self) -> None:
        self._owner, self.closed = None, True


# One owner per process and mark, because there is one mark: that is why these two are cached.
@functools.cache
def host_peaks() -> PeakWindows[HostMark] | None:
    """The owner of the kernel's mark; None if the system has no readable one (no /proc)."""
    with missing(OSError, IndexError):  # no /proc, or one without VmHWM
        return PeakWindows(HostMark())
    return None


def device_peaks() -> PeakWindows[DeviceMark] | None:
    """The owner of the current device's mark; None without an initialised accelerator that has one."""
    allocator = current_allocator()
    return None if allocator is None else peaks_of(allocator)


@functools.cache
def peaks_of(allocator: Allocator) -> PeakWindows[DeviceMark] | None:
    """The owner of this device's mark; None if its allocator keeps none."""
    return None if allocator.reset_peaks is None else PeakWindows(DeviceMark(allocator))
