"""What each statement of the user's adds during some steps, to memory and to a holder: a trace of the lines that run.

Tensors, arrays and texts count, Python's small objects, and what C or C++ code keeps, whoever holds it. What one
statement allocates and another frees cancels out over the steps only in their sum, or where a piece is given back of a
size that only one line has taken. One is told if it alone explains what has grown meanwhile, with or without what
others gave back of it, or what has grown beside all that Python traces. The statement that adds to a known holder is
the one after which that has more.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from forgather_mem.diagnose.leaks.sizes import large_bytes, objects_bytes
from forgather_mem.source.source_lines import Line, is_user_file, with_callers
from forgather_mem.source.syntax import first_lines
from forgather_mem.system.installed import installed

tracemalloc = installed("tracemalloc")


class KeptLines:
    """Traces the lines of this thread until `close`; nothing where somebody else traces, a debugger for example.

    Attributes:
        records: Whether `tracemalloc` is on because of one.
    """

    records = False

    def __init__(self, *, opens: bool = True, held: Callable[[], float] | None = None, budget_s: float = 0.25) -> None:
        """Begin, if it `opens`; where reading takes longer than this many CPU seconds, it ends without a result.

        Args:
            opens: Whether to trace.
            held: How much the holder has got, if one is known; it is forgotten in `close`. Small objects are not read
                then: that takes 25 us.
            budget_s: For the readings.
        """
        self._is_held = held is not None
        # Without torch we look in a call that CPython has put off: there 3.11 comes to no end when it traces and
        # another such call is waiting
        self._is_open = opens and sys.gettrace() is None and "torch" in sys.modules
        # It is one for all of the process: a script that has the module, ours is another one, may start it at any time
        is_theirs = tracemalloc.is_tracing() or "tracemalloc" in sys.modules
        KeptLines.records = self._is_open and held is None and not is_theirs
        if KeptLines.records:
            tracemalloc.start()
        self._sizes: Sequence[Callable[[], float]] = (large_bytes, held or objects_bytes, *[_rest] * KeptLines.records)
        # Of lines until `close`, then of statements; each second one is less what others gave back of it
        self._kept: list[Counter[Line]] = [Counter() for _ in (*self._sizes, *self._sizes)]
        self._took: list[dict[Line, int]] = [{} for _ in self._sizes]  # the last piece
        self._left_s = budget_s
        self._at: Line = ("", 0)
        self._before = [read() for read in self._sizes]
        if self._is_open:
            for frame in _users_frames(sys._getframe()):
                frame.f_trace = self._trace
            sys.settrace(self._trace)

    def close(self) -> None:
        """Stop, and add up what the lines of each statement have kept; nothing is known if somebody else traces now."""
        self._sizes = ()
        if KeptLines.records:
            KeptLines.records = False
            if "tracemalloc" not in sys.modules:
                tracemalloc.stop()
        if not self._is_open:
            return
        self._is_open = False
        traced, self._kept = self._kept, [Counter() for _ in self._kept]
        if sys.gettrace() == self._trace:
            sys.settrace(None)
            statements = {file: first_lines(file) for file in {file for lines in traced for file, _ in lines}}
            for lines, kept in zip(traced, self._kept, strict=True):
                lines.pop(("", 0), None)  # until the first line ran: what the look itself gave back
                for (file, line), size in lines.items():
                    kept[file, statements[file].get(line, line)] += size
        for frame in _users_frames(sys._getframe()):
            frame.f_trace = None if frame.f_trace == self._trace else frame.f_trace

    def line_of(self, num_bytes: float) -> Line | None:
        """The first line of the only statement that kept all that has grown, as far as that explains so much.

        To within a sixteenth, set on one script: what is made for a step alone may be as large by chance.
        """
        for kept, net in [*zip(self._kept[::2], self._kept[1::2], strict=True)][: 1 if self._is_held else None]:
            grown = kept.total()
            wanted = (grown, num_bytes if 4 * abs(grown - num_bytes) <= num_bytes else grown)
            sizes = [*kept.items(), *net.items()]
            found = {line for line, size in sizes if any(16 * abs(size - one) <= one for one in wanted)}
            if len(found) == 1 and 0.6 * grown <= num_bytes <= 8 * grown:
                return found.pop()
        return None

    @property
    def adding(self) -> Line | None:
        """The first line of the statement that has added most to the holder; None if none has made it longer."""
        added = {line: size for line, size in self._kept[2].items() if size > 0} if self._is_held else {}
        return max(added, key=added.__getitem__, default=None)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not is_user_file(frame.f_code.co_filename):
            return None
        at = next(_users_frames(frame.f_back), frame) if event == "return" else frame
        to = at.f_code.co_filename, at.f_lineno
        if to == self._at:  # as in a comprehension, many times
            return self._trace
        began_s = time.thread_time()
        for number, read in enumerate(self._sizes):
            now = read()
            more, self._before[number], took = int(now - self._before[number]), now, self._took[number]
            self._kept[2 * number][self._at] += more
            if more > 0:
                took[self._at] = more
            gives = [line for line, size in took.items() if 16 * abs(size + more) <= size]  # what that one has taken
            self._kept[2 * number + 1][gives[0] if len(gives) == 1 else self._at] += more
        self._at = to
        self._left_s -= time.thread_time() - began_s
        if self._left_s < 0:
            sys.settrace(None)
        return self._trace


def _rest() -> float:
    """What others than Python's allocators have given out; of what Python had before, what it frees counts, too."""
    return large_bytes() - float(tracemalloc.get_traced_memory()[0] + tracemalloc.get_tracemalloc_memory())


def _users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames in files of the user's, from this one outwards."""
    return (one for one in with_callers(frame) if is_user_file(one.f_code.co_filename))
