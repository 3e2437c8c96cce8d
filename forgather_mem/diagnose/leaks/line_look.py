"""Watches the user's lines for a few steps: which of them makes a container longer, and which brings memory that stays.

Each line of the user's functions is traced, and lengths and the C library's allocated bytes are read before and after
it. Memory counts for a line only as far as the process never falls below it again: what the backward pass gives back is
nobody's. At first what Python's objects and numpy's arrays take does not count: with it, memory that is freed later in
a step may not be told from memory that stays. A line that brings as much as the process gains is the place; this
remains a guess, since the effect may come from another thread.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

from forgather_mem.diagnose.leaks.snapshot import length_of
from forgather_mem.heap.allocation_traces import start_tracing
from forgather_mem.source.source_lines import is_user_file
from forgather_mem.system.installed import installed

tracemalloc = installed("tracemalloc")

MOST_S = 0.1  # of reading and counting; then it stops
_LEAST_FRAC, _MOST_FRAC = 0.6, 1.4  # of the process's growth: what the line must account for
_DULL = 400  # lines of a function by which nothing grew: it is followed no longer
_SEEN = 2  # times that a line has made a container longer: enough

Place = tuple[CodeType, int]


class LineLook:
    """Watches from `start` to `stop`; does nothing if another tracer or `torch.compile` is active.

    Args:
        containers: Watched for growth; held until `stop`.
        given_out: Reads the bytes currently allocated by the C library; None leaves them out.
    """

    def __init__(self, containers: Sequence[object] = (), given_out: Callable[[], float] | None = None) -> None:
        self._containers = list(containers)
        self._lengths = [length_of(container) or 0 for container in containers]
        self._longer: list[Counter[Place]] = [Counter() for _ in containers]
        self._given_out = given_out
        self._levels: list[float] = []
        self._native: list[float] = []  # without what Python's objects and numpy's arrays take
        self._lines: list[tuple[Place, int, int]] = []  # with the readings before and after it
        self._depths: dict[Place, int] = {}
        self._dull: Counter[CodeType] = Counter()
        self._is_user: dict[str, bool] = {}
        self._frames: list[FrameType] = []
        self._begun: set[Place] = set()  # lines that are being executed and may last for the whole training
        self._depth = 0
        self._spent_s = 0.0
        self._traces = False
        self._tracer = self._on_call  # one object, so that it can be recognised

    def start(self) -> bool:
        """Start watching; returns whether it does."""
        if sys.gettrace() is not None or _compiles():
            return False
        if self._given_out is not None:
            self._traces = start_tracing(1)
        self._read()
        sys.settrace(self._tracer)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:  # a training loop of the user's is running already
            if self._is_users(frame.f_code):
                self._frames.append(frame)
                self._begun.add((frame.f_code, frame.f_lineno))
                frame.f_trace = self._function(frame)
            frame = frame.f_back
        return True

    def stop(self) -> None:
        """Stop watching, and release the containers."""
        if sys.gettrace() is self._tracer:
            sys.settrace(None)
            self._read()
        if self._traces:
            self._traces = False
            tracemalloc.stop()
        for frame in self._frames:
            frame.f_trace = None
        self._frames, self._containers = [], []

    def line_of(self, number: int) -> tuple[str, int] | None:
        """File and line that made this container longer most often; None if none was seen to."""
        return next(((code.co_filename, line) for (code, line), _ in self._longer[number].most_common(1)), None)

    def has_seen_all(self) -> bool:
        """Whether each container has a line, and no memory is watched."""
        return self._given_out is None and all(sum(lines.values()) >= _SEEN for lines in self._longer)

    def native_line(self, least_bytes: float = 0.0, expected_bytes: float | None = None) -> tuple[CodeType, int] | None:
        """Function and line of the innermost line that accounts for the process's growth; None if no line does.

        Args:
            least_bytes: Growth below this is the watching's own.
            expected_bytes: The growth of so many steps as were watched; default: what was seen.
        """
        gained = self._levels[-1] - self._levels[0] if self._levels else 0.0
        if gained <= least_bytes:
            return None
        in_full = expected_bytes is not None and self._spent_s <= MOST_S
        found = self._line_that_brings(self._native, expected_bytes or gained) if in_full else None
        return found or self._line_that_brings(self._levels, gained)

    def _line_that_brings(self, levels: Sequence[float], gained: float) -> tuple[CodeType, int] | None:
        # The least that was ever reached afterwards: what it has risen by is still there
        lasting = list(itertools.accumulate(reversed(levels), min))[::-1]
        brought: Counter[Place] = Counter()
        for place, before, after in self._lines:
            brought[place] += int(lasting[after] - lasting[before])
        candidates = [
            (self._depths[place], -abs(num_bytes - gained), place)
            for place, num_bytes in brought.items()
            if _LEAST_FRAC * gained <= num_bytes <= _MOST_FRAC * gained
        ]
        return max(candidates, key=lambda one: one[:2])[2] if candidates else None

    def _read(self) -> int:
        """Read what is given out; returns the reading's number."""
        if self._given_out is not None:
            self._levels.append(self._given_out())
            self._native.append(self._levels[-1] - tracemalloc.get_traced_memory()[0])
        else:
            self._levels = [0.0]
        return len(self._levels) - 1

    def _is_users(self, code: CodeType) -> bool:
        is_user = self._is_user.get(code.co_filename)
        if is_user is None:
            is_user = self._is_user[code.co_filename] = is_user_file(code.co_filename)
        return is_user and (self._given_out is not None or self._dull[code] < _DULL)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        began_s = time.perf_counter()
        follow = None
        if self._is_users(frame.f_code):
            self._compare_in(frame.f_back)  # a library's code may have added to it before it calls this
            follow = self._function(frame)
        self._spent_s += time.perf_counter() - began_s
        if self._spent_s > MOST_S:
            self.stop()
        return follow

    def _compare_in(self, frame: FrameType | None) -> None:
        while frame is not None and not self._is_users(frame.f_code):
            frame = frame.f_back
        if frame is not None:
            self._compare((frame.f_code, frame.f_lineno))

    def _compare(self, place: Place) -> bool:
        """Count what has become longer for this line; returns whether anything has."""
        grown = False
        for number, container in enumerate(self._containers):
            length = length_of(container) or 0
            if length != self._lengths[number]:
                if length > self._lengths[number] and place not in self._begun:
                    self._longer[number][place] += 1
                    grown = True
                self._lengths[number] = length
        return grown

    def _function(self, frame: FrameType) -> Callable[[FrameType, str, object], object]:
        """The trace function for one call of a function."""
        self._depth += 1
        depth, code, line = self._depth, frame.f_code, frame.f_lineno
        at = self._read()

        def follow(frame: FrameType, event: str, argument: object) -> object:
            nonlocal line, at
            if event == "exception":
                return follow
            began_s = time.perf_counter()
            self._depths[code, line] = depth
            if self._given_out is not None:
                self._lines.append(((code, line), at, self._read()))
            self._dull[code] = 0 if self._compare((code, line)) else self._dull[code] + 1
            if event == "return":
                self._depth = depth - 1
            line = frame.f_lineno
            at = self._read()
            self._spent_s += time.perf_counter() - began_s
            return follow if self._is_users(code) else None

        return follow


def _compiles() -> bool:
    """Whether frames were compiled: these may behave differently while they are traced."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames"))
