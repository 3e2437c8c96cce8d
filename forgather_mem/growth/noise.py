"""A line hidden in independent noise, as from batches of varying length."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from forgather_mem.growth.line import fit_line
from forgather_mem.growth.lower_envelope import Point, Rate


def line_in_noise(part: Sequence[Point], floor: float) -> Rate | None:
    """The rate of a line hidden in independent noise; None otherwise.

    Systematic movement (a sawtooth, a cache filling up) leaves autocorrelated residuals, and growth in stages is fitted
    better by three levels than by a line, or stays constant from one reading to the next.
    """
    sizes = [size for _, size in part]
    line = fit_line(part)
    off = [size - line.at(step) for step, size in part]
    squares = sum(value * value for value in off)
    likeness = sum(one * other for one, other in itertools.pairwise(off)) / squares if squares else 0.0
    moves = statistics.median(abs(later - before) for before, later in itertools.pairwise(sizes))
    if moves < 0.3 * line.scatter:  # for independent noise it is nearly as large
        return None
    if line.slope < floor or line.slope < 5 * line.slope_error or likeness > 0.25 or squares > _three_levels(sizes):
        return None
    return Rate(line.slope, line.slope - 2 * line.slope_error, line.slope + 2 * line.slope_error)


def _three_levels(sizes: Sequence[float]) -> float:
    """The residual sum of squares of the best three consecutive levels."""
    middle = statistics.fmean(sizes)
    sums = [0.0, *itertools.accumulate(size - middle for size in sizes)]
    whole = sum((size - middle) ** 2 for size in sizes)
    cuts = range(2, len(sizes) - 1, max(1, len(sizes) // 40))
    explained = [
        sums[first] ** 2 / first
        + (sums[second] - sums[first]) ** 2 / (second - first)
        + (sums[-1] - sums[second]) ** 2 / (len(sizes) - second)
        for first, second in itertools.combinations(cuts, 2)
    ]
    return whole - max(explained, default=0.0)
