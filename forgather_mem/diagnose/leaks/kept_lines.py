"""What each statement of the user's adds to the memory handed out, during some steps: a trace of the lines that run.

Tensors, arrays and texts count, and what C or C++ code keeps, whoever holds it. What one statement allocates and
another frees cancels out over the steps only in their sum: one is told if it alone explains what has grown meanwhile.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from forgather_mem.diagnose.leaks.sizes import large_bytes
from forgather_mem.source.source_lines import Line, is_user_file, with_callers
from forgather_mem.source.syntax import first_lines


class KeptLines:
    """Traces the lines of this thread until `close`; nothing where somebody else traces, a debugger for example."""

    def __init__(self, *, opens: bool = True, budget_s: float = 0.25) -> None:
        """Begin, if it `opens`; where reading takes longer than this many CPU seconds, it ends without a result."""
        self._kept: Counter[Line] = Counter()  # of lines until `close`, then of statements
        self._statements: dict[str, dict[int, int]] = {}
        self._left_s = budget_s
        self._at: Line = ("", 0)
        self._bytes = large_bytes()
        # Without torch we look in a call that CPython has put off: there 3.11 comes to no end when it traces and
        # another such call is waiting
        self._is_open = opens and sys.gettrace() is None and "torch" in sys.modules
        if self._is_open:
            for frame in _users_frames(sys._getframe()):
                frame.f_trace = self._trace
            sys.settrace(self._trace)

    def close(self) -> None:
        """Stop, and add up what the lines of each statement have kept; nothing is known if somebody else traces now."""
        if not self._is_open:
            return
        self._is_open = False
        lines, self._kept = self._kept, Counter()
        lines.pop(("", 0), None)  # until the first line ran: what the look itself gave back
        if sys.gettrace() == self._trace:
            sys.settrace(None)
            self._statements = {file: first_lines(file) for file in {file for file, _ in lines}}
            for line, size in lines.items():
                self._kept[self._statement(line)] += size
        for frame in _users_frames(sys._getframe()):
            frame.f_trace = None if frame.f_trace == self._trace else frame.f_trace

    def line_of(self, num_bytes: float) -> Line | None:
        """The first line of the only statement that kept all that has grown, as far as that explains so much.

        To within a sixteenth, set on one script: what is made for a step alone may be as large by chance.
        """
        grown = self._kept.total()
        wanted = (grown, num_bytes if 4 * abs(grown - num_bytes) <= num_bytes else grown)
        found = [line for line, size in self._kept.items() if any(16 * abs(size - one) <= one for one in wanted)]
        return found[0] if len(found) == 1 and 0.6 * grown <= num_bytes <= 8 * grown else None

    def likeliest(self, lines: Sequence[Line]) -> Line | None:
        """Of these lines the one that ran, or that kept most; None if none did."""
        ran = [line for line in lines if self._statement(line) in self._kept]
        return max(ran, key=lambda line: self._kept[self._statement(line)], default=None)

    def _statement(self, line: Line) -> Line:
        return line[0], self._statements.get(line[0], {}).get(line[1], line[1])

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not is_user_file(frame.f_code.co_filename):
            return None
        began_s = time.thread_time()
        now = large_bytes()
        self._kept[self._at] += int(now - self._bytes)
        self._bytes = now
        at = next(_users_frames(frame.f_back), frame) if event == "return" else frame
        self._at = at.f_code.co_filename, at.f_lineno
        self._left_s -= time.thread_time() - began_s
        if self._left_s < 0:
            sys.settrace(None)
        return self._trace


def _users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames in files of the user's, from this one outwards."""
    return (one for one in with_callers(frame) if is_user_file(one.f_code.co_filename))
