"""At which line of the user's does C or C++ code take memory that stays?

For a few steps the interpreter tells each line of the user's functions, and the C library what is given out before
and after it. A line that brings as much as the process gains, in a function that does not give it back when it
returns, is where it happens. Seen from outside, this stays a guess: the line's own effect may come from a thread.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from forgather_mem.diagnose.user_code import is_user_file

MOST_S = 0.1  # of reading and counting, then it ends
_LEAST_FRAC, _MOST_FRAC = 0.7, 1.4  # of what the process gains, what the line must bring

Place = tuple[CodeType, int]


class NativeLines:
    """Counts from `start` to `stop`; does nothing where somebody else traces, or where `torch.compile` is at work.

    Args:
        given_out: Bytes that the C library has given out now.
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
        self._tracer = self._on_call  # one object, to be known again

    def start(self) -> bool:
        """Whether it counts from now on."""
        if sys.gettrace() is not None or _compiles():
            return False
        self._at_start = self._given_out()
        sys.settrace(self._tracer)
        return True

    def stop(self) -> None:
        """No longer."""
        if sys.gettrace() is self._tracer:
            sys.settrace(None)
            self._gained = self._given_out() - self._at_start

    def found(self) -> tuple[CodeType, int] | None:
        """Function and line of the innermost line that brings what the process has gained; None when no line does."""
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
        if self._returned is not None:  # what its variables held has been given back by now
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

    def _function(self, code: CodeType, line: int) -> Callable[[FrameType, str, Any], Any]:
        """What counts in one call of a function."""
        self._depth += 1
        depth = self._depth
        first = at = self._given_out()

        def follow(frame: FrameType, event: str, argument: Any) -> Any:
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
    """Whether frames were compiled: nobody promises that those run as before while lines are followed."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames"))
