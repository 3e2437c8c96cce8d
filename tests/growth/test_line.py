"""The line through a series, compared with numpy's least squares."""

import random

import numpy as np
import pytest

from forgather_mem.growth.line import fit_line, fit_without_outliers


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
    assert line is not None
    assert line.slope == pytest.approx(100.0)
    assert fit_line(points).slope != pytest.approx(100.0, rel=0.01)
