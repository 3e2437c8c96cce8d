"""Whether growth slows down: a cache that fills at random grows ever less, for as long as a run may last."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from forgather_mem.growth.line import fit_line
from forgather_mem.growth.lower_envelope import Point, edges_of

# The last third's rate, compared with the first third's: from here on the growth counts as steady.
STEADY_FRAC = 0.9
_EDGES = 24
_FEWEST_EDGES = 4  # in a third
_STANDARD_ERRORS = 4.0
_CHANCE_ERRORS = 2.0


def slowing_rates(part: Sequence[Point]) -> tuple[float, float] | None:
    """The rates of the first and the last third if the growth slows down through to the end; None if it is steady.

    A warm-up before a steady leak slows down, too, but not in the later half.

    >>> filling = [(step, 1e9 * (1 - math.exp(-step / 600))) for step in range(0, 600, 4)]
    >>> first, last = slowing_rates(filling)
    >>> round(last / first, 1)
    0.5
    >>> slowing_rates([(step, 1e6 * step) for step in range(0, 600, 4)])
    """
    edges = edges_of(part, _EDGES)
    start, third = edges[0][0], (edges[-1][0] - edges[0][0]) / 3
    thirds = [[one for one in edges if low <= (one[0] - start) / third <= low + 1] for low in range(3)]
    if min(map(len, thirds)) < _FEWEST_EDGES:
        return None
    first, middle, last = map(fit_line, thirds)
    error = math.hypot(first.slope_error, last.slope_error)
    if last.slope > STEADY_FRAC * first.slope or first.slope - last.slope < _STANDARD_ERRORS * error:
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
    return -line.slope > _CHANCE_ERRORS * line.slope_error
