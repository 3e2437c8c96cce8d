"""The lower envelope of a series of sizes, its rate and its rises, and the straight line through one, with its error.

In plain Python, since the report of a killed run is made where neither torch nor numpy need be installed; a series has
at most some hundred points, which take 0.1 ms.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Point = tuple[int, float]


class Rate(NamedTuple):
    """Growth per step, with its likely range."""

    per_step: float
    low: float
    high: float


def edges_of(part: Sequence[Point], count: int) -> list[Point]:
    """The lowest size in each of `count` stretches of steps, empty ones left out."""
    first, width = part[0][0], (part[-1][0] - part[0][0] + 1) / count
    blocks = itertools.groupby(part, key=lambda point: int((point[0] - first) / width))
    return [min(block, key=size_at) for _, block in blocks]


def rate_of(edges: Sequence[Point]) -> Rate:
    """The Theil-Sen slope over blocks that lie apart, and the interval that contains nine in ten of the slopes."""
    far = max(1, len(edges) // 2)
    pairs = ((one, later) for number, one in enumerate(edges) for later in edges[number + far :])
    slopes = sorted((later[1] - one[1]) / (later[0] - one[0]) for one, later in pairs)
    last = len(slopes) - 1
    return Rate(statistics.median(slopes), slopes[round(0.05 * last)], slopes[round(0.95 * last)])


def stairs_of(part: Sequence[Point]) -> list[Point]:
    """Where the lower envelope rises, and by how much; all later sizes stay above it."""
    edge = min(size for _, size in part[-3:])  # the last one may be a spike
    rises = []
    after = part[-1][0]
    for step, size in reversed(part):
        if size < edge:
            rises.append((after, edge - size))
            edge = size
        after = step
    return rises[::-1]


def has_stairs(part: Sequence[Point], grown: float, fewest: int = 4, most: float = 3.0) -> bool:
    """Whether it grows in equal rises at regular intervals, the last within one interval of the end of the run.

    None is larger than `most` times the usual one: 3, or 1.5 where few rises decide, both guesses.
    """
    rises = [(step, rise) for step, rise in stairs_of(part) if rise > 0.04 * grown]
    if len(rises) < fewest:
        return False
    sizes = [rise for _, rise in rises]
    gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(rises)]
    usual = statistics.median(gaps)
    at_end = part[-1][0] - rises[-1][0]
    regular = max(sizes) <= most * statistics.median(sizes) and max(gaps) <= 1.8 * usual
    return regular and at_end <= 1.1 * max(gaps)  # the next rise is not overdue yet


def size_at(point: Point) -> float:
    return point[1]


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
