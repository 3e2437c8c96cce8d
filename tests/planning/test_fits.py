"""The largest size that fits, by as few plans as possible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.planning.fits import largest_plan
from forgather_mem.planning.result import PhasePlan, Plan

pytestmark = pytest.mark.plans


def plan_of(size: int) -> Plan:
    row = PhasePlan(step=1, phase="forward", bytes=size, parts={})
    return Plan(peak_bytes=size, phase="forward", step=1, reserved_bytes=size, phases=(row,))


def found(law: Callable[[int], int], limit: int, first: int, most: int = 10**6) -> tuple[int | None, int]:
    """The answer, and how many plans it took."""
    asked = []

    def plan_at(size: int) -> Plan:
        asked.append(size)
        return plan_of(law(size))

    largest = largest_plan(plan_at, lambda plan: plan.peak_bytes, limit, first, most)
    return (largest[0] if largest is not None else None), len(asked)


@given(st.integers(0, 10**9), st.integers(1, 10**7), st.integers(1, 64), st.integers(0, 10**10))
def test_on_a_line_it_is_exact_but_for_a_32nd(base: int, slope: int, first: int, limit: int) -> None:
    size, plans = found(lambda rows: base + slope * rows, limit, first)
    expected = min(10**6, (limit - base) // slope)
    assert (size or 0) <= max(0, expected) <= (size or 0) + (size or 0) // 32
    assert plans <= 3


def test_on_a_curve_too() -> None:
    size, plans = found(lambda length: 500 + 3 * length + length**2, 10**6, 64)
    assert size is not None
    assert 998 - 998 // 32 <= size <= 998
    assert plans <= 10


def test_steps_of_the_allocator_lead_to_no_wrong_way() -> None:
    size, plans = found(lambda rows: 20 * (1 + rows * 7 // 20), 70_000, 8)
    assert size is not None
    assert 20 * (1 + size * 7 // 20) <= 70_000 < 20 * (1 + (size + size // 32) * 7 // 20)
    assert plans <= 10


def test_no_more_is_asked_than_is_allowed() -> None:
    assert found(lambda length: length, 10**6, 512, most=2048)[0] == 2048


@pytest.mark.parametrize("first", [1, 8])
def test_nothing_fits(first: int) -> None:
    assert found(lambda rows: 1000 + rows, 100, first)[0] is None
