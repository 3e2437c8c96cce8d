"""What is said of the trends of a run."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgather_mem.diagnose.leaks.growing import floor_of
from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.diagnose.leaks.verdict import MOST_PER_STEP, TOTALS, Gain, sentence_of, unexplained, verdict_of
from forgather_mem.growth.trend import Series, Trend, judge
from forgather_mem.telemetry.report import LeakReport
from forgather_mem.units import GIB
from tests.growth.trend_series import INNOCENT, KIB, MIB, Shape, flat, four_stages, noisy, warm_up


def trend(kind: str, steps: int) -> Trend:
    return Trend(kind=kind, steps=steps, per_step=1e5, high=1e5)  # type: ignore[arg-type]


def test_after_many_steps_what_can_not_be_judged_is_too_uneven_and_not_too_early() -> None:
    leak = verdict_of({"anon": trend("not enough data", 400)}, [], 400)
    assert (leak.verdict, leak.undecided) == ("not enough data", "uneven")
    assert leak.why == "memory rose too unevenly over 400 steps to say whether it leaks"


def test_after_few_steps_it_is_too_early() -> None:
    assert verdict_of({"native": Trend(kind="not enough data", steps=70)}, [], 70) == LeakReport(judged=True)
    leak = verdict_of({"native": trend("not enough data", 70)}, [holder("trials", 1e5)], 70)
    assert (leak.verdict, leak.undecided) == ("not enough data", "early")
    assert "host memory grew 97.7 KiB a step over 70 steps, held by trials" in str(leak.why)


def test_what_does_not_grow_is_no_leak() -> None:
    assert verdict_of({"anon": Trend(kind="no leak", steps=400, high=1000.0)}, [], 400).verdict == "no leak"


def holder(held_by: str, rate: float, **more: Any) -> Suspect:
    return Suspect(kind="dict", type="dict", bytes_per_step=rate, count_per_step=1.0, held_by=held_by, **more)


GROWING = {"native": Trend(kind="leak", steps=400, per_step=1e5, low=1e5, high=1e5)}


def test_what_ends_at_a_limit_that_fits_is_told_with_what_it_holds_then() -> None:
    bounded = holder("Clips.decoded", 1e5, bounded="Clips.decoded holds 4,000 at most", full_bytes=2 * 10**8)
    leak = verdict_of(GROWING, [bounded], 400)
    assert (leak.verdict, leak.undecided) == ("no leak", "bounded")
    assert leak.why == "host memory grows 97.7 KiB a step, but Clips.decoded holds 4,000 at most, 190.7 MiB in all"
    assert verdict_of(GROWING, [bounded, holder("kept", 1e4)], 400).verdict == "not enough data", (
        "what else grows is open"
    )


def test_a_limit_beyond_what_is_left_is_a_leak() -> None:
    bounded = holder("Clips.decoded", 1e5, bounded="Clips.decoded holds 4,000 at most", full_bytes=10**6 * GIB)
    leak = verdict_of(GROWING, [bounded], 400)
    assert (leak.verdict, leak.why) == (
        "leak",
        "Clips.decoded holds 4,000 at most, 976.6 TiB in all: more than is left",
    )


def test_what_nobody_has_searched_for_is_not_said_to_be_held_by_no_python_object() -> None:
    leak = verdict_of(GROWING, [], 400, searched=False)
    assert (leak.verdict, leak.where, leak.suspects) == ("leak", "host", ())
    assert [one.kind for one in verdict_of(GROWING, [], 400).suspects] == ["made"]


EVERY = 4
HIDDEN = ("process", "children", "/dev/shm", "reserved")
shapes = st.sampled_from(INNOCENT)


def series_of(sizes: list[float]) -> Series:
    return Series((step, sizes[step]) for step in range(0, len(sizes), EVERY))


def judged(sizes: dict[str, list[float]], totals: dict[str, list[float]]) -> LeakReport:
    """The verdict on a training whose sizes and totals were these at each step."""
    known = {name: series_of(values) for name, values in sizes.items()}
    trends = {name: judge(series.points, floor_of(name)) for name, series in known.items()}
    whole = {name: series_of(values) for name, values in totals.items()}
    return verdict_of(trends, [], len(next(iter(sizes.values()))), unexplained(whole, known, trends))


def training(shape: Shape, seed: int, steps: int, hidden: dict[str, float]) -> tuple[dict[str, list[float]], ...]:
    """Sizes of this shape, and the totals that contain them and grow by `hidden` a step beside them."""
    chance = random.Random(seed)
    sizes = {name: shape(chance, steps) for name in ("native", "device")} | {"mapped": [0.0] * steps}
    parts = {name: [sizes[part] for part in TOTALS[name] if part in sizes] for name in HIDDEN}
    totals = {
        name: [sum(part[step] for part in parts[name]) + step * hidden.get(name, 0.0) for step in range(steps)]
        for name in HIDDEN
    }
    return sizes, totals


@settings(max_examples=150, deadline=None)
@given(shapes, st.integers(0, 999), st.integers(150, 900), st.sampled_from(HIDDEN), st.floats(0, 2 * MIB))
def test_no_leak_is_said_only_within_its_bound(shape: Shape, seed: int, steps: int, where: str, hidden: float) -> None:
    sizes, totals = training(shape, seed, steps, {where: hidden})
    leak = judged(sizes, totals)
    if leak.verdict == "no leak":
        later = steps // 2
        grown = hidden * (steps - later)
        segment = 20 * MIB if where == "reserved" else 0  # the allocator takes so much at a time
        # The rest of the steps: what a size has gained and lost again may stand for some of it
        fell = sum(max(values[later:]) - min(values[later:]) for values in sizes.values())
        assert grown <= 1.5 * (leak.bytes_per_step_high * (steps - later) + segment + fell)


@pytest.mark.parametrize("shape", [flat, noisy, warm_up, four_stages], ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("where", HIDDEN)
def test_what_grows_in_no_size_is_told_with_its_place(shape: Shape, where: str) -> None:
    for seed in range(8):
        leak = judged(*training(shape, seed, 400, {where: 300 * KIB}))
        assert (leak.verdict, leak.undecided) == ("not enough data", "unexplained")
        assert leak.unexplained_bytes == pytest.approx(300 * KIB * 150, rel=0.2)
        assert "grew that we can't attribute" in leak.why


@pytest.mark.parametrize("shape", INNOCENT, ids=lambda shape: shape.__name__)
def test_what_the_sizes_explain_changes_no_verdict(shape: Shape) -> None:
    for seed in range(8):
        sizes, totals = training(shape, seed, 300, {})
        assert judged(sizes, totals).verdict == judged(sizes, {}).verdict


def test_a_little_more_than_was_judged_raises_the_bound() -> None:
    leak = judged(*training(flat, 0, 400, {"process": 10.0 * KIB}))
    assert leak.verdict == "no leak"
    assert leak.bytes_per_step_high == pytest.approx(10 * KIB, rel=0.05)
    assert leak.bytes_per_step_high <= MOST_PER_STEP


def test_a_size_that_was_not_judged_explains_nothing() -> None:
    grows = [10.0 * MIB + step * MIB for step in range(60)]
    sizes = {"native": [1.0 * MIB] * 400, "workers": grows}
    leak = judged(sizes, {})
    assert leak.undecided == "unexplained"
    assert "in the data workers" in str(leak.why)


def test_free_memory_of_the_allocator_is_named() -> None:
    gain = Gain(name="process", bytes=40 * MIB, steps=100, kept_bytes=35 * MIB)
    assert sentence_of([gain, Gain(name="/dev/shm", bytes=2 * MIB, steps=100)]) == (
        "42.0 MiB grew that we can't attribute, in 100 steps: 40.0 MiB in this process, in none of the sizes that are "
        "judged (35.0 MiB of it free, kept by the C library: fragmentation), 2.0 MiB in /dev/shm, which other "
        "processes may use, too"
    )


def test_a_few_mib_that_were_freed_and_stay_with_the_c_library_are_no_leak() -> None:
    sizes, totals = training(flat, 0, 400, {"process": 30.0 * KIB})
    totals["kept"] = [step * 29.0 * KIB for step in range(400)]
    leak = judged(sizes, totals)
    assert leak.verdict == "no leak"
    assert leak.bytes_per_step_high <= MOST_PER_STEP
    assert leak.why == "4.2 MiB that were freed in the last 148 steps stay with the C library"


def test_freed_memory_that_fills_the_machine_is_still_told_as_growth() -> None:
    sizes, totals = training(flat, 0, 400, {"process": 300.0 * KIB})
    totals["kept"] = [step * 299.0 * KIB for step in range(400)]
    leak = judged(sizes, totals)
    assert leak.undecided == "unexplained"
    assert "of it free, kept by the C library: fragmentation" in str(leak.why)
