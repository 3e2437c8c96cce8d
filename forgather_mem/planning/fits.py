"""The largest batch or length whose plan fits, found by planning."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from math import isqrt

from forgather_mem.planning.result import Plan

_MOST_PLANS = 10
_EXACT = 32  # of larger sizes the largest is found but for the 32nd part


def largest_plan(
    plan_at: Callable[[int], Plan], need: Callable[[Plan], int], limit_bytes: int, first: int, most: int
) -> tuple[int, Plan] | None:
    """The largest size whose plan needs no more than the limit, and the plan; None where not even 1 does.

    Three sizes give a curve, and where it meets the limit is planned, until a size fits and the next one does not. Of
    sizes above 32 it is the largest but for a 32nd part.

    Args:
        plan_at: The plan of a size.
        need: The bytes that a plan needs.
        limit_bytes: The limit.
        first: The size to begin with.
        most: No larger one is asked for.
    """
    plans: dict[int, Plan] = {}

    def need_at(size: int) -> int:
        if size not in plans:
            plans[size] = plan_at(size)
        return need(plans[size])

    for size in {min(first, most), min(2 * first, most), max(1, first // 2)}:
        need_at(size)
    was_wide = 0
    while len(plans) < _MOST_PLANS:
        low = max((size for size in plans if need_at(size) <= limit_bytes), default=0)
        high = min((size for size in plans if need_at(size) > limit_bytes), default=most + 1)
        margin = max(1, low // _EXACT)
        if high - low <= margin:
            break
        is_slow = 2 * (high - low) > was_wide > 0
        was_wide = high - low
        at = isqrt(max(1, low) * high) if is_slow else _guess(sorted(plans), need_at, limit_bytes, low, high)
        need_at(max(low + margin, min(high - margin, at)) if high in plans else max(low + 1, min(most, at)))
    best = max((size for size in plans if need_at(size) <= limit_bytes), default=None)
    return None if best is None else (best, plans[best])


def _guess(known: list[int], need_at: Callable[[int], int], limit_bytes: int, low: int, high: int) -> int:
    """Where the curve through the three sizes nearest to the limit meets it, between low and high.

    Memory is linear in the rows of a batch; in their length it has a square where attention keeps its weights. A curve
    that bends down comes from the allocator's steps: a line takes its place.
    """
    near = sorted(sorted(known, key=lambda size: abs(need_at(size) - limit_bytes))[:3])
    slopes = [Fraction(need_at(b) - need_at(a), b - a) for a, b in itertools.pairwise(near)]
    bend = (slopes[1] - slopes[0]) / (near[2] - near[0]) if len(slopes) == 2 else Fraction(0)
    if bend < 0:
        slopes, bend = [Fraction(need_at(near[-1]) - need_at(near[0]), near[-1] - near[0])], Fraction(0)
    slope = slopes[0] if slopes else Fraction(0)

    def is_above(size: int) -> bool:
        along = size - near[0]
        beyond = size - near[1] if len(near) > 1 else 0
        return need_at(near[0]) + slope * along + bend * along * beyond > limit_bytes

    return low + bisect_left(range(low + 1, high), True, key=is_above)
