"""Searches for the largest size that fits."""

import os
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.errors import PlanError
from forgather_mem.planning.card import reserved_by_allocator
from forgather_mem.planning.result import PhasePlan, Plan
from forgather_mem.planning.search import Search, largest_plan, side_by_side
from forgather_mem.planning.storage_log import Trace

EVENTS = [0, 1, 2, ~1, 3, ~2, ~3, ~0]


def plan_of(sizes: list[int], events: list[int]) -> Plan:
    peak = alive = 0
    for event in events:
        alive += sizes[event] if event >= 0 else -sizes[~event]
        peak = max(peak, alive)
    row = PhasePlan(step=1, phase="forward", bytes=peak, parts={})
    return Plan(
        peak_bytes=peak, phase="forward", step=1, reserved_bytes=peak, phases=(row,),
        trace=Trace(array("q", events), array("q", sizes)),
    )  # fmt: skip


def found(
    plan_at: Callable[[int], Plan], limit: int, first: int, most: int = 10**6, is_simulated: bool = False
) -> tuple[int | None, int]:
    """The answer, and how many plans it took."""
    asked = []

    def begun(size: int) -> Callable[[], Plan]:
        asked.append(size)
        return lambda: plan_at(size)

    def fits(peak_bytes: int, trace: Trace) -> bool:
        return peak_bytes <= limit and not (is_simulated and reserved_by_allocator(*trace[:2], limit) is None)

    search: Search[int, tuple[int, Plan] | None] = largest_plan(lambda size: size, fits, first, most)
    (largest,) = side_by_side([search], begun)
    assert not isinstance(largest, PlanError)
    return (largest[0] if largest is not None else None), len(asked)


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), min_size=4, max_size=4),
    st.integers(1, 64),
    st.integers(0, 10**10),
)
def test_where_storages_grow_with_the_rows_three_plans_are_exact(
    laws: list[tuple[int, int]], first: int, limit: int
) -> None:
    def plan_at(rows: int) -> Plan:
        return plan_of([base + slope * rows for base, slope in laws], EVENTS)

    size, plans = found(plan_at, limit, first, 10**4)
    fitting = [rows for rows in (size or 0, (size or 0) + 1) if rows and plan_at(rows).peak_bytes <= limit]
    assert fitting == ([size] if size else []) or size == 10**4
    assert plans <= 4


def test_squares_take_one_more() -> None:
    def plan_at(length: int) -> Plan:
        return plan_of([500, 3 * length, length**2, 7], EVENTS)

    size, plans = found(plan_at, 10**6, 64)
    assert size is not None
    assert plan_at(size).peak_bytes <= 10**6 < plan_at(size + 1).peak_bytes
    assert plans <= 4


def test_the_allocator_is_simulated_at_sizes_that_are_not_planned() -> None:
    def plan_at(rows: int) -> Plan:
        return plan_of([10**6, 70_000 * rows, 900_000 * rows, 3_000_000 * rows], EVENTS)

    size, plans = found(plan_at, 10**10, 8, is_simulated=True)
    assert size is not None
    fitting = [reserved_by_allocator(*plan_at(rows).trace[:2], 10**10) is not None for rows in (size, size + 1)]
    assert fitting == [True, False]
    assert plans == 3


def test_plans_that_are_made_of_other_storages_are_a_line() -> None:
    def plan_at(rows: int) -> Plan:
        return plan_of([1000 + 7 * rows] * (1 + rows % 2), [0])

    assert found(plan_at, 8000, 8) == (1000, 3)


def test_no_more_is_asked_than_is_allowed() -> None:
    assert found(lambda length: plan_of([length], [0]), 10**6, 512, most=2048)[0] == 2048
    assert found(lambda length: plan_of([length], [0]), 10**6, 512, most=100) == (100, 1)


@pytest.mark.parametrize("first", [1, 8])
def test_nothing_fits(first: int) -> None:
    assert found(lambda rows: plan_of([1000 + rows], [0]), 100, first)[0] is None


def test_plans_are_made_side_by_side() -> None:
    """As many as there are processors; one that fails ends its own search alone."""
    alive = most_alive = 0

    def begun(size: int) -> Callable[[], Plan]:
        nonlocal alive, most_alive
        alive += 1
        most_alive = max(alive, most_alive)

        def wait() -> Plan:
            nonlocal alive
            alive -= 1
            if size == 3:
                raise PlanError("three")
            return plan_of([size], [0])

        return wait

    def search(size: int) -> Search[int, int]:
        return (yield size).peak_bytes + (yield 10 * size).peak_bytes

    one, failed, other, last = side_by_side([search(1), search(3), search(4), search(5)], begun)
    assert (one, str(failed), other, last) == (11, "three", 44, 55)
    assert most_alive == min(4, len(os.sched_getaffinity(0)))
