"""Judges whether a series of sizes grows without end, from its lower envelope.

Memory that is freed at any later time was not leaked, so only the lowest sizes of stretches of steps are compared:
spikes, sawteeth and variation from batch to batch drop out. With a leak, the lower envelope rises everywhere, also at
the end; with warm-up, a cache that fills, or a single allocation, it rises in one part only.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from forgather_mem.growth.lower_envelope import Point, Rate, edges_of, fit_line, has_stairs, rate_of, size_at, stairs_of

Kind = Literal["leak", "slowing", "no leak", "not enough data"]

MAX_POINTS = 512


class GrowthThresholds:
    """What counts as growth without end. Set on the series of `tests/growth/trend_series.py` and on `tests/leaks/zoo`.

    Attributes:
        floor_bytes: Growth per step that is attributed to logs and histories.
        fewest_points, fewest_steps: Of a part in which growth is found.
        fewest_in_all: Points from which on it is said that nothing grows.
        starts: Where a leak may begin, as fractions of what was seen: the first leaves out the warm-up.
        blocks: Stretches whose lowest sizes are compared.
        low_frac: Of the rate: the least between any two distant stretches.
        most_in_one_frac: Of the growth: the most in one stretch.
        later_half_frac: Of the growth: the least in the later half.
        at_end_frac: Of the usual growth: the least in the last two stretches.
        single_rises: Number of single late allocations that may hide a leak behind their size.
        steady_frac: Of the first third's rate: from this on the last third's counts as steady.
        walk_errors: Standard errors by which the mean rise of a stretch is above 0. Set on 60 made-up buffers of
            which random items are replaced: 1 alarm in place of 3.
        chance_errors: Standard errors by which stretches bring ever less.
        edges, fewest_edges: Stretches in which slowing down is looked for, and the fewest of them in a third.
    """

    floor_bytes = 4096.0
    fewest_points = 16
    fewest_steps = 60
    fewest_in_all = 10
    starts = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    blocks = 8
    low_frac = 0.35
    most_in_one_frac = 0.45
    later_half_frac = 0.36
    at_end_frac = 0.4
    single_rises = 2
    steady_frac = 0.9
    walk_errors = 2.5
    chance_errors = 2.0
    edges = 24
    fewest_edges = 4


GROWTH = GrowthThresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The trend of a series.

    Attributes:
        kind: Whether it grows without end; "slowing" is growth that may yet end by itself.
        per_step: Growth per step; of what can't be judged, as far as it was measured; else 0.0.
        low, high: The likely range of `per_step`; of slowing growth, the rate of the last and of the first third.
            Without growth, `high` is the upper bound of a leak.
        since_step: The step at which growth begins.
        steps: Number of steps observed.
    """

    kind: Kind
    per_step: float = 0.0
    low: float = 0.0
    high: float = 0.0
    since_step: int = 0
    steps: int = 0

    @property
    def is_suspect(self) -> bool:
        """Whether it grows, or has risen a few times at even intervals, as in evaluations."""
        return self.kind == "leak" or (self.kind == "not enough data" and self.low > 0)


class Series:
    """The lowest sizes of a run, in at most 512 points however long it is.

    >>> series = Series()
    >>> for step in range(1000):
    ...     series.add(step, 1e9 + 50_000 * step)
    >>> len(series.points) <= MAX_POINTS, judge(series.points).kind
    (True, 'leak')
    """

    def __init__(self, points: Iterable[Point] = (), seen: int = 0) -> None:
        self.points = list(points)
        self.seen = seen  # readings
        self._every = 1  # readings per point
        while self._every * MAX_POINTS < seen:
            self._every *= 2

    def add(self, step: int, value: float) -> None:
        """Add a reading; each point keeps the lowest of its readings."""
        points = self.points
        if self.seen % self._every:
            if value < points[-1][1]:
                points[-1] = (step, value)
        else:
            if len(points) == MAX_POINTS:
                points[:] = [min(pair, key=size_at) for pair in zip(points[::2], points[1::2], strict=True)]
                self._every *= 2
            points.append((step, value))
        self.seen += 1

    @property
    def is_possible(self) -> bool:
        """Whether so many readings give so many points, in this order; of a series that was read from a file."""
        steps = [step for step, _ in self.points]
        return len(steps) == -(-self.seen // self._every) and steps == sorted(steps)

    def may_grow(self, floor: float = GROWTH.floor_bytes) -> bool:
        """Whether a judgement could be "leak" at all; almost free."""
        points = self.points
        if len(points) < GROWTH.fewest_points:
            return False
        middle = points[int(len(points) * GROWTH.starts[-1])]
        return points[-1][1] - middle[1] >= 0.5 * floor * (points[-1][0] - middle[0])

    def rate_at_end(self, floor: float = GROWTH.floor_bytes) -> float:
        """Growth per step in the later half: what comes once comes before. 0 where it does not grow throughout."""
        rate = rate_throughout(self.points[len(self.points) // 2 :], floor) if self.points else None
        return 0.0 if rate is None else rate.per_step


def judge(points: Sequence[Point], floor: float = GROWTH.floor_bytes) -> Trend:
    """Whether the sizes at these steps grow without end.

    Args:
        points: Step and size, by step.
        floor: Growth per step that is ignored, in the unit of the sizes.
    """
    seen, steps = points, points[-1][0] - points[0][0] if points else 0
    earliest = points[int(len(points) * GROWTH.starts[0])] if points else (0, 0.0)  # with which a part begins
    if len(points) < GROWTH.fewest_in_all or points[-1][0] - earliest[0] < GROWTH.fewest_steps:
        return Trend(kind="not enough data", steps=steps, per_step=_measured(points))
    for _ in range(GROWTH.single_rises + 1):
        for start in GROWTH.starts:
            begin = int(len(points) * start)
            part = points[begin:]
            if len(part) < GROWTH.fewest_points or part[-1][0] - part[0][0] < GROWTH.fewest_steps:
                break
            found = rate_throughout(part, floor)
            if found is not None:
                return _grows(points, begin, found, steps)
        level = _without_greatest_rise(points)
        if level is None:
            break
        points = level
    return _not_growing(seen, floor, steps)


def fewest_steps(points: Sequence[Point]) -> int:
    """About how many steps a verdict needs where sizes are read as often as here.

    >>> fewest_steps([(step, 0.0) for step in range(0, 40, 4)]), fewest_steps([(step, 0.0) for step in range(0, 80, 8)])
    (80, 150)
    """
    pace = (points[-1][0] - points[0][0]) / (len(points) - 1) if len(points) > 1 else 4.0
    return 10 * math.ceil(max(GROWTH.fewest_steps, GROWTH.fewest_points * pace) / (1 - GROWTH.starts[0]) / 10)


def rate_throughout(part: Sequence[Point], floor: float = 0.0) -> Rate | None:
    """The rate if this part grows throughout, to its end, in many rises; None otherwise."""
    edges = edges_of(part, GROWTH.blocks)
    if len(edges) < GROWTH.blocks:
        return None
    rate = rate_of(edges)
    grown = edges[-1][1] - edges[0][1]
    span = edges[-1][0] - edges[0][0]
    if grown <= 0 or rate.per_step < floor or grown < floor * span or rate.low < GROWTH.low_frac * rate.per_step:
        return None
    rises = [later[1] - earlier[1] for earlier, later in itertools.pairwise(edges)]
    if min(rises) < -0.25 * grown or max(rises) > GROWTH.most_in_one_frac * grown:
        return None
    if statistics.fmean(rises) < GROWTH.walk_errors * statistics.stdev(rises) / len(rises) ** 0.5:
        return None  # what is replaced at random walks up and down
    return rate if _to_the_end(part, rises, grown) else None


def _grows(points: Sequence[Point], begin: int, found: Rate, steps: int) -> Trend:
    """What grows throughout the part from `begin` on: a leak, unless it slows down or has fallen as far before."""
    part = points[begin:]
    if slowing := slowing_rates(part):
        first, last = slowing
        return Trend(kind="slowing", since_step=part[0][0], steps=steps, per_step=found.per_step, low=last, high=first)
    since = _since(part)  # with the rate of what rises
    later = [point for point in part if point[0] >= since]
    edges = edges_of(later, GROWTH.blocks)
    if since > part[0][0] and later[-1][0] - since >= GROWTH.fewest_steps / 2 and len(edges) >= 4:
        found = max(found, rate_of(edges))
    at = since if since > part[0][0] or begin > len(points) * GROWTH.starts[0] else points[0][0]
    low = max(0.0, found.low)
    return Trend(kind="leak", since_step=at, steps=steps, per_step=found.per_step, low=low, high=found.high)


def _without_greatest_rise(points: Sequence[Point]) -> list[Point] | None:
    """The series with its largest single rise moved to the start; None if there is none."""
    rises = stairs_of(points[int(len(points) * GROWTH.starts[0]) :])
    at, rise = max(rises, key=size_at, default=(0, 0.0))
    if rise < 0.3 * sum(size for _, size in rises):
        return None
    return [(step, size + rise if step < at else size) for step, size in points]


def _to_the_end(part: Sequence[Point], rises: Sequence[float], grown: float) -> bool:
    """Whether it grows at the end as before: what fills up or warms up grows ever less."""
    half = len(rises) // 2
    later = sum(rises[-half:]) / grown
    if later < GROWTH.later_half_frac * half / (len(rises) / 2):
        return False
    if sum(rises[-2:]) < GROWTH.at_end_frac * 2 * grown / len(rises) and not has_stairs(part, grown):
        return False
    return sum(rise < 0.1 * grown / len(rises) for rise in rises) <= 2 or has_stairs(part, grown)


def _since(part: Sequence[Point]) -> int:
    """The step from which it grows: at which it is lowest below the straight line from first to last.

    That is as large a part of the growth as of the steps; of a tenth it may be a stair.
    """
    edges = edges_of(part, GROWTH.edges)
    (first, size), (last, most) = edges[0], edges[-1]
    slope = (most - size) / max(1, last - first)
    below = [(size + slope * (step - first) - value, step) for step, value in edges]
    bend = max(below)[0] + min(below)[0]  # what is uneven lies as far above as below
    return max(below)[1] if bend > GROWTH.starts[0] * (most - size) else part[0][0]


def _measured(points: Sequence[Point]) -> float:
    """The rate of the lower envelope after the warm-up, 0.0 if it does not rise throughout or can't be told."""
    edges = edges_of(points[int(len(points) * GROWTH.starts[1]) :], GROWTH.blocks) if points else []
    rate = rate_of(edges) if len(edges) >= 4 else Rate(0.0, 0.0, 0.0)
    return rate.per_step if rate.low >= GROWTH.low_frac * rate.per_step > 0 else 0.0


def _not_growing(points: Sequence[Point], floor: float, steps: int) -> Trend:
    """No leak, if the later part would have shown one; otherwise it is too early to judge."""
    later = points[int(len(points) * GROWTH.starts[1]) :]
    edges = edges_of(later, min(GROWTH.blocks, len(later) // 2))
    if len(edges) < 4:
        return Trend(kind="not enough data", steps=steps)
    rate, _, _ = rate_of(edges)
    if rate > floor and len(points) - int(len(points) * GROWTH.starts[0]) < GROWTH.fewest_points:
        # Too few to distinguish growth from a curve
        return Trend(kind="not enough data", steps=steps, per_step=rate, high=rate)
    rises = [after[1] - before[1] for before, after in itertools.pairwise(edges)]
    grown, usual = edges[-1][1] - edges[0][1], statistics.median(size for step, size in later if step <= edges[-3][0])
    last = min(rises[-1] + rises[-2], edges[-1][1] - usual)  # what only goes back to its usual size has not begun
    scatter = statistics.median(abs(rise) for rise in rises)
    at_end = last > 2 * floor * (edges[-1][0] - edges[-3][0]) and last > max(0.5 * abs(grown), 4 * scatter)
    in_stairs = grown > floor * (edges[-1][0] - edges[0][0]) and has_stairs(later, grown, fewest=3)
    if at_end or in_stairs:  # it may have just begun
        low = rate if has_stairs(later, grown, fewest=3, most=1.5) else 0.0
        return Trend(kind="not enough data", steps=steps, per_step=rate, low=low, high=max(floor, rate))
    begins = [points[0][0] + start * steps for start in GROWTH.starts[2:]]  # a leak would go on in each of these parts
    parts = [[point for point in points if point[0] >= begin] for begin in begins]
    many = [part for part in parts if len(part) >= GROWTH.fewest_points]
    long = [part for part in many if part[-1][0] - part[0][0] >= GROWTH.fewest_steps]
    highs = [rate_of(edges_of(part, GROWTH.blocks)).high for part in long]
    return Trend(kind="no leak", steps=steps, high=max(floor, min([rate, *highs])))


def slowing_rates(part: Sequence[Point]) -> tuple[float, float] | None:
    """The rates of the first and the last third if the growth slows down through to the end; None if it is steady.

    A warm-up before a steady leak slows down, too, but not in the later half.

    >>> filling = [(step, 1e9 * (1 - math.exp(-step / 600))) for step in range(0, 600, 4)]
    >>> first, last = slowing_rates(filling)
    >>> round(last / first, 1)
    0.5
    >>> slowing_rates([(step, 1e6 * step) for step in range(0, 600, 4)])
    """
    edges = edges_of(part, GROWTH.edges)
    start, third = edges[0][0], (edges[-1][0] - edges[0][0]) / 3
    thirds = [[one for one in edges if low <= (one[0] - start) / third <= low + 1] for low in range(3)]
    if min(map(len, thirds)) < GROWTH.fewest_edges:
        return None
    first, middle, last = map(fit_line, thirds)
    if last.slope > GROWTH.steady_frac * first.slope:
        return None
    # While it fills up, each third slows down by the same factor; after a warm-up the last one does not
    if last.slope > 0 < middle.slope and last.slope / middle.slope > (last.slope / first.slope) ** 0.25:
        return None
    return (first.slope, last.slope) if _increments_fall(edges) else None


def _increments_fall(edges: Sequence[Point]) -> bool:
    """Whether the stretches bring ever less, beyond chance: pieces of uneven size seem to slow down for a while.

    Sizes add up, so that a line through them is surer of itself than it should be; what is added is independent.
    """
    rates = [((at[0] + to[0]) // 2, (to[1] - at[1]) / (to[0] - at[0])) for at, to in itertools.pairwise(edges)]
    line = fit_line(rates)
    return -line.slope > GROWTH.chance_errors * line.slope_error
