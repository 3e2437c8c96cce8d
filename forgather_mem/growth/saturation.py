"""Whether growth slows down: a cache that fills at random grows ever less, for as long as a run may last."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forgather_mem.growth.line import fit_line
from forgather_mem.growth.lower_envelope import Point, edges_of

# The last third's rate, compared with the first third's: from here on the growth counts as steady.
STEADY_FRAC = 0.9
_EDGES = 24
_FEWEST_EDGES = 4  # in a third
_STANDARD_ERRORS = 3.0


def slowing_rates(part: Sequence[Point]) -> tuple[float, float] | None:
    """The rates of the first and the last third if the growth slows down through to the end; None if it is steady.

    A warm-up before a steady leak slows down, too, but not in the later half.

    >>> filling = [(step, 1e9 * (1 - math.exp(-step / 600))) for step in range(0, 600, 4)]
    >>> first, last = slowing_rates(filling)
    >>> round(last / first, 1)
    0.5
    >>> slowing_rates([(step, 1e6 * step) for step in range(0, 600, 4)])
    """
    found = _thirds(part)
    if found is None:
        return None
    (first, first_error), (last, last_error) = found
    if last > STEADY_FRAC * first or first - last < _STANDARD_ERRORS * math.hypot(first_error, last_error):
        return None
    later = _thirds(part[len(part) // 2 :])
    if later is not None and last > 0 < later[0][0]:
        # While it fills up, each half slows down by the same factor; after a warm-up the later one does not
        factor = later[1][0] / later[0][0]
        if factor > (last / first) ** 0.25:
            return None
    return first, last


def _thirds(part: Sequence[Point]) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Rate and standard error of the first and the last third's lower envelope; None with too few points."""
    edges = edges_of(part, _EDGES)
    step, span = edges[0][0], edges[-1][0] - edges[0][0]
    first = [point for point in edges if point[0] <= step + span / 3]
    last = [point for point in edges if point[0] >= step + 2 * span / 3]
    if min(len(first), len(last)) < _FEWEST_EDGES:
        return None
    lines = fit_line(first), fit_line(last)
    return (lines[0].slope, lines[0].slope_error), (lines[1].slope, lines[1].slope_error)
