"""By how much each line of the user's changes what the C library has handed out, for what no Python object holds.

What one line allocates and another frees cancels out over the steps only in their sum: a line is told if it alone
explains what has grown meanwhile. Lines of one statement count as one.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

from forgather_mem.diagnose.leaks.allocation_window import Line
from forgather_mem.source.source_lines import is_user_file
from forgather_mem.source.syntax import first_lines
from forgather_mem.system.native_heap import allocated_natively_bytes


class NativeLines:
    """Traces the lines of this thread until `close`; nothing where somebody else traces, a debugger for example."""

    def __init__(self, budget_s: float = 0.25) -> None:
        """Begin; where reading takes longer than this many CPU seconds, it ends without a result."""
        self._changed: Counter[Line] = Counter()
        self._left_s = budget_s
        self._at: Line = ("", 0)
        self._bytes = allocated_natively_bytes()
        self.is_open = sys.gettrace() is None and self._bytes is not None
        if self.is_open:
            for frame in _users_frames(sys._getframe()):
                frame.f_trace = self._trace
            sys.settrace(self._trace)

    def close(self) -> None:
        """Stop, if nobody else traces by now."""
        if self.is_open and sys.gettrace() == self._trace:
            sys.settrace(None)
            for frame in _users_frames(sys._getframe()):
                frame.f_trace = None
        self.is_open = False

    def line_of(self, num_bytes: float) -> Line | None:
        """The first line of the only statement that kept as much as has grown, if that is about so much."""
        grown, changed = self._changed.total(), Counter[Line]()
        first = {file: first_lines(file) for file in {file for file, _ in self._changed}}
        for (file, line), size in self._changed.items():
            changed[file, first[file].get(line, line)] += size
        found = [line for line, size in changed.items() if 4 * abs(size - grown) <= grown and line[1]]
        return found[0] if self.is_open and len(found) == 1 and abs(grown - num_bytes) <= 0.4 * num_bytes else None

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not is_user_file(frame.f_code.co_filename):
            return None
        began_s = time.thread_time()
        now = allocated_natively_bytes() or 0
        self._changed[self._at] += now - (self._bytes or 0)
        self._bytes = now
        at = next(_users_frames(frame.f_back), frame) if event == "return" else frame
        self._at = at.f_code.co_filename, at.f_lineno
        self._left_s -= time.thread_time() - began_s
        if self._left_s < 0:
            self.close()
        return self._trace


def _users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames in files of the user's, from this one outwards."""
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back
