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
from forgather_mem.planning.result import Plan
from forgather_mem.planning.storage_log import Trace

Found = TypeVar("Found")
Asked = TypeVar("Asked")
Search = Generator[Asked, Plan, Found]
Fits = Callable[[int, Trace], bool]  # by the bytes of tensors at the peak, and by how they come and go
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
    at: Callable[[int], Asked], fits: Fits, first: int, most: int, own: Plan | None = None
) -> Search[Asked, tuple[int, Plan] | None]:
    """The largest size that fits, and its plan; None where not even 1 does.

    Args:
        at: What to ask for, for the plan of a size.
        fits: Whether a plan does; a smaller one does, too. With an empty trace, whether it does not by its peak alone.
        first: The size to begin with.
        most: No larger one is asked for.
        own: The plan of the first, if there is one.
    """
    first, own = (first, own) if first <= most else (most, None)
    size, plans, low, high = first, dict[int, Plan](), 0, most + 1
    while size not in plans and len(plans) < _MOST_PLANS:
        plans[size] = own or (yield at(size))
        own = None
        low, high = (size, high) if fits(plans[size].peak_bytes, plans[size].trace) else (low, size)
        size = min(2 * first, most) if low else max(1, first // 2)
        if len(plans) > 1:
            foretold = _foretold(plans, low or high)
            more = bisect_left(range(low + 1, high), True, key=lambda size: not foretold(size, fits))
            size = max(1, low + more)
    return (low, plans[low]) if low else None


def _foretold(plans: Mapping[int, Plan], near: int) -> Callable[[int, Fits], bool]:
    """Whether a size will fit, from the three nearest to this one that made the same storages.

    Attention that keeps its weights needs the square of a length. Where no two are alike the peak is a line.
    """
    known = sorted(plans, key=lambda size: abs(size - near))
    events = plans[known[0]].trace.events
    alike = [size for size in known if plans[size].trace.events == events][:3]
    if len(alike) == 1:
        peaks = [[plans[size].peak_bytes] for size in known[:2]]
        return lambda size, fits: fits(int(_through(known[:2], peaks, size)[0]), Trace())
    numbers = np.array(events)
    are_made = numbers >= 0
    numbers = np.where(are_made, numbers, ~numbers)
    sizes = [plans[size].trace.sizes for size in alike]

    def at(size: int, fits: Fits) -> bool:
        now = _through(alike, sizes, size).round().clip(0).astype(np.int64)
        peak = int(np.where(are_made, now[numbers], -now[numbers]).cumsum().max())
        # To simulate the allocator takes a hundred times as long as a sum
        return fits(peak, Trace()) and fits(peak, Trace(events, now.tolist()))

    return at


def _through(known: Sequence[int], values: Sequence[Sequence[float]], size: int) -> np.ndarray:
    """The values at this size of the polynomials through those of the known ones (Lagrange)."""
    weights = [prod((size - other) / (one - other) for other in known if other != one) for one in known]
    return np.array(weights) @ np.array(values, dtype=np.float64)
