"""How often collections may run: rank 0's budget, and the schedule that all ranks follow."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollectionLimits:
    """How much time collections may take. Measured by benchmarks/gc_policies.py.

    Attributes:
        useless_frac: Of the time: those that find nothing.
        useful_frac: Those that find garbage, as in dask's collector.
        boundary_frac: Those at boundaries.
        most_stretch: Of the steps between collections.
        most_freezes: Objects frozen between boundaries and then dropped in a cycle stay until the next boundary, which
            comes after so many.
    """

    useless_frac: float = 0.005
    useful_frac: float = 0.05
    boundary_frac: float = 0.05
    most_stretch: int = 64
    most_freezes: int = 8


LIMITS = CollectionLimits()


@dataclass(frozen=True, slots=True)
class Schedule:
    """What all ranks have agreed on.

    Attributes:
        stretch: Only every `stretch`-th collection between boundaries runs.
        gap_steps: Minimum number of steps between boundaries.
        own_boundary_steps: Number of steps without a boundary after which we insert one.

    >>> Schedule.read(Schedule(2, 0, 1000).write())
    Schedule(stretch=2, gap_steps=0, own_boundary_steps=1000)
    """

    stretch: int
    gap_steps: int
    own_boundary_steps: int

    @classmethod
    def read(cls, text: str) -> Schedule:
        return cls(*map(int, text.split()))

    def write(self) -> str:
        return f"{self.stretch} {self.gap_steps} {self.own_boundary_steps}"


class Budget:
    """Weighs the cost and yield of collections against the duration of a step.

    Call `begins` before and either `collected` or `renewed` after each collection, then `advice`.

    Args:
        every_steps: Steps between collections without stretching.
        boundary_steps: Maximum number of steps without a boundary.
        boundary_s: Maximum number of seconds without one.
    """

    def __init__(
        self,
        every_steps: int,
        boundary_steps: int,
        boundary_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._every_steps = every_steps
        self._boundary_steps = boundary_steps
        self._boundary_s = boundary_s
        self._clock = clock
        self._step_s: deque[float] = deque(maxlen=5)  # for the median: some of these intervals contain an evaluation
        self._last: tuple[int, float] | None = None  # None at first: the first steps compile and load
        self._collect_s: deque[float] = deque(maxlen=3)
        self._found = 0.0
        self._renew_s = 0.0
        self._renewed_step = 0
        self._num_freezes = 0

    def begins(self, step: int) -> None:
        """A collection is about to begin at this step."""
        if self._last is not None and step > self._last[0]:
            self._step_s.append((self._clock() - self._last[1]) / (step - self._last[0]))

    def collected(self, step: int, took_s: float, num_objects: float, *, froze: bool) -> None:
        """A collection between boundaries is over; `froze`: its survivors were frozen too."""
        self._last = (step, self._clock())
        self._collect_s.append(took_s)
        self._found = num_objects
        self._num_freezes += froze

    def renewed(self, step: int, took_s: float, *, at_start: bool = False) -> None:
        """A boundary is over; `at_start`: the one before the first step."""
        self._last = None if at_start else (step, self._clock())
        self._renew_s, self._renewed_step = took_s, step
        self._num_freezes = 0

    def advice(self, now: Schedule, step: int) -> Schedule:
        """The appropriate schedule; `now` itself if it is close enough."""
        if not self._step_s:
            return now
        step_s = max(statistics.median(self._step_s), 1e-6)
        return dataclasses.replace(
            now,
            stretch=self._stretch(now.stretch, step_s),
            gap_steps=_unless_near(now.gap_steps, math.ceil(self._renew_s / (LIMITS.boundary_frac * step_s)), 2.0),
            own_boundary_steps=_unless_near(now.own_boundary_steps, self._own_boundary_steps(step, step_s), 1.25),
        )

    def _stretch(self, stretch: int, step_s: float) -> int:
        if not self._collect_s:
            return stretch
        share = statistics.median(self._collect_s) / (step_s * self._every_steps * stretch)
        allowed = LIMITS.useful_frac if self._found else LIMITS.useless_frac
        if share > allowed:
            return min(stretch * 2, LIMITS.most_stretch)
        return stretch // 2 if share < allowed / 4 and stretch > 1 else stretch

    def _own_boundary_steps(self, step: int, step_s: float) -> int:
        if self._num_freezes >= LIMITS.most_freezes:
            return max(1, step - self._renewed_step)  # now, as soon as all ranks know
        return max(1, int(min(self._boundary_steps, self._boundary_s / step_s)))


def _unless_near(now: int, wanted: int, factor: float) -> int:
    """`wanted`, or `now` if they differ by less than this factor: not every small change is proposed."""
    return now if now / factor < wanted < now * factor else wanted
