"""How much memory did a block of code, or one call of a function, take: at its start, at its end, at most?"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, overload

from forgather_mem.around_calls import around_calls
from forgather_mem.probes.usage import Span, UsageSpan, UsageWindow
from forgather_mem.sinks.console import print_line
from forgather_mem.tracker_text import block_lines

Say = Callable[[str], object]
F = TypeVar("F")

# What a block that is switched off gives, so that code which reads it goes on working.
_NOTHING = UsageSpan(host=Span(start_bytes=0, end_bytes=0, peak_bytes=0, exact=False))


def switched_on(owner: str, enabled: bool) -> bool:
    """Whether a tracker works: `enabled`, unless the environment has `FORGATHER_MEM=0`.

    Raises:
        ValueError: for what is neither true nor false; the text "false" would count as true.
    """
    if not isinstance(enabled, bool):
        raise ValueError(f"{owner}(enabled={enabled!r}): give true or false")
    return enabled and os.environ.get("FORGATHER_MEM", "") != "0"


class TrackedBlock:
    """One run through a block: what it has taken so far, and after its end what it took in all."""

    __slots__ = ("_say", "_span", "_window", "label")

    def __init__(self, label: str, window: UsageWindow | None, say: Say) -> None:
        self.label = label
        self._window = window
        self._say = say
        self._span = _NOTHING

    @property
    def cpu(self) -> Span:
        """Resident memory of the process, in bytes; zeros when tracking is switched off."""
        return self._measured().host

    @property
    def gpu(self) -> Span | None:
        """Live tensors on the device, in bytes; None without a device or before its first use."""
        return self._measured().device

    def end(self, kind: type[BaseException] | None = None) -> None:
        """The block is left, with an exception of this kind or without; measure and say so."""
        if self._window is None:
            return
        self._span, self._window = self._window.close(), None
        # A generator that its consumer leaves early has not failed.
        failed = None if kind is None or issubclass(kind, GeneratorExit) else kind.__name__
        self._say(block_lines(self.label, self._span, failed))

    def _measured(self) -> UsageSpan:
        return self._span if self._window is None else self._window.span()

    def __enter__(self) -> TrackedBlock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(kind)


class track_memory:
    """Says how much memory a block of code takes: at its start and end, the difference, and the peak in between.

    A context manager, and a decorator for functions of every kind. Blocks nest: an inner one does not hide
    the peak of an outer one. One object may be used many times, inside itself, and from several threads
    and tasks. The numbers are the whole process's: what other threads do meanwhile is in them. A block left
    by an exception says so, and the exception goes on. Inside code that `torch.compile` compiles, a `with`
    block breaks the graph, and a decorated function is compiled as if it were not decorated.

    Costs about 25 us a block and the printing of its line.

    Args:
        label: What the lines begin with.
        enabled: False makes it do nothing; a decorated function is then the function itself.
        reset_peaks: Reset the marks of the kernel and of the device's allocator at the block's start, as
            `torch.cuda.reset_peak_memory_stats()` does, so that the peak is exact.
        say: Where the lines go: anything that takes a text. Default: standard output, on rank 0 only,
            beside a progress bar.

    Raises:
        ValueError: for a label that is no text.

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
        block = self.begin()
        with self._lock:
            self._inside.append((id(sys._getframe(1)), block))
        return block

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inside:
            self._leave(id(sys._getframe(1))).end(kind)

    def __call__(self, function: F) -> F:
        """The function, tracked at each call."""
        return around_calls(function, self.begin) if self.enabled else function

    def begin(self) -> TrackedBlock:
        """A block that starts now, for code that can't be indented; `end()` it yourself."""
        return TrackedBlock(self.label, UsageWindow.open(reset_peaks=self.reset_peaks), self.say)

    def _leave(self, frame: int) -> TrackedBlock:
        """The block that this frame entered last. Tasks and generators interleave, so the last of all may be
        another's; an `ExitStack` leaves from another frame than it entered from, and gets the last of all."""
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
def monitor_memory(label: Any = None, *, enabled: bool = True, reset_peaks: bool = True, say: Say = print_line) -> Any:
    """Says at each call of a function how much memory it took; see `track_memory`.

    For functions, methods, coroutines, generators and asynchronous generators. A generator is measured from
    its first item to its end, with what its consumer does in between.

    Args:
        label: What the lines begin with; default: the function's qualified name. May be left out with its
            brackets: `@monitor_memory`.
        enabled: False gives the function back as it is.
        reset_peaks, say: As for `track_memory`.

    Raises:
        ValueError: for what is no function, for example a class.

    >>> lines = []
    >>> @monitor_memory("training epoch", say=lines.append)
    ... def train_epoch():
    ...     return sum(range(1000))
    >>> train_epoch(), lines[0].startswith("training epoch: ")
    (499500, True)
    """

    def decorate(function: Any) -> Any:
        name = label if isinstance(label, str) else getattr(function, "__qualname__", type(function).__qualname__)
        return track_memory(name, enabled=enabled, reset_peaks=reset_peaks, say=say)(function)

    return decorate if label is None or isinstance(label, str) else decorate(label)
