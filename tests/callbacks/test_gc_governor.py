"""The scheduled collector: what it frees and when, and that it leaves the interpreter as it found it."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
from transformers import TrainerCallback

from forgather_mem import load_callbacks
from forgather_mem.callbacks import MemoryCallback, ScheduledGarbageCollector, gc_governor
from forgather_mem.callbacks.gc_governor import LIMITS, Budget, Schedule
from forgather_mem.engine.run import Run
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.records import Moment
from tests.reclaim.things import Cycle
from tests.training import STAYS, AtStep, make_trainer

pytestmark = pytest.mark.alone(forked=True)

TEMPLATE = "callbacks/gc_governor.yaml"


def gc_state() -> tuple[Any, ...]:
    return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), tuple(map(id, gc.callbacks))


@pytest.fixture(autouse=True)
def same_collector_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a heap that is really unfrozen, where each collection takes long, unless the test is content with less."""
    request.getfixturevalue("nothing_frozen" if "nothing_frozen" in request.fixturenames else "unfrozen")
    before = gc_state()
    yield
    assert gc_state() == before


@pytest.fixture(autouse=True)
def no_collection_by_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a full one when each training begins, which has nothing to do with ours: a quarter of the time here."""
    monkeypatch.setattr(accelerate.utils.memory, "clear_device_cache", lambda garbage_collection=False: None)


@pytest.fixture
def boundaries_are_never_too_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_governor, "LIMITS", gc_governor.CollectionLimits(boundary_frac=1e9))


class MakesCycles(TrainerCallback):
    """Drops one cycle a step, one step after making it, so that a collection may have aged it."""

    def __init__(self, *count_at: int) -> None:
        self.made: list[weakref.ref[Cycle]] = []
        self.enabled: set[bool] = set()
        self.frozen: list[int] = []
        self.kept: Cycle | None = None
        self._count_at = count_at  # counting walks all frozen objects

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.kept = Cycle()
        self.made.append(weakref.ref(self.kept))
        self.enabled.add(gc.isenabled())
        if state.global_step in self._count_at:
            self.frozen.append(gc.get_freeze_count())

    def alive(self) -> int:
        return sum(reference() is not None for reference in self.made)


def collections_in(capture: Capture) -> list[tuple[str, int]]:
    return [(sample.event, sample.step) for sample in capture.samples if "collect/objects" in sample.values]


@pytest.mark.slow
def test_aged_cycles_are_freed_while_automatic_collection_is_off_and_the_heap_is_frozen(tmp_path: Path) -> None:
    cycles = MakesCycles(1, 6, 25)
    capture = Capture()
    ours = [MemoryCallback([], [capture]), *load_callbacks(TEMPLATE, collect_every_steps=5)]
    make_trainer(tmp_path, [cycles, *ours], max_steps=30, rows=256).train()
    assert cycles.enabled == {False}
    assert min(cycles.frozen) > 100_000  # before the first step, too
    assert cycles.alive() <= 1  # the one that is held
    assert {step for _, step in collections_in(capture)} >= {5, 10, 15, 20, 25, 30}


def test_the_template_passes_its_variables_on() -> None:
    (governor,) = load_callbacks(TEMPLATE, collect_every_steps=7, freeze=False, boundary_steps=40, verbose=True)
    assert type(governor) is ScheduledGarbageCollector
    by_hand = ScheduledGarbageCollector(7, freeze=False, boundary_steps=40, verbose=True)
    works = [callback.rules[0].do[0].__getstate__() for callback in (governor, by_hand)]
    assert works[0] == works[1]
    (default,) = load_callbacks(TEMPLATE)
    assert default.rules[0].do[0].__getstate__() == ScheduledGarbageCollector().rules[0].do[0].__getstate__()


class Drops(TrainerCallback):
    """Holds a node from the beginning, drops it at a step, and notes after which steps it is alive."""

    def __init__(self, at_step: int) -> None:
        self.at_step = at_step
        self.node: Cycle | None = Cycle()
        self.reference = weakref.ref(self.node)
        self.alive: dict[int, bool] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.alive[state.global_step] = self.reference() is not None  # after the events behind that step
        if state.global_step == self.at_step:
            self.node = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.alive[state.global_step] = self.reference() is not None


@pytest.mark.slow
@pytest.mark.usefixtures("boundaries_are_never_too_dear")
def test_what_is_frozen_and_dropped_is_freed_at_the_next_boundary_and_one_a_step_is_enough(tmp_path: Path) -> None:
    drops, capture = Drops(3), Capture()
    settings = {"eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps", "save_steps": 5}
    ours = [MemoryCallback([], [capture]), ScheduledGarbageCollector(every_steps=2)]
    make_trainer(tmp_path, [*ours, drops], max_steps=6, rows=64, **settings).train()
    assert drops.alive == {0: True, 1: True, 2: True, 3: True, 4: True, 5: False, 6: False}
    last = "save" if STAYS else "evaluate"  # transformers 4 does not evaluate at the end
    assert collections_in(capture) == [
        ("train_begin", 0),
        ("step_end", 2),
        ("step_end", 4),
        ("evaluate", 5),  # and not at the checkpoint of the same step
        ("step_end", 6),
        (last, 6),
        ("train_end", 6),  # of what came since only
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("boundaries_are_never_too_dear")
def test_a_boundary_of_its_own_comes_when_there_is_no_other(tmp_path: Path) -> None:
    drops = Drops(3)
    governor = ScheduledGarbageCollector(every_steps=2, boundary_steps=4)
    make_trainer(tmp_path, [governor, drops], max_steps=8, rows=64).train()
    assert [step for step, alive in drops.alive.items() if not alive] == [
        4, 5, 6, 7, 8,
    ]  # and once before the first step  # fmt: skip


@pytest.mark.usefixtures("nothing_frozen")
def test_a_training_shorter_than_the_period_leaves_nothing_uncollected(tmp_path: Path) -> None:
    drops = Drops(1)
    make_trainer(tmp_path, [ScheduledGarbageCollector(every_steps=100), drops], max_steps=2).train()
    assert drops.alive[1]
    assert drops.reference() is None


def test_somebodys_own_freeze_is_respected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        cycles = MakesCycles(1, 4)
        make_trainer(tmp_path, [cycles, ScheduledGarbageCollector(every_steps=2)], max_steps=4).train()
        assert all(abs(count - frozen) < frozen / 10 for count in cycles.frozen)
        assert gc.get_freeze_count() > frozen / 2
        assert sum("frozen already" in record.message for record in caplog.records) == 1
    finally:
        gc.unfreeze()


@pytest.mark.slow
def test_a_freeze_in_the_middle_leaves_frozen_what_was_alive_then(tmp_path: Path) -> None:
    made: list[Cycle] = []

    def freezes() -> None:
        made.append(Cycle())
        gc.freeze()
        made.append(Cycle())

    try:
        ours = ScheduledGarbageCollector(every_steps=2)
        make_trainer(tmp_path, [ours, AtStep(3, freezes)], max_steps=8).train()
        seen = gc.get_objects()
        assert [any(one is cycle for one in seen) for cycle in made] == [False, True]
    finally:
        gc.unfreeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_thresholds_and_a_switched_off_collector_stay_as_the_user_left_them(tmp_path: Path) -> None:
    thresholds = gc.get_threshold()
    gc.disable()
    gc.set_threshold(123, 4, 5)
    try:
        make_trainer(tmp_path, [ScheduledGarbageCollector(every_steps=2)], max_steps=2).train()
        assert (gc.isenabled(), gc.get_threshold()) == (False, (123, 4, 5))
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


@pytest.mark.usefixtures("nothing_frozen")
def test_two_trainings_that_overlap_restore_together(tmp_path: Path) -> None:
    def train_inside() -> None:
        make_trainer(tmp_path / "inner", [ScheduledGarbageCollector(every_steps=1)], max_steps=2).train()
        assert not gc.isenabled()

    outer = [ScheduledGarbageCollector(every_steps=2), AtStep(3, train_inside)]
    make_trainer(tmp_path / "outer", outer, max_steps=4).train()


@pytest.mark.usefixtures("nothing_frozen")
def test_when_it_fails_itself_automatic_collection_comes_back_at_once(tmp_path: Path) -> None:
    run = Run.begin(SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=0))
    governor = run.begun(ScheduledGarbageCollector(every_steps=2).rules[0].do[0])
    assert not gc.isenabled()
    broken = Moment("step_end", None, 0.0, None, None, None, {}, run)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        governor(broken, None)  # type: ignore[arg-type]
    assert gc.isenabled()
    assert governor(broken, None) == {}  # type: ignore[arg-type]
    run.close()


def test_below_generation_2_boundaries_free_what_the_interpreter_keeps(tmp_path: Path) -> None:
    cycles = MakesCycles()
    make_trainer(tmp_path, [ScheduledGarbageCollector(2, generation=1), cycles], max_steps=4).train()
    assert cycles.alive() <= 1


FIRST = Schedule(stretch=1, gap_steps=0, own_boundary_steps=1000)


class Training:
    """Steps of a given length, and collections of a given cost; what the budget advises is done at once."""

    def __init__(self, step_s: float, boundary_s: float = 900) -> None:
        self.now_s = 0.0
        self.step = 0
        self.step_s = step_s
        self.schedule = FIRST
        self.budget = Budget(10, 1000, boundary_s, clock=lambda: self.now_s)

    def go(self, steps: int) -> None:
        self.step += steps
        self.now_s += steps * self.step_s

    def collect(self, cost_s: float, found: float = 0.0, froze: bool = False) -> None:
        self.go(10 * self.schedule.stretch)
        self.budget.begins(self.step)
        self.now_s += cost_s
        self.budget.collected(self.step, cost_s, found, froze=froze)
        self.schedule = self.budget.advice(self.schedule, self.step)

    def boundary(self, cost_s: float) -> None:
        self.budget.begins(self.step)
        self.now_s += cost_s
        self.budget.renewed(self.step, cost_s)
        self.schedule = self.budget.advice(self.schedule, self.step)


@pytest.mark.parametrize("cost_s", [0.02, 0.2, 20.0])
def test_collections_that_find_nothing_are_stretched_to_half_a_per_cent_of_the_time(cost_s: float) -> None:
    training = Training(step_s=0.1)
    for _ in range(20):
        training.collect(cost_s)
    share = cost_s / (10 * training.schedule.stretch * 0.1)
    assert share <= 0.005 or training.schedule.stretch == LIMITS.most_stretch
    assert training.schedule.stretch == {0.02: 4, 0.2: 64, 20.0: 64}[cost_s]


def test_collections_that_find_garbage_may_take_ten_times_as_much() -> None:
    training = Training(step_s=0.1)
    for _ in range(20):
        training.collect(0.02, found=100)
    assert training.schedule.stretch == 1
    for _ in range(20):
        training.collect(0.2, found=100)
    assert training.schedule.stretch == 4


def test_one_slow_collection_changes_nothing_and_cheaper_ones_bring_the_schedule_back() -> None:
    training = Training(step_s=0.1)
    for cost_s in (0.001, 0.001, 5.0, 0.001, 0.001):
        training.collect(cost_s)
        assert training.schedule.stretch == 1
    for cost_s in (0.02,) * 6:
        training.collect(cost_s)
    assert training.schedule.stretch == 4
    for _ in range(6):
        training.collect(0.0001)
    assert training.schedule.stretch == 1


def test_boundaries_keep_a_distance_that_makes_them_5_per_cent_of_the_time() -> None:
    training = Training(step_s=0.1)
    training.go(10)
    training.boundary(2.0)
    assert training.schedule.gap_steps == 0, "no step has been timed yet, but those that load and compile"
    training.collect(0.0002)
    assert training.schedule.gap_steps == 400  # 40 s, of which 2 s are 5 %
    training.boundary(2.1)
    assert training.schedule.gap_steps == 400


def test_an_evaluation_between_two_collections_does_not_make_steps_look_long() -> None:
    training = Training(step_s=0.1)
    training.boundary(2.0)
    for number in range(12):
        if number % 3 == 1:
            training.now_s += 60.0
        training.collect(0.0002)
    assert training.schedule.gap_steps == 400


@pytest.mark.parametrize(
    ("step_s", "boundary_s", "steps"), [(0.1, 900, 1000), (1.8, 900, 500), (3600.0, 900, 1), (1.8, float("inf"), 1000)]
)
def test_our_own_boundary_comes_after_1000_steps_or_15_minutes(step_s: float, boundary_s: float, steps: int) -> None:
    training = Training(step_s=step_s, boundary_s=boundary_s)
    for _ in range(3):
        training.collect(0.0002)
    assert training.schedule.own_boundary_steps == steps


def test_after_some_freezes_between_boundaries_the_next_boundary_comes_at_once_and_then_as_before() -> None:
    training = Training(step_s=0.1)
    training.boundary(0.2)
    for _ in range(LIMITS.most_freezes):
        assert training.schedule.own_boundary_steps == 1000
        training.collect(0.006, found=1, froze=True)
    assert training.schedule.own_boundary_steps == training.step
    training.boundary(0.2)
    training.collect(0.0002)
    assert training.schedule.own_boundary_steps == 1000


def test_a_schedule_is_one_line_of_text() -> None:
    assert Schedule.read(FIRST.write()) == FIRST
