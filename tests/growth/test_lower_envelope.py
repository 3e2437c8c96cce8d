"""The lower envelope, its rate and its rises."""

import random

import numpy as np
import pytest

from forgather_mem.growth.lower_envelope import edges_of, fit_line, fit_without_outliers, has_stairs, rate_of, stairs_of


def test_an_edge_is_the_lowest_size_of_its_stretch() -> None:
    points = [(step, 100.0 * step + (0.0 if step % 10 == 7 else 5000.0)) for step in range(80)]
    assert edges_of(points, 8) == [(step, 100.0 * step) for step in range(7, 80, 10)]


def test_the_rate_is_that_of_the_envelope_with_its_range() -> None:
    rate = rate_of([(10 * number, 300.0 * number) for number in range(8)])
    assert rate == (30.0, 30.0, 30.0)
    rate = rate_of([(0, 0.0), (10, 250.0), (20, 650.0), (30, 900.0), (40, 1300.0)])
    assert rate.low < rate.per_step < rate.high
    assert rate.per_step == pytest.approx(32, rel=0.1)


def test_rises_are_what_no_later_size_falls_below() -> None:
    points = [(step, 100.0 * (step // 25) + (900.0 if step == 40 else 0.0)) for step in range(100)]
    assert stairs_of(points) == [(25, 100.0), (50, 100.0), (75, 100.0)]
    assert has_stairs(points, 300.0, fewest=3)
    assert not has_stairs(points, 300.0, fewest=4)


@pytest.mark.parametrize("base", [0.0, 2.0**40])
def test_the_line_and_its_errors_are_those_of_least_squares(base: float) -> None:
    chance = random.Random(1)
    points = [(step, base + 500.0 * step + chance.gauss(0, 3000)) for step in range(0, 400, 3)]
    line = fit_line(points)
    steps, sizes = np.array(points).T
    (slope, intercept), covariance = np.polyfit(steps, sizes - base, 1, cov=True)
    assert line.slope == pytest.approx(slope, rel=1e-4)
    assert line.at(0) - base == pytest.approx(intercept, rel=1e-3)
    assert line.slope_error == pytest.approx(covariance[0, 0] ** 0.5, rel=1e-3)


def test_spikes_do_not_move_the_line() -> None:
    points = [(step, 100.0 * step + (1e6 if step > 45 and step % 9 == 0 else 0.0)) for step in range(1, 90)]
    line = fit_without_outliers(points)
    assert line.slope == pytest.approx(100.0)
    assert fit_line(points).slope != pytest.approx(100.0, rel=0.01)
