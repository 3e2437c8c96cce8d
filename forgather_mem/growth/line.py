"""The straight line through a series of sizes, with its error.

In plain Python, since the report of a killed run is made where neither torch nor numpy need be installed; a series has
at most some hundred points, which take 0.1 ms.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from forgather_mem._lazy import dataclass
from forgather_mem.growth.lower_envelope import Point

_ROUNDS = 4
_STANDARD_DEVIATIONS = 3.0
_LEAST_KEPT_FRAC = 0.6


@dataclass(frozen=True, slots=True)
class Line:
    """A least-squares line; errors are standard errors.

    Attributes:
        slope: Bytes per step, with `slope_error`.
        middle_step, middle: Means of the points, with `middle_error`.
    """

    slope: float
    middle_step: float
    middle: float
    slope_error: float
    middle_error: float

    def at(self, step: float) -> float:
        return self.middle + self.slope * (step - self.middle_step)

    def error_at(self, step: float) -> float:
        return float((self.middle_error**2 + (self.slope_error * (step - self.middle_step)) ** 2) ** 0.5)


def fit_line(points: Sequence[Point]) -> Line:
    """The line through two points or more at different steps.

    >>> line = fit_line([(0, 5.0), (10, 25.0), (20, 45.0)])
    >>> line.slope, line.at(30)
    (2.0, 65.0)
    """
    count = len(points)
    middle_step, middle = sum(step for step, _ in points) / count, sum(size for _, size in points) / count
    away = [(step - middle_step, size - middle) for step, size in points]
    spread = sum(step * step for step, _ in away)
    slope = sum(step * size for step, size in away) / spread
    squares = sum((size - slope * step) ** 2 for step, size in away)
    scatter = (squares / max(1, count - 2)) ** 0.5  # of the points around it
    return Line(slope, middle_step, middle, scatter / spread**0.5, scatter / count**0.5)


def fit_without_outliers(points: Sequence[Point]) -> Line | None:
    """The line through most of the points, spikes left out; None if there is no such line."""
    kept = points
    for _ in range(_ROUNDS):
        line = fit_line(kept)
        off = [abs(size - line.at(step)) for step, size in points]
        bound = max(_STANDARD_DEVIATIONS * 1.4826 * statistics.median(off), 1e-9 * max(size for _, size in kept))
        closer = [point for point, value in zip(points, off, strict=True) if value <= bound]
        if len(closer) < _LEAST_KEPT_FRAC * len(points):
            return None
        if len(closer) == len(kept):
            break
        kept = closer
    return line
