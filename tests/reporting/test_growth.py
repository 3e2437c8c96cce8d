"""Growth per step, against numpy's own line through the same points."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.reporting.growth import Growth
from forgather_mem.telemetry.records import Sample
from forgather_mem.units import GIB, KIB, MIB

WARM_UP = 10


def growth_of(size_at: Callable[[int], float], steps: range, name: str = "host/anon_bytes") -> Growth:
    growth = Growth()
    for step in steps:
        growth.add(Sample("step_end", step, None, 0.0, {name: size_at(step)}))
    return growth


@given(st.lists(st.floats(0, 64 * MIB), min_size=40, max_size=200), st.integers(1, 10**6), st.integers(1, 8))
def test_it_is_the_slope_of_the_line_through_the_points_after_the_first_steps(
    noise: list[float], first: int, mib_per_step: int
) -> None:
    sizes = [GIB + number * 8 * mib_per_step * MIB + extra for number, extra in enumerate(noise)]
    steps = range(first, first + len(sizes))
    found = growth_of(lambda step: sizes[step - first], steps).of("process")
    expected = np.polyfit(np.arange(len(sizes) - WARM_UP), sizes[WARM_UP:], 1)[0]
    assert found == pytest.approx(expected, rel=1e-6)


def test_what_the_first_steps_allocate_is_no_growth() -> None:
    steps = range(1, 101)
    assert growth_of(lambda step: GIB * (1 + (step > 5)), steps).of("process") == 0.0
    assert growth_of(lambda step: GIB + step * 3 * KIB, range(1, 20_000)).of("process") == 0.0, "too little in a step"
    assert growth_of(lambda step: 64 * GIB + step * MIB, steps).of("process") == 0.0, "too little of the whole"


def test_with_few_points_nothing_is_claimed() -> None:
    assert growth_of(lambda step: GIB * step, range(1, 30)).of("process") is None
    found = growth_of(lambda step: GIB * step, range(1, 31), "host/children_pss_bytes")
    assert (found.of("process"), found.since_step) == (None, 1)
    assert found.of("workers") == pytest.approx(GIB)


def test_records_between_the_steps_do_not_count() -> None:
    growth = growth_of(lambda step: GIB + step * MIB, range(1, 101))
    growth.add(Sample("evaluate", 100, None, 0.0, {"host/anon_bytes": 64.0 * GIB}))
    assert growth.of("process") == pytest.approx(MIB)
