"""What is printed while a training runs: of series that are no leak next to nothing, of leaks at once."""

import random

import pytest

from forgather_mem import TrainingLoop
from forgather_mem.callbacks import LeakDetector
from forgather_mem.diagnose.leaks.alarms import LiveAlarm, is_held
from forgather_mem.diagnose.leaks.growing import LEAK
from forgather_mem.growth.trend import Series, Trend
from forgather_mem.telemetry.report import LeakReport, LeakSuspect
from tests.diagnose.leaks.live_series import INNOCENT, KIB, LEAKS, MIB, Kind, leak, named, sawtooth, told

GROWS = {"native": Trend(kind="leak", per_step=1.0 * MIB, since_step=100, steps=1000)}


@pytest.mark.parametrize("kind", INNOCENT, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("every", "seeds"), [(1, 1), (4, 4), pytest.param(1, 8, marks=pytest.mark.soak)])
def test_of_what_only_moves_nothing_is_printed_over_whole_runs(kind: Kind, every: int, seeds: int) -> None:
    runs = [kind(random.Random(seed), 4000) for seed in range(seeds)]
    assert [told(sizes, every).printed for sizes in runs] == [None] * seeds


@pytest.mark.parametrize("kind", LEAKS, ids=lambda kind: kind.__name__)
def test_a_leak_is_looked_into_early_and_printed_when_its_holder_is_known(kind: Kind) -> None:
    for seed in range(4):
        found = told(kind(random.Random(seed), 2600), held=True)
        assert found.suspected <= (120 if kind in LEAKS[:2] + LEAKS[4:7] else 700)
        assert found.printed <= found.suspected + max(48, found.suspected // 4)
        assert found.taken_back is None


@pytest.mark.parametrize("kind", LEAKS, ids=lambda kind: kind.__name__)
def test_a_leak_without_a_holder_is_printed_once_it_has_lasted(kind: Kind) -> None:
    found = told(kind(random.Random(1), 2600))
    assert LEAK.lasting_steps <= found.printed <= 1.25 * LEAK.lasting_steps


def test_a_tooth_longer_than_any_interval_is_taken_back_when_it_falls() -> None:
    found = told(sawtooth(3000)(random.Random(1), 9000))
    assert 0 < found.taken_back - found.printed < 3000


def test_growth_that_has_stopped_for_long_is_taken_back_while_it_runs() -> None:
    found = told([min(step, 230) * 96.0 * KIB for step in range(400)], held=True)
    assert found.printed is not None
    assert 290 <= found.taken_back <= 330


def test_growth_that_fills_memory_before_it_has_lasted_is_printed() -> None:
    live = LiveAlarm()
    assert not live.is_due(GROWS, step=300, full_step=501, leak=None)
    assert live.is_due(GROWS, step=300, full_step=500, leak=None)


def test_after_an_alarm_that_proved_wrong_a_holder_is_not_enough() -> None:
    live, series = LiveAlarm(), {"native": Series((step, float(MIB) * step) for step in range(0, 300, 4))}
    assert live.is_due(GROWS, step=300, full_step=None, leak=named(MIB))
    live.printed(GROWS, series, 300, "host memory grows 1.0 MiB a step")
    assert live.ended(series) is None
    series["native"].add(304, 0.0)
    assert live.ended(series) == "host memory grows 1.0 MiB a step (step 300): it has been given back since"
    assert live.taken_back
    assert not live.is_due(GROWS, step=400, full_step=None, leak=named(MIB))
    assert live.is_due(GROWS, step=100 + LEAK.lasting_steps, full_step=None, leak=named(MIB))


@pytest.mark.parametrize(
    ("verdict", "kind", "share", "expected"),
    [
        ("leak", "list", 1.0, True),
        ("leak", "list", 0.1, False),  # something else grows
        ("leak", "cycle", 1.0, False),  # the collector is on
        ("not enough data", "list", 1.0, False),  # bounded
    ],
)
def test_a_holder_counts_if_it_explains_the_growth_and_is_never_emptied(
    verdict: str, kind: str, share: float, expected: bool
) -> None:
    holder = LeakSuspect(type="x", bytes_per_step=share * 64 * KIB, count_per_step=1.0, held_by="A.b", kind=kind)
    report = LeakReport(verdict=verdict, bytes_per_step=64.0 * KIB, suspects=(holder,))  # type: ignore[arg-type]
    assert is_held(report) is expected


def test_a_leak_in_noise_that_hides_it_at_first_is_not_taken_back() -> None:
    for seed in range(4):
        assert told(leak(8 * KIB, 2 * MIB)(random.Random(seed), 6000)).taken_back is None


@pytest.mark.alone(forked=True)
def test_of_two_detectors_in_a_training_one_prints(capfd: pytest.CaptureFixture[str]) -> None:
    """`forgather-mem run` brings its own beside the script's."""
    kept = []
    loop = TrainingLoop(callbacks=[LeakDetector(), LeakDetector(every_steps=8)])
    with loop.train():
        for _ in range(400):
            with loop.step():
                kept.append(bytes(40_000))
    assert capfd.readouterr().err.count("Python's objects grow") == 1
