"""A line in noise is found, and nothing else is taken for one."""

import random

import pytest

from forgather_mem.growth.trend import line_in_noise


def noise(seed: int) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(0, 100_000) for _ in range(120)]


def test_a_line_is_found_with_its_range() -> None:
    for seed in range(10):
        rate = line_in_noise([(4 * at, 4 * at * 2000.0 + off) for at, off in enumerate(noise(seed))], 500.0)
        assert rate is not None
        assert rate.per_step == pytest.approx(2000, rel=0.25)
        assert rate.low < rate.per_step < rate.high


def test_noise_alone_a_sawtooth_and_three_levels_are_no_line() -> None:
    assert all(
        line_in_noise([(4 * at, off) for at, off in enumerate(noise(seed))], 500.0) is None for seed in range(10)
    )
    assert line_in_noise([(4 * at, 30_000.0 * (at % 40)) for at in range(120)], 500.0) is None
    levels = [(4 * at, 800_000.0 * (at // 40) + off) for at, off in enumerate(noise(0))]
    assert line_in_noise(levels, 500.0) is None
