"""Growth that slows down is told from growth that is steady."""

import math

import pytest

from forgather_mem.growth.trend import slowing_rates

Series = list[tuple[int, float]]


@pytest.mark.parametrize("steps_to_fill", [100, 300, 600])
def test_the_rates_of_the_thirds_are_those_of_the_curve(steps_to_fill: int) -> None:
    filling: Series = [(step, 1e9 * (1 - math.exp(-step / steps_to_fill))) for step in range(0, 600, 4)]
    rates = slowing_rates(filling)
    assert rates is not None
    assert rates[1] / rates[0] == pytest.approx(math.exp(-400 / steps_to_fill), abs=0.05)


def test_neither_a_line_nor_one_after_a_warm_up_slows_down() -> None:
    line: Series = [(step, 1e6 * step) for step in range(0, 600, 4)]
    assert slowing_rates(line) is None
    assert slowing_rates([(step, size + 2e8 * (1 - math.exp(-step / 40))) for step, size in line]) is None
