import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.system.time_budget import SHORT_S, OwnTime, TimeBudget


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(
    costs=st.lists(st.floats(0, 2), min_size=1, max_size=30),
    every_s=st.floats(0.01, 20),
    budget_frac=st.floats(0.001, 0.5),
)
def test_readings_never_take_more_than_their_share(costs: list[float], every_s: float, budget_frac: float) -> None:
    clock = Clock()
    pace = TimeBudget(every_s, budget_frac=budget_frac, clock=clock)
    remaining = list(costs)

    def reading() -> dict[str, float]:
        cost = remaining.pop(0)
        clock.now_s += cost
        spent.append(cost)
        return {"x": cost}

    spent: list[float] = []
    while remaining:
        began_s = clock.now_s
        if pace.take(reading):
            clock.now_s = max(clock.now_s, pace.next_s)  # as late as the next one may be
            took = spent[-1]
            assert took <= budget_frac * (clock.now_s - began_s) + 1e-9
        else:
            clock.now_s += 0.005


def test_a_cheap_reading_keeps_its_period() -> None:
    clock = Clock()
    pace = TimeBudget(10.0, clock=clock)
    times = []
    for _ in range(1000):
        clock.now_s += 0.1
        if pace.take(lambda: {"x": 1.0}):
            times.append(clock.now_s)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps
    assert all(gap == pytest.approx(10.0, abs=0.11) for gap in gaps)
    assert pace.note("x") is None


def test_a_budget_that_postponed_nothing_is_not_told() -> None:
    clock = Clock()
    pace = TimeBudget(10.0, clock=clock)
    pace.ran(cost_s=0.05)  # not again before 50 s have passed
    clock.now_s = 9.0
    assert pace.note("PSS") is None, "the run was over before the next reading was due"
    clock.now_s = 11.0
    assert str(pace.note("PSS")).startswith("PSS: read every 50.0 s instead of every 10.0 s")
    clock.now_s = 51.0
    pace.ran(cost_s=0.0)
    assert pace.note("PSS"), "it was postponed once"


def test_a_reading_at_every_occasion_that_was_too_dear_is_told() -> None:
    clock = Clock()
    pace = TimeBudget(0.0, clock=clock)
    pace.ran(cost_s=0.004)
    clock.now_s = 1.0
    assert pace.note("x") is None, "nobody has asked meanwhile"
    assert pace.take(lambda: {"x": 1.0}) == {}
    assert pace.note("x") == (
        "x: read every 4.0 s instead of whenever it was due; the slowest reading took 4.0 ms (budget 0.1 % of the time)"
    )


# ---- our own time ----


@pytest.fixture
def beside_others_on_one_processor() -> Iterator[None]:
    """This thread shares its processor with three that never rest."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    yield
    for process in busy:
        process.kill()
        process.wait()
    os.sched_setaffinity(0, before)


def work(cpu_s: float) -> None:
    began_s = time.thread_time()
    while time.thread_time() - began_s < cpu_s:
        pass


@pytest.mark.usefixtures("beside_others_on_one_processor")
def test_a_wait_for_a_busy_processor_is_not_ours() -> None:
    own, of_a_phase = OwnTime(), OwnTime()
    of_a_phase.take()
    began, began_s = own.now(), time.perf_counter()
    work(0.3)
    own.add(began)
    took_s = time.perf_counter() - began_s
    of_a_phase.spent_s, of_a_phase.long_s = SHORT_S, took_s - SHORT_S
    assert took_s > 0.6, "the others were not busy"
    assert own.take()[0] == pytest.approx(0.3, rel=0.2)
    assert of_a_phase.take()[0] == pytest.approx(0.3, rel=0.2)


def test_a_wait_for_anything_else_is_ours() -> None:
    own = OwnTime()
    began = own.now()
    time.sleep(0.05)
    own.add(began, reading=True)
    all_s, reading_s = own.take()
    assert all_s == reading_s >= 0.049
    own.long_s = 0.5
    assert own.take()[0] > 0.4
    assert own.take() == (0.0, 0.0)


def test_what_was_asked_for_is_taken_out_of_what_is_around_it() -> None:
    own = OwnTime()
    began, asked = own.now(), own.now()
    time.sleep(0.3)
    own.add(asked, sign=-1)
    own.add(began)
    assert 0 <= own.take()[0] < 0.1


def test_a_kernel_that_does_not_tell_of_waits_leaves_the_time_as_it_is() -> None:
    own = OwnTime()
    own._file.path = "/proc/thread-self/no_such_file"
    own.close()
    began = own.now()
    time.sleep(0.01)
    own.add(began)
    assert own.take()[0] >= 0.01
