"""Forecasts when growing memory will be full, trusting a slope no further than it was observed.

Four conditions separate memory that only grows from memory that is freed again (a cache, cycles until their
collection): it must have grown in all parts of what was seen; by at least twice what is left to fill; by more than was
ever freed at once; and in its later part as much as in its earlier.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from forgather_mem.diagnose.leaks.lower_envelope import Point, edges_of, rate_of

_BLOCKS = 8
_FEWEST_STEPS = 24
_CALM = 5  # the lowest of this many consecutive readings counts, so that spikes don't
_SEEN_TIMES = 2.0  # it must have grown by this many times what is left
_GIVEN_BACK = 1.2  # and by this many times what was ever freed at once
_MOST_IN_ONE = 0.4  # of the growth: maximum in one block
_LOW_FRAC = 0.5  # of the rate: minimum between two distant stretches
_LATER_FRAC = 0.35  # of the growth: minimum in the later half
_MAX_POINTS = 320
_RECENT_POINTS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When memory will be full.

    Attributes:
        at_step: The step at which memory will be full; `low_step` and `high_step` are the bounds.
        steps_left: Steps from now until then.
        bytes_per_step: The growth rate.
    """

    at_step: int
    low_step: int
    high_step: int
    steps_left: float
    bytes_per_step: float


class Filling:
    """Memory sizes over the last steps, and what was freed before.

    Args:
        within_steps: Forecasts further ahead than this are not needed.

    >>> filling = Filling(within_steps=200)
    >>> for step in range(1, 81):
    ...     filling.add(step, 1e9 * step)
    >>> forecast = filling.forecast(capacity_bytes=100e9)
    >>> forecast.at_step, round(forecast.steps_left)
    (100, 20)
    """

    def __init__(self, within_steps: int) -> None:
        self._within_steps = within_steps
        self._span_steps = max(3 * within_steps, 4 * _FEWEST_STEPS)
        self._points: deque[Point] = deque()
        self._last: deque[float] = deque(maxlen=_CALM)
        self._top = self._bottom = 0.0
        self._given_back = 0.0
        self._now = 0

    def add(self, step: int, size: float) -> None:
        """Add the bytes in use at the end of this step."""
        self._last.append(size)
        self._now = step
        points = self._points
        while points and points[0][0] < step - self._span_steps:
            points.popleft()
        calm = min(self._last)
        if not points:
            self._top = self._bottom = calm
        if calm > self._top:
            self._top = self._bottom = calm
        elif calm < self._bottom:  # how far it has fallen from its top
            self._bottom = calm
            self._given_back = max(self._given_back, self._top - calm)
        elif calm - self._bottom > 0.5 * (self._top - self._bottom):  # it rises again: the next fall is a new one
            self._top = self._bottom = calm
        points.append((step, size))
        if len(points) > _MAX_POINTS:  # the older, the sparser
            old = len(points) - _RECENT_POINTS
            self._points = deque([*itertools.islice(points, 0, old, 2), *itertools.islice(points, old, None)])

    def forecast(self, capacity_bytes: float) -> Forecast | None:
        """When this capacity will be exhausted; None if that is not in sight. Costs 2 us while it is not."""
        points = self._points
        if len(points) < _FEWEST_STEPS or not self._last:
            return None
        least = min(size for _, size in itertools.islice(points, 0, None, max(1, len(points) // 64)))
        if min(self._last) - least < 0.9 * _SEEN_TIMES * (capacity_bytes - min(self._last)):
            return None
        seen = list(points)
        length = len(seen)
        while length >= _FEWEST_STEPS:
            found = self._of(seen[-length:], capacity_bytes)
            if found is not None:
                return found
            length = length * 7 // 10
        return None

    def _of(self, part: Sequence[Point], capacity_bytes: float) -> Forecast | None:
        edges = edges_of(part, _BLOCKS)
        if len(edges) < _BLOCKS:
            return None
        rate, low, _ = rate_of(edges)
        grown = edges[-1][1] - edges[0][1]
        if rate <= 0 or low < _LOW_FRAC * rate or grown < _GIVEN_BACK * self._given_back:
            return None
        rises = [later[1] - earlier[1] for earlier, later in itertools.pairwise(edges)]
        half = len(rises) // 2
        if min(rises) < -0.1 * grown or max(rises) > _MOST_IN_ONE * grown or sum(rises[-half:]) < _LATER_FRAC * grown:
            return None
        line = _line(part)
        if line is None or not line.goes_on(part):
            return None
        at = self._now
        left = capacity_bytes - line.at(at)
        steps_left = max(0.0, left / line.slope)
        if steps_left > self._within_steps or at - part[0][0] < _SEEN_TIMES * steps_left:
            return None
        off = 2 * line.error_at(at + steps_left) / line.slope
        return Forecast(
            at_step=at + round(steps_left),
            low_step=at + max(0, round(steps_left - off)),
            high_step=at + round(steps_left + off),
            steps_left=steps_left,
            bytes_per_step=line.slope,
        )


@dataclass(frozen=True, slots=True)
class _Line:
    """A straight line through most of the points, with its error."""

    slope: float
    middle_step: float
    middle: float
    slope_error: float
    middle_error: float

    def at(self, step: float) -> float:
        return self.middle + self.slope * (step - self.middle_step)

    def error_at(self, step: float) -> float:
        return float((self.middle_error**2 + (self.slope_error * (step - self.middle_step)) ** 2) ** 0.5)

    def goes_on(self, part: Sequence[Point]) -> bool:
        """Whether the last third of the points lies on it too."""
        last = _line(part[-max(_FEWEST_STEPS // 2, len(part) // 3) :])
        if last is None or last.slope <= 0:
            return False
        off = abs(last.slope - self.slope)
        error = float((last.slope_error**2 + self.slope_error**2) ** 0.5)
        return off <= max(0.08 * self.slope, 2.5 * error)


def _line(part: Sequence[Point]) -> _Line | None:
    """Least squares without outliers such as spikes."""
    kept = list(part)
    for _ in range(4):
        steps, sizes = [float(step) for step, _ in kept], [size for _, size in kept]
        slope, intercept = statistics.linear_regression(steps, sizes)
        off = [size - intercept - slope * step for step, size in part]
        bound = max(3.0 * 1.4826 * statistics.median(map(abs, off)), 1e-9 * max(sizes))
        closer = [point for point, value in zip(part, off, strict=True) if abs(value) <= bound]
        if len(closer) < 0.6 * len(part):
            return None
        if len(closer) == len(kept):
            break
        kept = closer
    middle_step = statistics.fmean(steps)
    spread = sum((step - middle_step) ** 2 for step in steps)
    squares = sum((size - intercept - slope * step) ** 2 for step, size in zip(steps, sizes, strict=True))
    scatter = (squares / max(1, len(steps) - 2)) ** 0.5
    return _Line(slope, middle_step, statistics.fmean(sizes), scatter / spread**0.5, scatter / len(steps) ** 0.5)
