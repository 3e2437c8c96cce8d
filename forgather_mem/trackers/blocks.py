"""Memory of a block of code or a function call: at its start, at its end, and the peak."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import overload

from forgather_mem.errors import check_flags
from forgather_mem.sinks.console import print_line
from forgather_mem.system.call_wrapping import F, around_calls
from forgather_mem.system.usage import Span, UsageSpan, UsageWindow
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.run_session import is_off
from forgather_mem.trackers.text import block_lines

Say = Callable[[str], object]

_FENCE = FailureGuard()
# Result of a disabled block, so that code that reads it keeps working.
_NOTHING = UsageSpan(host=Span(start_bytes=0, end_bytes=0, peak_bytes=0, exact=False))


def switched_on(owner: str, enabled: bool) -> bool:
    """Whether a tracker is active: `enabled`, unless the environment has `FORGATHER_MEM=0`.

    Raises:
        ValueError: for a value that is neither true nor false; the text "false" would count as true.
    """
    check_flags(owner, enabled=enabled)
    return enabled and not is_off()


class TrackedBlock:
    """One execution of a block: its memory so far, and after its end in total."""

    __slots__ = ("_say", "_span", "_window", "label")

    def __init__(self, label: str, window: UsageWindow | None, say: Say) -> None:
        self.label = label
        self._window = window
        self._say = say
        self._span = _NOTHING

    @property
    def cpu(self) -> Span:
        """Resident memory of the process, in bytes; zeros if tracking is disabled."""
        return self._measured().host

    @property
    def gpu(self) -> Span | None:
        """Live tensors on the device, in bytes; None without a device or before its first use."""
        return self._measured().device

    def end(self, kind: type[BaseException] | None = None) -> None:
        """End the block, with an exception of this kind or without; measure and print."""
        if self._window is None:
            return
        self._span, self._window = self._window.close(), None
        # A generator abandoned by its consumer has not failed.
        failed = None if kind is None or issubclass(kind, GeneratorExit) else kind.__name__
        self._say(block_lines(self.label, self._span, failed))

    def _measured(self) -> UsageSpan:
        return self._span if self._window is None else self._window.span()

    def __enter__(self) -> TrackedBlock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.end(kind)


class track_memory:
    """Prints the memory of a block of code: at its start and end, the difference, and the peak in between.

    A context manager, and a decorator for functions of every kind. Blocks nest: an inner one does not hide the peak of
    an outer one. One object may be used many times, inside itself, and from several threads and tasks. The numbers
    cover the whole process, including other threads. If an exception leaves the block, its line says so, and the
    exception propagates. Inside code compiled by `torch.compile`, a `with` block breaks the graph, and a decorated
    function is compiled as if it were not decorated.

    Costs about 25 us per block, plus the printing of its line.

    Args:
        label: Prefix of the lines.
        enabled: False makes it do nothing; a decorated function is then returned unchanged.
        reset_peaks: Reset the marks of the kernel and of the device's allocator at the block's start, as
            `torch.cuda.reset_peak_memory_stats()` does, so that the peak is exact.
        say: Receives the lines: any function of a text. Default: standard output, on rank 0 only, without disturbing a
            progress bar.

    Raises:
        ValueError: for a label that is not a text.

    >>> with track_memory("table", say=lambda line: None) as block:
    ...     table = bytearray(64 * 2**20)
    >>> block.cpu.consumed_bytes > 63 * 2**20, block.cpu.peak_bytes >= block.cpu.end_bytes
    (True, True)
    """

    def __init__(self, label: str, *, enabled: bool = True, reset_peaks: bool = True, say: Say = print_line) -> None:
        if not isinstance(label, str):
            raise ValueError(f"track_memory({label!r}): give a label, for example track_memory('data loading')")
        self.label = label
        self.enabled = switched_on("track_memory", enabled)
        self.reset_peaks = reset_peaks
        self.say = say
        self._forget_blocks()

    def __enter__(self) -> TrackedBlock:
        if not self.enabled:
            return _OFF
        block: TrackedBlock = _FENCE.call("track_memory", self.begin) or _OFF
        with self._lock:
            self._inside.append((id(sys._getframe(1)), block))
        return block

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if self._inside:
            _FENCE.call("track_memory", self._leave(id(sys._getframe(1))).end, kind)

    def __call__(self, function: F) -> F:
        """The function, tracked at each call."""
        return around_calls(function, self.begin) if self.enabled else function

    def begin(self) -> TrackedBlock:
        """Start a block, for code that can't be indented; call its `end()` yourself."""
        return TrackedBlock(self.label, UsageWindow(reset_peaks=self.reset_peaks), self.say)

    def _leave(self, frame: int) -> TrackedBlock:
        """The block that this frame entered last. Tasks and generators interleave, so the last of all may be another's;
        an `ExitStack` exits from a different frame than it entered from, and gets the last of all."""
        with self._lock:
            for index in reversed(range(len(self._inside))):
                if self._inside[index][0] == frame:
                    return self._inside.pop(index)[1]
            return self._inside.pop()[1]

    def _forget_blocks(self) -> None:
        self._lock = threading.Lock()
        self._inside: list[tuple[int, TrackedBlock]] = []

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_inside")}

    def __setstate__(self, kept: dict[str, object]) -> None:
        self.__dict__.update(kept)
        self._forget_blocks()


_OFF = TrackedBlock("", None, print_line)


@overload
def monitor_memory(
    label: str | None = None, *, enabled: bool = True, reset_peaks: bool = True, say: Say = print_line
) -> Callable[[F], F]: ...
@overload
def monitor_memory(label: F) -> F: ...
def monitor_memory(
    label: object = None, *, enabled: bool = True, reset_peaks: bool = True, say: Say = print_line
) -> object:
    """Prints the memory of each call of a function; see `track_memory`.

    Supports functions, methods, coroutines and generators. A generator is measured from its first item to its end,
    including what its consumer does in between.

    Args:
        label: Prefix of the lines; default: the function's qualified name. May be omitted together with the
            parentheses: `@monitor_memory`.
        enabled: False returns the function unchanged.
        reset_peaks: As for `track_memory`.
        say: As for `track_memory`.

    Raises:
        ValueError: for anything that is not a function, for example a class.

    >>> lines = []
    >>> @monitor_memory("training epoch", say=lines.append)
    ... def train_epoch():
    ...     return sum(range(1000))
    >>> train_epoch(), lines[0].startswith("training epoch: ")
    (499500, True)
    """

    def decorate(function: F) -> F:
        name = label if isinstance(label, str) else getattr(function, "__qualname__", type(function).__qualname__)
        return track_memory(name, enabled=enabled, reset_peaks=reset_peaks, say=say)(function)

    return decorate if label is None or isinstance(label, str) else decorate(label)
