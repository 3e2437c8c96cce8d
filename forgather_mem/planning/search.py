"""The largest size that fits, found by few plans, and several such searches side by side.

A search is a generator: it yields a size, and is sent its plan. What rows need is nearly a line, so that two plans tell
where the third is to look.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from math import prod
from typing import TypeVar, cast

from forgather_mem.errors import PlanError
from forgather_mem.planning.result import Plan

Found = TypeVar("Found")
Asked = TypeVar("Asked")
Search = Generator[Asked, Plan, Found]
_MOST_PLANS = 10  # a search whose forecasts are all wrong ends with the best that it has found
_NEAR = 32  # a size that is larger by less than one in so many is not looked for: a guess


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
    at: Callable[[int], Asked], need: Callable[[Plan], int], room: int, first: int, most: int, own: Plan | None = None
) -> Search[Asked, tuple[int, Plan] | None]:
    """The largest size that fits, within 3 %, and its plan; None where not even 1 does.

    Args:
        at: What to ask for, for the plan of a size.
        need: The bytes that a plan needs; a larger size needs no less.
        room: What there is of them.
        first: The size to begin with.
        most: No larger one is asked for.
        own: The plan of the first, if there is one.
    """
    needs, best = dict[int, int](), None
    size, low, high = min(first, most), 0, most + 1
    while low < size < high and size - low > low // _NEAR and len(needs) < _MOST_PLANS:
        plan = own if own is not None and size == first else (yield at(size))
        needs[size] = need(plan)
        if needs[size] <= room:
            low, best = size, (size, plan)
        else:
            high = size
        size = _foretold(needs, room, low, high) if len(needs) > 1 else min(2 * size, most) if low else size // 2
        size = size if low else max(1, size)
    return best


def _foretold(needs: Mapping[int, int], room: int, low: int, high: int) -> int:
    """The largest size from the one to below the other that is to fit, by the curve through the three nearest needs.

    Attention that keeps its weights needs the square of a length.
    """
    near = sorted(needs, key=lambda size: abs(size - (low or high)))[:3]

    def at(size: int) -> float:
        return sum(needs[one] * prod((size - other) / (one - other) for other in near if other != one) for one in near)

    return low + bisect_left(range(low + 1, high), True, key=lambda size: at(size) > room)
