"""Small tools that report memory now and here, in a script without a trainer or callbacks.

Their lines go to standard output, on rank 0 only. "MB" in them means MiB (2**20 bytes). They cover the process on the
host and the current device; without a device, or before its first use, the GPU part is left out.
"""

from __future__ import annotations

from forgather_mem.errors import check_whole
from forgather_mem.sinks.console import print_line
from forgather_mem.system.usage import UsageWindow, usage_now
from forgather_mem.telemetry.plain_numbers import as_number
from forgather_mem.trackers.blocks import Say, switched_on
from forgather_mem.trackers.text import batch_line, epoch_line, usage_text
from forgather_mem.units import MIB


class MemoryMonitor:
    """The current memory of this process, in MiB. With `FORGATHER_MEM=0` in the environment it prints nothing."""

    @staticmethod
    def print_memory_usage(prefix: str = "") -> None:
        """Print one line such as "After model creation: GPU 23.1 MB, CPU 1634.7 MB"."""
        if switched_on("MemoryMonitor", True):
            print_line(prefix + usage_text(usage_now()))

    @staticmethod
    def get_cpu_memory_mb() -> float:
        """Resident memory of this process.

        >>> MemoryMonitor.get_cpu_memory_mb() > 1
        True
        """
        return usage_now().host_bytes / MIB

    @staticmethod
    def get_gpu_memory_mb() -> float | None:
        """Live tensors on the current device; None without one or before its first use."""
        return _mb(usage_now().device_bytes)

    @staticmethod
    def get_gpu_reserved_mb() -> float | None:
        """Memory reserved by the device's allocator; None without a device or before its first use."""
        return _mb(usage_now().reserved_bytes)


class EpochMemoryMonitor:
    """Three calls in a training loop: one line for each of an epoch's first batches, and one at its end.

    After the verbose batches a call costs one comparison. The loss is read in verbose batches only, since reading it
    makes the host wait for the device.

    Args:
        enabled: False makes it do nothing.
        verbose_batches: Number of batches per epoch with a line.
        reset_peaks: Reset the marks of the kernel and of the device's allocator when an epoch starts, so that its peak
            is exact.
        say: Receives the lines; default: standard output.

    Raises:
        ValueError: for a negative number of batches or an `enabled` that is neither true nor false.

    >>> monitor = EpochMemoryMonitor(verbose_batches=1, say=print)
    >>> monitor.on_epoch_start()
    Memory monitoring enabled (verbose for first 1 batches)
    <BLANKLINE>
    >>> monitor.on_batch_end(0, 0.00531)  # doctest: +ELLIPSIS
    Batch 0: ...CPU ... MB, loss=0.005310
    >>> monitor.on_batch_end(1, 0.01694)
    >>> monitor.on_epoch_end()  # doctest: +ELLIPSIS
    Epoch end: ... MB, peak ... MB
    """

    def __init__(
        self, enabled: bool = True, verbose_batches: int = 5, *, reset_peaks: bool = True, say: Say = print_line
    ) -> None:
        check_whole("EpochMemoryMonitor", 0, verbose_batches=verbose_batches)
        self.enabled = switched_on("EpochMemoryMonitor", enabled)
        self.verbose_batches = verbose_batches
        self.reset_peaks = reset_peaks
        self.say = say
        self._num_told = verbose_batches if self.enabled else 0
        self._introduced = False
        self._window: UsageWindow | None = None

    def on_epoch_start(self) -> None:
        """An epoch begins: its peak is counted from here."""
        if not self.enabled:
            return
        if not self._introduced:
            self._introduced = True
            self.say(f"Memory monitoring enabled (verbose for first {self.verbose_batches} batches)\n")
        self._window = UsageWindow(reset_peaks=self.reset_peaks)

    def on_batch_end(self, batch_idx: int, loss: object = None) -> None:
        """A batch is finished.

        Args:
            batch_idx: Its number in the epoch, from 0.
            loss: A number or a tensor with one element; anything else is omitted from the line.
        """
        if batch_idx >= self._num_told:
            return
        # Through the epoch's window, so that its peak is never below a value already shown
        usage = usage_now() if self._window is None else self._window.span().end
        self.say(batch_line(batch_idx, usage, as_number(loss)))

    def on_epoch_end(self) -> None:
        """The epoch is finished: print the memory held, and the epoch's peak."""
        if not self.enabled:
            return
        window = self._window if self._window is not None else UsageWindow(reset_peaks=False)
        self._window = None
        self.say(epoch_line(window.close()))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_window": None}


def _mb(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / MIB
