"""The largest batch or length whose plan fits, found by planning."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import isqrt

from forgather_mem.planning.result import Plan

_MOST_PLANS = 10
_EXACT = 32  # of larger sizes the largest is found but for the 32nd part


def largest_plan(
    plan_at: Callable[[int], Plan], need: Callable[[Plan], int], limit_bytes: int, first: int, most: int
) -> tuple[int, Plan] | None:
    """The largest size whose plan needs no more than the limit, and the plan; None where not even 1 does.

    Where a curve through the sizes so far meets the limit is planned next, until one fits that needs what the curve has
    said, or until the next one does not fit. Of sizes above 32 it is the largest but for a 32nd part.

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

    first = min(first, most)
    need_at(min(2 * first, most) if need_at(first) <= limit_bytes else max(1, first // 2))
    was_wide = 0
    while len(plans) < _MOST_PLANS:
        low = max((size for size in plans if need_at(size) <= limit_bytes), default=0)
        high = min((size for size in plans if need_at(size) > limit_bytes), default=most + 1)
        margin = max(1, low // _EXACT)
        if high - low <= margin:
            break
        curve = _curve({size: need_at(size) for size in plans}, limit_bytes)
        is_slow = 2 * (high - low) > was_wide > 0
        was_wide = high - low
        met = low + bisect_left(range(low + 1, high), True, key=lambda size: curve(size) > limit_bytes)
        at = isqrt(max(1, low) * high) if is_slow else met
        at = max(low + margin, min(high - margin, at)) if high in plans else max(low + 1, min(most, at))
        more = curve(at + max(1, at // _EXACT)) - curve(at)
        if need_at(at) <= limit_bytes < need_at(at) + more and 2 * abs(need_at(at) - curve(at)) < more:
            break
    best = max((size for size in plans if need_at(size) <= limit_bytes), default=None)
    return None if best is None else (best, plans[best])


def _curve(needs: Mapping[int, int], limit_bytes: int) -> Callable[[int], Fraction]:
    """The need by size, through the three sizes nearest to the limit, or two.

    Memory is linear in the rows of a batch; in their length it has a square where attention keeps its weights. A curve
    that bends down comes from the allocator's steps: a line takes its place.
    """
    near = sorted(sorted(needs, key=lambda size: abs(needs[size] - limit_bytes))[:3])
    slopes = [Fraction(needs[b] - needs[a], b - a) for a, b in itertools.pairwise(near)]
    bend = (slopes[1] - slopes[0]) / (near[2] - near[0]) if len(slopes) == 2 else Fraction(0)
    if bend < 0:
        slopes, bend = [Fraction(needs[near[-1]] - needs[near[0]], near[-1] - near[0])], Fraction(0)
    slope = slopes[0] if slopes else Fraction(0)
    return lambda size: needs[near[0]] + (slope + bend * (size - near[1] if bend else 0)) * (size - near[0])
