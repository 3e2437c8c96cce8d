"""Searches for the largest size that fits."""

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.errors import PlanError
from forgather_mem.planning.answers import Search, largest_plan, side_by_side
from forgather_mem.planning.result import PhasePlan, Plan


def plan_of(size: int) -> Plan:
    row = PhasePlan(step=1, phase="forward", bytes=size, parts={})
    return Plan(peak_bytes=size, phase="forward", step=1, reserved_bytes=size, phases=(row,))


def found(law: Callable[[int], int], room: int, first: int, most: int = 10**6) -> tuple[int, int]:
    """The answer, 0 for none, and how many plans it took."""
    asked = []

    def begun(size: int) -> Callable[[], Plan]:
        asked.append(size)
        return lambda: plan_of(law(size))

    search = largest_plan(lambda size: size, lambda plan: plan.peak_bytes, room, first, most)
    (largest,) = side_by_side([search], begun)
    assert not isinstance(largest, PlanError)
    return (largest[0] if largest is not None else 0), len(asked)


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**6)), min_size=1, max_size=3),
    st.integers(1, 64),
    st.integers(0, 10**10),
)
def test_of_lines_the_largest_is_found_within_three_percent(laws: list[tuple[int, int]], first: int, room: int) -> None:
    def law(rows: int) -> int:
        return max(base + slope * rows for base, slope in laws)

    size, plans = found(law, room, first, 10**4)
    assert size == 0 or law(size) <= room
    assert size == 10**4 or law(size + 1 + size // 32) > room
    assert plans <= (4 if len(laws) == 1 else 10)


def test_a_line_takes_four_plans_and_squares_a_few_more() -> None:
    assert found(lambda rows: 1000 + 7 * rows, 8000, 8) == (1000, 4)
    size, plans = found(lambda length: 500 + 3 * length + length**2, 10**6, 64)
    assert 960 <= size <= 998
    assert plans <= 6


def test_a_forecast_ends_no_search() -> None:
    """Up to a size that it has planned a need rises faster than behind it."""
    size, _ = found(lambda rows: 100 * min(rows, 140) + 50 * max(0, rows - 140), 15_000, 32)
    assert 155 <= size <= 160


def test_no_more_is_asked_than_is_allowed() -> None:
    assert found(lambda length: length, 10**6, 512, most=2048)[0] == 2048
    assert found(lambda length: length, 10**6, 512, most=100) == (100, 1)
    assert found(lambda _: 5, 10, 8, most=100)[0] == 100


@pytest.mark.parametrize("first", [1, 8])
def test_nothing_fits(first: int) -> None:
    assert found(lambda rows: 1000 + rows, 100, first)[0] == 0


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
            return plan_of(size)

        return wait

    def search(size: int) -> Search[int, int]:
        return (yield size).peak_bytes + (yield 10 * size).peak_bytes

    one, failed, other, last = side_by_side([search(1), search(3), search(4), search(5)], begun)
    assert (one, str(failed), other, last) == (11, "three", 44, 55)
    assert most_alive == min(4, len(os.sched_getaffinity(0)))
