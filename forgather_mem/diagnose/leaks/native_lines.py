"""Finds the user's line at which C or C++ code allocates memory that stays.

For a few steps, each line of the user's functions is traced, and the C library's allocated bytes are read before and
after it. A line that allocates as much as the process gains, in a function that does not free it on return, is the
place. This remains a guess: the effect may come from another thread.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from forgather_mem.heap.source_lines import is_user_file

MOST_S = 0.1  # of reading and counting; then it stops
_LEAST_FRAC, _MOST_FRAC = 0.7, 1.4  # of the process's growth: what the line must account for

Place = tuple[CodeType, int]


class NativeLines:
    """Counts from `start` to `stop`; does nothing if another tracer or `torch.compile` is active.

    Args:
        given_out: Reads the bytes currently allocated by the C library.
    """

    def __init__(self, given_out: Callable[[], float]) -> None:
        self._given_out = given_out
        self._lines: Counter[Place] = Counter()
        self._depths: dict[Place, int] = {}
        self._functions: Counter[CodeType] = Counter()
        self._is_user: dict[str, bool] = {}
        self._returned: tuple[CodeType, float] | None = None
        self._depth = 0
        self._began_s = self._spent_s = 0.0
        self._at_start = self._gained = 0.0
        self._tracer = self._on_call  # one object, so that it can be recognised

    def start(self) -> bool:
        """Start counting; returns whether it does."""
        if sys.gettrace() is not None or _compiles():
            return False
        self._at_start = self._given_out()
        sys.settrace(self._tracer)
        return True

    def stop(self) -> None:
        """Stop counting."""
        if sys.gettrace() is self._tracer:
            sys.settrace(None)
            self._gained = self._given_out() - self._at_start

    def found(self) -> tuple[CodeType, int] | None:
        """Function and line of the innermost line that accounts for the process's growth; None if no line does."""
        bytes_in_all = self._gained
        if bytes_in_all <= 0:
            return None
        candidates = [
            (self._depths[place], -abs(num_bytes - bytes_in_all), place)
            for place, num_bytes in self._lines.items()
            if _LEAST_FRAC * bytes_in_all <= num_bytes <= _MOST_FRAC * bytes_in_all
            and self._functions[place[0]] >= _LEAST_FRAC * bytes_in_all
        ]
        if not candidates:
            return None
        return max(candidates, key=lambda one: one[:2])[2]

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        began_s = time.perf_counter()
        code = frame.f_code
        if self._returned is not None:  # its variables have been released by now
            left, at = self._returned
            self._returned = None
            self._functions[left] += int(self._given_out() - at)
        is_user = self._is_user.get(code.co_filename)
        if is_user is None:
            is_user = self._is_user[code.co_filename] = is_user_file(code.co_filename)
        follow = self._function(code, frame.f_lineno) if is_user else None
        self._spent_s += time.perf_counter() - began_s
        if self._spent_s > MOST_S:
            self.stop()
        return follow

    def _function(self, code: CodeType, line: int) -> Callable[[FrameType, str, object], object]:
        """The trace function for one call of a function."""
        self._depth += 1
        depth = self._depth
        first = at = self._given_out()

        def follow(frame: FrameType, event: str, argument: object) -> object:
            nonlocal line, at
            if event == "exception":
                return follow
            began_s = time.perf_counter()
            now = self._given_out()
            self._lines[code, line] += int(now - at)
            self._depths[code, line] = depth
            if event == "return":
                self._depth = depth - 1
                self._functions[code] += int(now - first)
                self._returned = (code, now)
            line = frame.f_lineno
            at = self._given_out()
            self._spent_s += time.perf_counter() - began_s
            return follow

        return follow


def _compiles() -> bool:
    """Whether frames were compiled: these may behave differently while they are traced."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames"))
