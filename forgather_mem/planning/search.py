"""The largest size that fits, found by few plans, and several such searches side by side.

A search is a generator: it yields a size, and is sent its plan. Of two plans that made the same storages in the same
order each storage is a line by its size, of three a parabola; so the peak and the allocator's segments of any other
size are computed, and only what comes of it is planned.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from math import prod
from typing import TypeVar, cast

import numpy as np

from forgather_mem.errors import PlanError
from forgather_mem.planning.card import reserved_by_allocator
from forgather_mem.planning.result import Plan

Found = TypeVar("Found")
Asked = TypeVar("Asked")
Search = Generator[Asked, Plan, Found]
Need = Callable[[int, int], int]  # of the bytes of tensors at the peak, and of those that the allocator reserves
_MOST_PLANS = 10  # a search whose forecasts are all wrong ends with the best that it has found


def side_by_side(
    searches: Sequence[Search[Asked, Found]], begin: Callable[[Asked], Callable[[], Plan]]
) -> list[Found | PlanError]:
    """What each comes to, or why it could not be planned; as many plans are made at once as there are processors.

    Args:
        searches: Each yields what it asks for.
        begin: Begins a plan; what it returns waits for it.
    """
    found: dict[int, Found | PlanError] = {}
    told: deque[tuple[int, Plan | None]] = deque((number, None) for number in range(len(searches)))
    begun: deque[tuple[int, Callable[[], Plan]]] = deque()
    while told or begun:
        try:
            if told and len(begun) < len(os.sched_getaffinity(0)):
                number, plan = told.popleft()
                begun.append((number, begin(searches[number].send(plan))))  # type: ignore[arg-type]
            else:
                number, wait = begun.popleft()
                told.appendleft((number, wait()))  # before what has not begun: its way is longer
        except StopIteration as end:
            found[number] = end.value
        except PlanError as error:
            found[number] = error
    return [found[number] for number in range(len(searches))]


def all_of(found: Sequence[Found | PlanError]) -> list[Found]:
    """The same, where all are needed.

    Raises:
        PlanError: the first of those.
    """
    for one in found:
        if isinstance(one, PlanError):
            raise one
    return cast(list[Found], found)


def largest_plan(
    at: Callable[[int], Asked], need: Need, limit_bytes: int, first: int, most: int, own: Plan | None = None
) -> Search[Asked, tuple[int, Plan] | None]:
    """The largest size whose plan needs no more than the limit, and the plan; None where not even 1 does.

    Args:
        at: What to ask for, for the plan of a size.
        need: The bytes that are needed.
        limit_bytes: The limit.
        first: The size to begin with.
        most: No larger one is asked for.
        own: The plan of the first, if there is one.
    """

    def fits(size: int) -> bool:
        return need(plans[size].peak_bytes, plans[size].reserved_bytes) <= limit_bytes

    first, own = (first, own) if first <= most else (most, None)
    plans = {first: own or (yield at(first))}
    size = min(2 * first, most) if fits(first) else max(1, first // 2)
    while size not in plans and len(plans) < _MOST_PLANS:
        plans[size] = yield at(size)
        low = max(filter(fits, plans), default=0)
        high = min((size for size in plans if not fits(size)), default=most + 1)
        foretold = _foretold(plans, need, limit_bytes)
        more = bisect_left(range(low + 1, high), True, key=lambda size: foretold(size) > limit_bytes)
        size = max(1, low + more)
    best = max(filter(fits, plans), default=None)
    return None if best is None else (best, plans[best])


def _foretold(plans: Mapping[int, Plan], need: Need, limit_bytes: int) -> Callable[[int], float]:
    """What a size will need, from those that are nearest to the limit.

    More than the limit as soon as that is certain: to simulate the allocator takes a hundred times as long as a sum.
    """
    known = {size: need(plan.peak_bytes, plan.reserved_bytes) for size, plan in plans.items()}
    near = sorted(known, key=lambda size: abs(known[size] - limit_bytes))
    events = plans[near[0]].trace.events
    # Three, since attention that keeps its weights needs the square of a length
    alike = [size for size in near if plans[size].trace.events == events][:3]
    if len(alike) == 1:
        return lambda size: float(_through(near[:2], [[known[one]] for one in near[:2]], size)[0])
    sizes = [plans[one].trace.sizes for one in alike]
    numbers = np.array(events)
    are_made = numbers >= 0
    numbers = np.where(are_made, numbers, ~numbers)

    def at(size: int) -> float:
        now = _through(alike, sizes, size).round().clip(0).astype(np.int64)
        peak = int(np.where(are_made, now[numbers], -now[numbers]).cumsum().max())
        least = need(peak, 0)
        return least if least > limit_bytes else need(peak, reserved_by_allocator(events, now.tolist()))

    return at


def _through(known: Sequence[int], values: Sequence[Sequence[float]], size: int) -> np.ndarray:
    """The values at this size of the polynomials through those of the known ones (Lagrange)."""
    weights = [prod((size - other) / (one - other) for other in known if other != one) for one in known]
    return np.array(weights) @ np.array(values, dtype=np.float64)
