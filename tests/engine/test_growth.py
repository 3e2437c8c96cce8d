"""Growth per step, of series whose growth is known."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.engine.summary import Growth
from forgather_mem.telemetry.records import Sample
from forgather_mem.units import GIB, KIB, MIB


def growth_of(size_at: Callable[[int], float], steps: range, name: str = "host/anon_bytes") -> Growth:
    growth = Growth()
    for step in steps:
        growth.add(Sample("step_end", step, None, 0.0, {name: size_at(step)}))
    return growth


@given(st.lists(st.floats(0, 4 * MIB), min_size=60, max_size=200), st.integers(1, 10**6), st.integers(1, 8))
def test_it_is_the_growth_of_the_steps_whatever_lies_on_top_of_it(
    noise: list[float], first: int, mib_per_step: int
) -> None:
    per_step = 8 * mib_per_step * MIB
    sizes = [GIB + number * per_step + extra for number, extra in enumerate(noise)]
    steps = range(first, first + len(sizes))
    found = growth_of(lambda step: sizes[step - first], steps).of("process")
    assert found == pytest.approx(per_step, rel=0.1)


def test_what_the_first_steps_allocate_is_no_growth() -> None:
    steps = range(1, 101)
    assert growth_of(lambda step: GIB * (1 + (step > 5)), steps).of("process") == 0.0
    assert growth_of(lambda step: GIB + step * 3 * KIB, range(1, 20_000)).of("process") == 0.0, "too little in a step"
    assert growth_of(lambda step: 64 * GIB + step * MIB, steps).of("process") == 0.0, "too little of the whole"


def test_with_few_points_nothing_is_claimed() -> None:
    assert growth_of(lambda step: GIB * step, range(1, 10)).of("process") is None
    found = growth_of(lambda step: GIB * step, range(1, 21), "host/children_pss_bytes")
    assert (found.of("process"), found.since_step) == (None, 1)
    assert found.of("workers") == pytest.approx(GIB)


def test_records_between_the_steps_do_not_count() -> None:
    growth = growth_of(lambda step: GIB + step * MIB, range(1, 101))
    growth.add(Sample("evaluate", 100, None, 0.0, {"host/anon_bytes": 64.0 * GIB}))
    assert growth.of("process") == pytest.approx(MIB)
