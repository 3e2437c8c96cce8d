"""Forecasts of series that are known: those that fill up, and those that only move."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from forgather_mem.diagnose.alerts.forecast import Filling

CAPACITY = 64e9


def fill(sizes: Iterator[float] | list[float], within_steps: int = 200) -> list[tuple[int, Any]]:
    """The forecasts of a series, at each fourth step as in a training, with their steps."""
    filling, told = Filling(within_steps), []
    for step, size in enumerate(sizes, 1):
        filling.add(step, size)
        found = filling.forecast(CAPACITY) if not step % 4 else None
        if found is not None:
            told.append((step, found))
    return told


@pytest.mark.parametrize("begins_at", [0, 700])
@pytest.mark.parametrize("steps", [80, 300, 2500])
def test_linear_growth_is_forecast_within_a_tenth_at_20_steps_ahead(steps: int, begins_at: int) -> None:
    rng = random.Random(steps)
    full, slope = begins_at + steps, 0.8 * CAPACITY / steps
    spikes = [0.0, 0.1 * CAPACITY]
    sizes = [
        0.2 * CAPACITY + slope * max(0, step - begins_at) + rng.gauss(0, slope) + rng.choices(spikes, [0.97, 0.03])[0]
        for step in range(1, full - 19)
    ]
    told = fill(sizes)
    step, last = told[-1]
    assert step > full - 24
    assert last.steps_left == pytest.approx(full - step, abs=2)
    assert last.low_step - 1 <= full <= last.high_step + 1
    assert full - told[0][0] >= min(190, steps / 4), "and it was told in time"


def steady(rng: random.Random) -> list[float]:
    level, noise = rng.uniform(0.3, 0.95), rng.choice([0, 0.001, 0.01])
    return [CAPACITY * (level + rng.gauss(0, noise)) for _ in range(10_000)]


def sawtooth(rng: random.Random) -> list[float]:
    base, height, period = rng.uniform(0.2, 0.6), rng.uniform(0.05, 0.3), rng.choice([7, 20, 50, 100, 200, 500, 1500])
    return [CAPACITY * (base + height * (step % period) / period + rng.gauss(0, 0.002)) for step in range(10_000)]


def spiky(rng: random.Random) -> list[float]:
    base, often, height = rng.uniform(0.3, 0.8), rng.choice([0.001, 0.01, 0.05]), rng.uniform(0.05, 0.18)
    return [
        CAPACITY * (base + (height * rng.random() if rng.random() < often else 0) + abs(rng.gauss(0, 0.002)))
        for _ in range(10_000)
    ]


def filling_cache(rng: random.Random) -> list[float]:
    return [CAPACITY * (0.3 + 0.5 * (1 - 2 ** (-step / 300)) + rng.gauss(0, 0.002)) for step in range(10_000)]


@pytest.mark.parametrize("series", [steady, sawtooth, spiky, filling_cache])
def test_ten_thousand_steps_that_only_move_raise_no_alert(series: Any) -> None:
    for seed in range(3):
        assert fill(series(random.Random(seed))) == []
