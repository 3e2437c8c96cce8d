"""Memory of this process over a span of time, on the host and its device: at both ends, and the peak."""

from __future__ import annotations

from dataclasses import dataclass

from forgather_mem.system.allocator import current_allocator, gauge_now
from forgather_mem.system.peak_windows import device_peaks, host_peaks
from forgather_mem.system.procfs import own_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The memory of this process at one instant, in bytes.

    Attributes:
        host_bytes: Resident memory.
        device_bytes: Live tensors on the current device; None without one or before its first use.
        reserved_bytes: Memory reserved by the device's allocator; None likewise.
    """

    host_bytes: int
    device_bytes: int | None = None
    reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One kind of memory from a start to an end, in bytes.

    Attributes:
        peak_bytes: The highest value in between.
        exact: Whether that is the true peak; False if it is only a lower bound.

    >>> Span(start_bytes=100, end_bytes=80, peak_bytes=300).consumed_bytes
    -20
    """

    start_bytes: int
    end_bytes: int
    peak_bytes: int
    exact: bool = True

    @property
    def consumed_bytes(self) -> int:
        """Memory held at the end but not at the start; negative if memory was freed."""
        return self.end_bytes - self.start_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSpan:
    """Host and device from a start to an end; `device` is None without one or before its first use."""

    host: Span
    device: Span | None = None
    reserved_bytes: int | None = None

    @property
    def end(self) -> Usage:
        """Usage at the end."""
        device_bytes = None if self.device is None else self.device.end_bytes
        return Usage(host_bytes=self.host.end_bytes, device_bytes=device_bytes, reserved_bytes=self.reserved_bytes)


def usage_now() -> Usage:
    """The current usage of this process."""
    device_bytes, reserved_bytes = gauge_now("allocated_bytes"), gauge_now("reserved_bytes")
    return Usage(host_bytes=own_memory().resident_bytes, device_bytes=device_bytes, reserved_bytes=reserved_bytes)


class UsageWindow:
    """Host and device from now to `close()`.

    Windows nest and overlap in any order and from any thread: all of them use the process's single owner of each
    high-water mark (`forgather_mem.system.peak_windows`). They cover the whole process: other threads count
    too. The device
    is the one that is current when the window opens; a device first used in between counts from 0. A window dropped
    without `close()` ends by itself.

    Args:
        reset_peaks: Reset the marks of the kernel and of the device's allocator, which is visible to other readers in
            this process (`torch.cuda.max_memory_allocated()` counts from here). Without it a peak is exact only if
            memory rises above the older mark.
    """

    def __init__(self, *, reset_peaks: bool = True) -> None:
        self._allocator = current_allocator()
        host, device = host_peaks(), device_peaks()
        self._host = None if host is None else host.open(reset=reset_peaks)
        self._device = None if device is None else device.open(reset=reset_peaks)
        self._host_bytes = own_memory().resident_bytes if self._host is None else self._host.start_bytes
        self._device_bytes = gauge_now("allocated_bytes") if self._device is None else self._device.start_bytes

    def span(self) -> UsageSpan:
        """From the opening until now."""
        device, reserved_bytes = self._device_span()
        return UsageSpan(host=self._host_span(), device=device, reserved_bytes=reserved_bytes)

    def close(self) -> UsageSpan:
        """Ends the window; closing twice is harmless, but only the first call returns a useful result."""
        try:
            return self.span()
        finally:
            for window in (self._host, self._device):
                if window is not None:
                    window.close()

    def _host_span(self) -> Span:
        start_bytes, window, peaks = self._host_bytes, self._host, host_peaks()
        if window is None or window.closed or peaks is None:
            end_bytes = own_memory().resident_bytes
            peak_bytes, exact = start_bytes if window is None else window.look(), False
        else:
            with peaks.held():  # one reading for both
                reading = peaks.mark.read()
                end_bytes, peak_bytes, exact = reading[0], window.look(reading), window.exact
        peak_bytes = max(peak_bytes, start_bytes, end_bytes)
        return Span(start_bytes=start_bytes, end_bytes=end_bytes, peak_bytes=peak_bytes, exact=exact)

    def _device_span(self) -> tuple[Span | None, int | None]:
        window = self._device
        peak_bytes = start_bytes = self._device_bytes or 0
        exact = False
        if window is not None:
            peak_bytes, exact = window.look(), window.exact
        elif self._allocator is None and (peaks := device_peaks()) is not None:
            peak_bytes, exact = peaks.highest_bytes, True  # first used in this window: its all-time peak
        end_bytes, reserved_bytes = (gauge_now(name, self._allocator) for name in ("allocated_bytes", "reserved_bytes"))
        if end_bytes is None:
            return None, None
        peak_bytes = max(peak_bytes, end_bytes)
        return Span(start_bytes=start_bytes, end_bytes=end_bytes, peak_bytes=peak_bytes, exact=exact), reserved_bytes
