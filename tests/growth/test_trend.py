"""A trend's verdict against generated series whose truth is known."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.growth.trend import MAX_POINTS, Series, Trend, judge, rate_throughout, slowing_rates
from tests.growth.trend_series import (
    INNOCENT,
    KIB,
    LEAKY_GROUNDS,
    MIB,
    Shape,
    curriculum,
    drawn_rows,
    fills_up,
    four_stages,
    in_stairs,
    make,
    sawtooth,
    uneven,
)

STEPS = (150, 300, 400)


@pytest.mark.parametrize("shape", INNOCENT, ids=lambda shape: shape.__name__)
def test_what_only_moves_is_no_leak(shape: Shape) -> None:
    verdicts = [judge(make(shape, 0, seed=seed, steps=steps)).kind for steps in STEPS for seed in range(20)]
    alarms = verdicts.count("leak")
    # a curriculum in three stages under noise as large as a stage can't always be told from a line
    assert alarms <= (3 if shape is curriculum else 0)


@pytest.mark.parametrize("per_step", [20 * KIB, 100 * KIB, 2 * MIB])
@pytest.mark.parametrize("shape", LEAKY_GROUNDS[:2] + LEAKY_GROUNDS[3:6], ids=lambda shape: shape.__name__)
def test_a_leak_is_found_whatever_else_moves(shape: Shape, per_step: float) -> None:
    for begin in (0.0, 0.3):
        for seed in range(8):
            trend = judge(make(shape, per_step, seed=seed, steps=300, begin=begin))
            assert trend.kind == "leak"
            assert trend.per_step == pytest.approx(per_step, rel=0.25)
            assert trend.low <= trend.per_step <= trend.high


def test_a_leak_that_starts_late_is_dated() -> None:
    for seed in range(10):
        trend = judge(make(LEAKY_GROUNDS[1], 200 * KIB, seed=seed, steps=400, begin=0.5))
        assert trend.kind == "leak"
        assert trend.since_step == pytest.approx(200, abs=40)
        assert trend.per_step == pytest.approx(200 * KIB, rel=0.25)


@pytest.mark.parametrize("period", [5, 10, 25, 50, 60])
def test_a_leak_in_stairs_is_found(period: int) -> None:
    for seed in range(10):
        trend = judge(make(in_stairs(50 * KIB, period), 0, seed=seed, steps=300))
        assert trend.kind == "leak"
        assert trend.per_step == pytest.approx(50 * KIB, rel=0.25)


@pytest.mark.parametrize("every", [4, 8, 10])
def test_stages_that_have_ended_are_no_leak_however_rarely_they_are_read(every: int) -> None:
    found = [judge(make(four_stages, 0, seed=seed, steps=240, every=every)).kind for seed in range(30)]
    assert "leak" not in found


def test_a_leak_under_a_sawtooth_is_found_from_its_lower_edge() -> None:
    found = [judge(make(sawtooth, MIB, seed=seed, steps=400)) for seed in range(20)]
    assert [trend.kind for trend in found].count("leak") >= 19
    assert all(trend.per_step == pytest.approx(MIB, rel=0.25) for trend in found if trend.kind == "leak")


def test_a_few_steps_tell_nothing() -> None:
    points = make(LEAKY_GROUNDS[0], MIB, seed=0, steps=50, every=1)
    assert judge(points).kind == "not enough data"
    assert judge([]) == Trend(kind="not enough data")
    few = judge([(step, 1e9 + MIB * step) for step in range(4, 32, 4)])
    assert (few.kind, few.steps, few.per_step) == ("not enough data", 24, MIB), "it is told what rises"


def test_what_has_just_begun_to_rise_is_not_called_free_of_leaks() -> None:
    trend = judge(make(LEAKY_GROUNDS[0], MIB, seed=0, steps=300, begin=0.8))
    assert trend.kind == "not enough data"


def test_what_only_goes_back_to_its_usual_size_has_not_begun_to_rise() -> None:
    points = [(4 * number, 150e6 - 330e3 * (number < 33 and number % 3 == 0)) for number in range(40)]
    assert judge(points).kind == "no leak"


def test_a_long_series_keeps_few_points_and_the_same_rate() -> None:
    series = Series()
    for step in range(100_000):
        series.add(step, 1e9 + 30_000.0 * step)
    assert MAX_POINTS // 2 <= len(series.points) <= MAX_POINTS
    assert judge(series.points).per_step == pytest.approx(30_000, rel=0.01)


def test_a_series_that_is_decimated_keeps_its_lowest_sizes() -> None:
    series = Series()
    for step in range(4 * MAX_POINTS):
        series.add(step, 5.0 if step % 4 == 1 else 1e9)
    assert {size for _, size in series.points} == {5.0}


@pytest.mark.parametrize("steps", [240, 400, 600, 1200])
@pytest.mark.parametrize("noise_bytes", [0, 20 * KIB, 300 * KIB])
def test_a_cache_that_fills_ever_more_slowly_is_not_called_a_leak(steps: int, noise_bytes: int) -> None:
    trends = [judge(make(fills_up(600, noise_bytes), 0, seed=seed, steps=steps)) for seed in range(8)]
    assert [trend.kind for trend in trends] == ["slowing"] * 8
    for trend in trends:
        between = 2 / 3 * (steps - trend.since_step)  # from the first third to the last
        assert trend.low / trend.high == pytest.approx(math.exp(-between / 600), abs=0.12)


@pytest.mark.parametrize(("per_step", "steps"), [(4, 400), (4, 600), (4, 1200), (8, 200), (8, 300), (8, 1200)])
def test_a_cache_of_rows_drawn_at_random_grows_ever_more_slowly(per_step: int, steps: int) -> None:
    kinds = [judge(make(drawn_rows(5000, per_step), 0, seed=seed, steps=steps)).kind for seed in range(8)]
    assert kinds == ["slowing"] * 8


@pytest.mark.parametrize(("spread", "often"), [(0.5, 1.0), (1.5, 1.0), (0.5, 0.1)])
def test_a_leak_in_uneven_pieces_does_not_seem_to_slow_down(spread: float, often: float) -> None:
    kinds = [
        judge(make(uneven(64 * KIB, spread, often), 0, seed=seed, steps=steps)).kind
        for steps in (150, 300, 600, 1200)
        for seed in range(15)
    ]
    assert kinds.count("slowing") <= 2


@pytest.mark.parametrize("shape", LEAKY_GROUNDS, ids=lambda shape: shape.__name__)
def test_steady_growth_is_not_called_slowing(shape: Shape) -> None:
    found = [
        judge(make(shape, per_step, seed=seed, steps=steps, begin=begin)).kind
        for per_step in (8 * KIB, 100 * KIB, 2 * MIB)
        for begin in (0.0, 0.3)
        for steps in (150, 300, 600)
        for seed in range(5)
    ]
    assert found.count("slowing") <= 0.02 * len(found)


sizes = st.lists(st.integers(0, 2**33), min_size=0, max_size=200)


@given(sizes)
def test_what_ends_at_its_lowest_has_leaked_nothing(found: list[int]) -> None:
    points = [(step * 4, float(size)) for step, size in enumerate(found)]
    points += [(len(points) * 4 + 4 * more, float(min(found, default=0))) for more in range(3)]
    assert judge(points).kind != "leak"


@given(sizes, st.sampled_from([2.0, 1024.0]), st.sampled_from([0.0, 2.0**36]))
def test_the_verdict_depends_on_neither_unit_nor_origin(found: list[int], unit: float, origin: float) -> None:
    points = [(step * 4, float(size)) for step, size in enumerate(found)]
    moved = [(step, size * unit + origin) for step, size in points]
    assert judge(moved, floor=4096 * unit).kind == judge(points, floor=4096).kind


@pytest.mark.parametrize("seen", [0, 1, 511, 512, 513, 1024, 1025, 3000])
def test_a_series_goes_on_from_its_points_as_if_it_had_seen_them(seen: int) -> None:
    chance = random.Random(seen)
    values = [chance.random() for _ in range(seen + 700)]
    whole, first = Series(), Series()
    for step, value in enumerate(values[:seen]):
        first.add(step, value)
    resumed = Series(first.points, first.seen)
    assert resumed.is_possible
    assert not Series(first.points[1:], first.seen).is_possible or not seen
    for step, value in enumerate(values):
        whole.add(step, value)
        if step >= seen:
            resumed.add(step, value)
    assert resumed.points == whole.points


def test_what_stays_where_it_is_has_no_rate_however_little_is_asked() -> None:
    assert rate_throughout([(step, 7_969_177_600.0) for step in range(100)]) is None


def test_the_rate_at_the_end_is_without_what_came_once() -> None:
    sizes = [(step, 2e6 * step + 4e6 * min(step, 40)) for step in range(0, 120, 4)]
    assert judge(sizes).per_step > 2.2e6 > Series(sizes).rate_at_end() == pytest.approx(2e6)
    assert Series(sizes[:1]).rate_at_end() == Series().rate_at_end() == 0


# ---- growth that slows down ----


def test_neither_a_line_nor_one_after_a_warm_up_slows_down() -> None:
    line = [(step, 1e6 * step) for step in range(0, 600, 4)]
    assert slowing_rates(line) is None
    assert slowing_rates([(step, size + 2e8 * (1 - math.exp(-step / 40))) for step, size in line]) is None


def test_what_filled_up_is_bounded_by_what_came_after() -> None:
    trend = judge([(step, 96.0 * KIB * min(step, 230)) for step in range(0, 380, 4)])
    assert (trend.kind, trend.high) == ("no leak", 4 * KIB)
