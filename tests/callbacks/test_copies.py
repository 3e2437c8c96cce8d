"""Copies of a trainer, its state, its control and its callbacks: as without us, and the original stays watched."""

import copy
import dataclasses
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar

import pytest
from transformers import Trainer, TrainerCallback, TrainerState

from forgather_mem import attach
from forgather_mem.callbacks import (
    ClearCacheCallback,
    GradLogger,
    JsonLogger,
    LeakDetector,
    MemoryAlert,
    MemoryCallback,
    OOMReporter,
    ProfileMemory,
    ProgressCallback,
    ScheduledGarbageCollector,
    TBLogger,
    TBMemoryLogger,
)
from forgather_mem.engine.run_of import run_of
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.callbacks.common import METRICS, captured
from tests.engine.test_closing import open_files
from tests.programs import no_collections
from tests.training import STAYS, AtStep, fingerprint, make_trainer, ours_in

Copy = Callable[[Any], Any]
WAYS: dict[str, Copy] = {
    "deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
}  # fmt: skip
WATCHED = ("attach", "many")
MOMENTS = ("before", "inside", "after")


def many(folder: Path) -> list[TrainerCallback]:
    return [
        TBMemoryLogger(metrics=METRICS, logging_dir=folder / "tb"),
        *(OOMReporter(), LeakDetector(), MemoryAlert(), GradLogger(), JsonLogger(), TBLogger(), ProgressCallback()),
        *(ScheduledGarbageCollector(every_steps=2), ClearCacheCallback("step", 2, adaptive=True, trim_host=True)),
    ]


class At(TrainerCallback):
    """Does something in step 2, once. What it is stands beside it, so that it can be pickled."""

    do: ClassVar[Callable[[], None] | None] = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and At.do is not None:
            do, At.do = At.do, None
            do()


def ready(folder: Path, watched: str) -> Trainer:
    ours = many(folder) if watched == "many" else []
    trainer = make_trainer(folder, [*ours, At()], max_steps=4)
    if watched == "attach":
        attach(trainer)
    return trainer


def trained(folder: Path, watched: str, moment: str, look: Callable[[Trainer], None]) -> Trainer:
    """A trainer after its training, of which `look` has seen the moment."""
    trainer = ready(folder, watched)
    At.do = lambda: look(trainer) if moment == "inside" else None
    if moment == "before":
        look(trainer)
    trainer.train()
    if moment == "after":
        look(trainer)
    return trainer


def parts_of(trainer: Trainer) -> dict[str, Any]:
    handler = trainer.callback_handler
    return {"state": trainer.state, "control": trainer.control, "callbacks": handler.callbacks, "handler": handler,
            "trainer": trainer}  # fmt: skip


def works(make: Copy, thing: Any) -> bool:
    try:
        make(thing)
    except Exception:
        return False
    return True


@pytest.mark.slow
@pytest.mark.fresh  # a training leaves accelerate with a weak reference, and no trainer can be pickled after it
@pytest.mark.parametrize("moment", MOMENTS)
def test_what_can_be_copied_without_us_can_be_copied_with_us(tmp_path: Path, moment: str) -> None:
    found: dict[str, dict[tuple[str, str], bool]] = {}
    for watched in ("alone", *WATCHED):

        def look(trainer: Trainer, watched: str = watched) -> None:
            found[watched] = {
                (way, part): works(make, thing)
                for way, make in WAYS.items()
                for part, thing in parts_of(trainer).items()
            }

        if moment == "before":
            look(ready(tmp_path / watched, watched))
        else:
            trained(tmp_path / watched, watched, moment, look)
    ways = WAYS if moment == "before" else ("deepcopy", "copy")
    assert all(found["alone"][way, part] for way in ways for part in ("trainer", "state", "callbacks"))
    for watched in WATCHED:
        assert found[watched] == found["alone"]


def ours_on(trainer: Any) -> list[str]:
    """What of us hangs on it besides callbacks. A deep copy shares its accelerator, as accelerate has it."""
    return ours_in(trainer, trainer.callback_handler, trainer.state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "way"),
    [
        ("before", "copy"), ("inside", "deepcopy"), ("after", "deepcopy"),
        *(pytest.param(*case, marks=pytest.mark.soak)
          for case in (("before", "deepcopy"), ("inside", "copy"), ("after", "copy"))),
    ],
)  # fmt: skip
def test_a_copy_trains_by_itself_and_the_original_stays_watched(tmp_path: Path, moment: str, way: str) -> None:
    fingerprints = {}
    for watched in ("alone", *WATCHED):
        twins: list[Trainer] = []

        def look(trainer: Trainer, twins: list[Trainer] = twins) -> None:
            twin = WAYS[way](trainer)
            if way == "deepcopy":
                assert ours_on(twin) == []
            twins.append(twin)

        trainer = trained(tmp_path / watched, watched, moment, look)
        fingerprints[watched, "original"] = fingerprint(trainer)
        if watched != "alone":
            run = run_of(trainer.state)
            assert (run.summary.facts.end, run.summary.steps) == ("finished", 4)
        state, step = trainer.state, trainer.state.global_step
        (twin,) = twins
        twin.train()
        assert (trainer.state, trainer.state.global_step) == (state, step)
        assert twin.state.global_step == 4
        fingerprints[watched, "copy"] = fingerprint(twin)
        if watched != "alone":
            its_own = run_of(twin.state)
            assert its_own is not run
            assert (its_own.closed, its_own.summary.facts.end, its_own.summary.steps) == (True, "finished", 4)
            assert open_files(tmp_path) == set()
        if way == "deepcopy":
            assert ours_on(twin) == []
    for watched in WATCHED:
        for which in ("original", "copy"):
            assert fingerprints[watched, which] == fingerprints["alone", which]


def settings_of(callbacks: list[Any]) -> list[bytes]:
    """What the rules of each name; where the last file is, and what is on a page by now, goes on after a training."""
    kept = (JsonLogger, TBLogger)
    return [pickle.dumps(one.rules) for one in callbacks if not isinstance(one, kept)]


@pytest.mark.slow
def test_nothing_of_a_training_is_in_what_rules_name(tmp_path: Path) -> None:
    callbacks = [*many(tmp_path), MemoryCallback(), ProfileMemory(2)]
    told = [settings_of(callbacks)]
    At.do = lambda: told.append(settings_of(callbacks))
    make_trainer(tmp_path, [*callbacks, At()], max_steps=4).train()
    assert told == [settings_of(callbacks)] * 2


@pytest.mark.slow
def test_a_copy_trains_inside_a_callback_of_the_original(tmp_path: Path) -> None:
    told = []

    def look(trainer: Trainer) -> None:
        twin = copy.deepcopy(trainer)
        twin.train()
        told.append(run_of(twin.state).summary)

    trainer = trained(tmp_path, "attach", "inside", look)
    assert (told[0].facts.end, told[0].steps) == ("finished", 4)
    summary = run_of(trainer.state).summary
    assert (summary.facts.end, summary.steps) == ("finished", 4)


# A trainer can be pickled only where none has trained before
@pytest.mark.slow
@pytest.mark.parametrize("way", ["deepcopy", "copy", pytest.param("pickle", marks=pytest.mark.fresh)])
def test_a_copied_trainer_calls_its_own_methods(tmp_path: Path, way: str) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    trainer.log = MethodType(type(trainer).log, trainer)  # the user's own stays, as without us
    attach(trainer)
    if way == "pickle":
        del trainer.log
    twin = WAYS[way](trainer)
    assert ours_on(trainer) == sorted(STAYS)
    assert ours_on(twin) == []
    twin.train()
    assert (twin.state.global_step, trainer.state.global_step) == (2, 0)


def test_a_copied_trainer_is_freed_as_soon_as_without_us(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=1)
    attach(trainer)
    twin = copy.deepcopy(trainer)
    alive = weakref.ref(twin)
    with no_collections():
        del twin
        assert alive() is None


def test_a_pickled_state_needs_nothing_of_us(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    attach(trainer)
    trainer.train()
    assert b"forgather" not in pickle.dumps(trainer.state)
    assert "forgather" not in str(dataclasses.asdict(trainer.state))
    assert run_of(dataclasses.replace(trainer.state)) is None
    trainer.state.save_to_json(str(tmp_path / "state.json"))
    assert TrainerState.load_from_json(str(tmp_path / "state.json")) == trainer.state == copy.deepcopy(trainer.state)


@pytest.mark.slow
@pytest.mark.parametrize("make", [copy.deepcopy, copy.copy, dataclasses.replace])
def test_a_state_that_takes_the_place_of_the_trainings_leaves_it_watched(tmp_path: Path, make: Copy) -> None:
    """As where somebody goes back to the state of the best step."""
    goes_back = AtStep(2, lambda: setattr(trainer, "state", make(trainer.state)), "step_begin")
    callback, capture = captured([Rule(Every(steps=1), [lambda moment, sample: {"mine/count": 1.0}])])
    trainer = make_trainer(tmp_path, [callback, goes_back], max_steps=4)
    trainer.train()
    assert [sample.step for sample in capture.samples] == [1, 2, 3, 4]
    assert (callback.summary.facts.end, callback.summary.steps) == ("finished", 4)


@pytest.mark.slow
@pytest.mark.skipif(bool(STAYS), reason="in transformers 4 a method bound to this trainer is among them")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_attributes_of_a_watched_trainer_make_another_trainer(tmp_path: Path, moment: str) -> None:
    """`vars` of a trainer are no place for a method that is bound to this one."""
    twins: list[Any] = []

    def look(trainer: Trainer) -> None:
        twins.append(trainer.__class__.__new__(trainer.__class__))
        vars(twins[0]).update(copy.deepcopy(vars(trainer)))

    trainer = trained(tmp_path, "attach", moment, look)
    (state, weights), (twin,) = (trainer.state, fingerprint(trainer)[0]), twins
    twin.train()
    assert (trainer.state, fingerprint(trainer)[0]) == (state, weights)
    assert twin.state.global_step == 4


def test_an_error_of_a_callback_that_is_told_of_the_beginning_after_us_ends_the_run(tmp_path: Path) -> None:
    ours, last = MemoryCallback(), AtStep(0, RuntimeError("the users own error"), "train_begin")
    before = dict(vars(last))
    trainer = make_trainer(tmp_path, [ours, last])
    with pytest.raises(RuntimeError, match="users own") as error:
        trainer.train()
    assert ours.summary.facts.end == "exception"
    assert set(ours_on(trainer)) <= set(STAYS)
    assert vars(last) == before
    assert not any(entry.frame.f_globals["__name__"].startswith("forgather_mem") for entry in error.traceback)
