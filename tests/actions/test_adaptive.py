"""Clears and trims that do not pay stop, those that pay go on: with memory that is really freed and taken again."""

import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forgather_mem.actions import Adaptive, ClearCache, Collect, TrimHost
from forgather_mem.actions.adaptive import pays
from forgather_mem.actions.trim import trim_host
from forgather_mem.engine.run import Run
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.records import Outcome
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from forgather_mem.units import GIB, MIB
from tests.engine.test_run import new_loop
from tests.fragments import Fragments, needs_glibc
from tests.simulated_device import SimulatedDevice

SCHEDULED = 100


@pytest.fixture
def fragments() -> Iterator[Fragments]:
    fragments = Fragments()
    yield fragments
    fragments.close()


def looped(rules: list[Rule], steps: int, work: Callable[[int], None] = lambda step: None) -> tuple[Run, Capture]:
    """A run of so many steps with these rules, and its records."""
    loop, capture = new_loop(), Capture()
    loop.add(rules, [capture])
    for step in range(1, steps + 1):
        work(step)
        loop.step()
    loop.run.close()
    return loop.run, capture


def done_at(action: Any, work: Callable[[int], None], *, every: int = 1, scheduled: int = SCHEDULED) -> list[int]:
    """The steps after which an action was really done, of so many at which it was due."""
    _, capture = looped([Rule(Every(steps=every), [Adaptive(action)])], scheduled * every, work)
    name = {"trim": "trim/time_s", "clear": "cache/time_s", "collect": "collect/time_s"}[action.books]
    return [sample.step for sample in capture.samples if name in sample.values]


class Trim:
    """`TrimHost` without its budget of time, in which steps as short as these would leave no room."""

    books = "trim"

    def __call__(self, moment: Any, sample: Any) -> dict[str, float]:
        return trim_host()


def stopped(done: list[int]) -> float:
    """The share of what was due after the third one that was not done."""
    return 1 - (len(done) - 3) / (SCHEDULED - 3)


# ---- where it is useless ----


@pytest.mark.slow
@needs_glibc
@pytest.mark.fresh  # a process that grows by a tenth has it come back
@pytest.mark.parametrize("every", [1, 2, 5])
def test_trims_of_what_the_next_step_takes_again_stop(fragments: Fragments, every: int) -> None:
    fragments.leave_holes(16)
    done = done_at(Trim(), lambda step: fragments.use_holes(16), every=every)
    assert stopped(done) >= 0.95
    assert done[:3] == [every, 2 * every, 4 * every]


@needs_glibc
def test_trims_that_find_nothing_stop() -> None:
    trim_host()
    assert stopped(done_at(Trim(), lambda step: None)) >= 0.95


@pytest.mark.parametrize("lengths", [(512,), (512, 400, 450)])
def test_clears_of_what_the_next_steps_take_again_stop(device: SimulatedDevice, lengths: tuple[int, ...]) -> None:
    done = done_at(ClearCache(), lambda step: device.spike(lengths[step % len(lengths)]), every=5)
    assert stopped(done) >= 0.95


def test_collections_that_find_nothing_stop() -> None:
    gc.collect()
    assert stopped(done_at(Collect(0), lambda step: None)) >= 0.95


def test_one_line_says_why(fragments: Fragments, caplog: pytest.LogCaptureFixture) -> None:
    run, capture = looped([Rule(Every(steps=1), [Adaptive(Trim())])], 400)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("Trim does not pay off: the call at step ")
    assert line.endswith("from now on the interval is doubled after each call, until one pays off")
    assert [finding.kind for finding in run.summary.findings] == ["adaptive"]
    calls = [sample.step for sample in capture.samples if "trim/time_s" in sample.values]
    assert calls == [1, 2, 4, 8, 16, 32, 64, 128, 256]


# ---- where it helps ----


@pytest.mark.slow
@pytest.mark.fresh
@needs_glibc
@pytest.mark.parametrize("every", [1, 5])
def test_where_each_step_leaves_new_holes_every_trim_is_done(fragments: Fragments, every: int) -> None:
    done = done_at(Trim(), lambda step: fragments.leave_holes(4), every=every, scheduled=40)
    assert done == [every * number for number in range(1, 41)]


@pytest.mark.fresh
@needs_glibc
def test_where_a_third_of_what_is_freed_stays_free_every_trim_is_done(fragments: Fragments) -> None:
    fragments.leave_holes(16)

    def work(step: int) -> None:
        fragments.use_holes(12)
        fragments.leave_holes(6)

    assert len(done_at(Trim(), work, scheduled=40)) == 40


def test_where_a_cleared_cache_stays_small_every_clear_is_done(device: SimulatedDevice) -> None:
    def work(step: int) -> None:
        device.spike(4000 if step % 10 == 0 else 300)  # one long batch in ten, after which the cache is cleared

    assert len(done_at(ClearCache(), work, every=10)) == SCHEDULED


def test_where_a_cache_grows_as_soon_as_it_is_left_alone_clearing_comes_back_and_stays(device: SimulatedDevice) -> None:
    """Each step fills what was cleared, but without a clear finds nothing that fits and reserves as much again."""

    def work(step: int) -> None:
        device.reserved += 500

    done = done_at(ClearCache(), work, scheduled=60)
    assert len(done) >= 57
    assert done[-40:] == list(range(21, 61))


def test_a_growing_model_is_not_taken_for_a_growing_cache(device: SimulatedDevice) -> None:
    def work(step: int) -> None:
        device.hold(10 * step)  # a leak of live tensors
        device.spike(500)

    assert stopped(done_at(ClearCache(), work)) >= 0.95


def test_collections_that_find_garbage_go_on(uncollected: None) -> None:
    def work(step: int) -> None:
        for _ in range(1100):
            cycle: list[Any] = []
            cycle.append(cycle)

    assert len(done_at(Collect(), work, scheduled=10)) == 10


@pytest.mark.fresh
def test_where_objects_have_grown_by_a_tenth_a_collection_comes_at_once(uncollected: None) -> None:
    waiting: list[object] = []

    def work(step: int) -> None:
        if step == 40:
            waiting.extend([str(number)] for number in range(400_000))

    assert done_at(Collect(), work, scheduled=50)[:7] == [1, 2, 4, 8, 16, 32, 40]


def test_of_two_moments_of_one_step_the_first_is_enough() -> None:
    collect = Adaptive(Collect())
    run, _ = looped([Rule(Every(steps=1), [collect]), Rule(Every(steps=1), [collect])], 2)
    assert run.ledger.calls("collect") == 2


@pytest.mark.fresh
def test_after_a_useless_time_one_call_that_pays_brings_the_schedule_back(fragments: Fragments) -> None:
    def work(step: int) -> None:
        if step > 20:
            fragments.leave_holes(4)

    done = done_at(Trim(), work, scheduled=60)
    assert done[2] <= 4
    resumed = next(step for step in done if step > 20)
    assert resumed <= 40
    assert [step for step in done if step >= resumed + 3] == list(range(resumed + 3, 61))


# ---- what pays ----


@pytest.mark.parametrize(
    ("freed", "retaken", "time_s", "paid"),
    [
        (0, 0, 0.0, False),
        (GIB, 0, 0.1, True),
        (GIB, GIB, 0.1, False),
        (GIB, 0.79 * GIB, 0.1, True),
        (GIB, 0.81 * GIB, 0.1, False),
        (0.9 * MIB, 0, 0.0, False),
        (2 * MIB, 0, 0.1, False),  # a tenth of a second for 2 MiB
    ],
)
def test_a_call_pays_when_enough_of_what_it_freed_stays_free(
    freed: float, retaken: float, time_s: float, paid: bool
) -> None:
    outcome = Outcome(step=1, time_s=time_s, next_step_excess_s=0.0, freed_bytes=freed, retaken_bytes=retaken)
    assert pays(outcome) is paid


def test_an_action_that_is_not_booked_is_refused() -> None:
    with pytest.raises(ValueError, match="give an action that is booked"):
        Adaptive(print)


def test_it_pickles_and_serves_several_runs() -> None:
    adaptive = pickle.loads(pickle.dumps(Adaptive(TrimHost())))
    for _ in range(2):
        _, capture = looped([Rule(Every(steps=1), [adaptive])], 1)
        assert "trim/time_s" in capture.samples[0].values
