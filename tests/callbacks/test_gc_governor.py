"""The scheduled collector: what it frees and when, and that it leaves the interpreter as it found it."""

from __future__ import annotations

import gc
import os
import pickle
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

from forgather_mem.actions.heap import HeapHold, frees_aged_cycles
from forgather_mem.callbacks import MemoryCallback, ScheduledGarbageCollector
from forgather_mem.sinks import Capture
from forgather_mem.store import Agreement
from tests.training import fingerprint, make_trainer


class Node:
    """Something that only a collection can free, once it is dropped."""

    def __init__(self) -> None:
        self.self = self


def gc_state() -> tuple[Any, ...]:
    return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), tuple(map(id, gc.callbacks))


@pytest.fixture(autouse=True)
def same_collector_afterwards() -> Iterator[None]:
    before = gc_state()
    yield
    assert gc_state() == before


class MakesCycles(TrainerCallback):
    """Drops one cycle a step, one step after making it, so that a collection may have aged it."""

    def __init__(self, *count_at: int) -> None:
        self.made: list[weakref.ref[Node]] = []
        self.enabled: set[bool] = set()
        self.frozen: list[int] = []
        self.kept: Node | None = None
        self._count_at = count_at  # counting walks all frozen objects: 0.1 s

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.kept = Node()
        self.made.append(weakref.ref(self.kept))
        self.enabled.add(gc.isenabled())
        if state.global_step in self._count_at:
            self.frozen.append(gc.get_freeze_count())

    def alive(self) -> int:
        return sum(reference() is not None for reference in self.made)


def test_aged_cycles_are_freed_while_automatic_collection_is_off_and_the_heap_is_frozen(tmp_path: Path) -> None:
    cycles = MakesCycles(4, 6, 25)
    capture = Capture()
    ours = [MemoryCallback([], [capture]), ScheduledGarbageCollector(every_steps=5)]
    make_trainer(tmp_path, [cycles, *ours], max_steps=30, rows=256).train()
    assert cycles.enabled == {False}
    assert cycles.frozen[0] == 0
    assert min(cycles.frozen[1:]) > 100_000
    assert cycles.alive() <= 1 + 5  # what came after the last collection, and the one that is held
    cycles.kept = None
    gc.collect()
    assert cycles.alive() == 0
    assert {s.step for s in capture.samples if "collect/objects" in s.values} >= {5, 10, 15, 20, 25, 30}


def test_generation_one_alone_leaks_aged_cycles_and_the_interpreter_is_asked_about_it() -> None:
    assert frees_aged_cycles(2)
    kept = [Node() for _ in range(3)]
    references = [weakref.ref(node) for node in kept]
    gc.collect(1)
    kept.clear()
    gc.collect(1)
    assert frees_aged_cycles(1) == all(reference() is None for reference in references)
    gc.collect()


def test_objects_frozen_and_dropped_are_freed_at_the_next_boundary(tmp_path: Path) -> None:
    class Drops(TrainerCallback):
        def __init__(self) -> None:
            self.node: Node | None = Node()
            self.reference = weakref.ref(self.node)
            self.alive_after: dict[str, bool] = {}

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 4:  # frozen at step 2
                self.node = None
            self.alive_after[f"step {state.global_step}"] = self.reference() is not None

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.alive_after["training"] = self.reference() is not None

    drops = Drops()
    make_trainer(tmp_path, [ScheduledGarbageCollector(every_steps=2), drops], max_steps=7, rows=64).train()
    assert drops.alive_after["step 7"]
    assert not drops.alive_after["training"]


def test_a_boundary_of_its_own_comes_when_there_is_no_other(tmp_path: Path) -> None:
    node = Node()
    reference = weakref.ref(node)

    class Drops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal node
            if state.global_step == 3:
                node = None  # type: ignore[assignment]
            if state.global_step == 12:
                assert reference() is None

    governor = ScheduledGarbageCollector(every_steps=2, boundary_steps=4)
    # The first boundary's gap is a budget: with steps this short it may put the next one off; so no budget here.
    governor.rules[0].do[0]._plan_ahead = lambda *_: None  # type: ignore[attr-defined]
    make_trainer(tmp_path, [governor, Drops()], max_steps=12, rows=64).train()


def test_somebodys_own_freeze_is_respected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        cycles = MakesCycles(1, 4)
        make_trainer(tmp_path, [cycles, ScheduledGarbageCollector(every_steps=2)], max_steps=4).train()
        assert all(abs(count - frozen) < frozen / 10 for count in cycles.frozen)
        assert gc.get_freeze_count() > 0
        assert sum("frozen already" in record.message for record in caplog.records) == 1
    finally:
        gc.unfreeze()


def test_a_freeze_by_somebody_else_in_the_middle_is_never_undone(tmp_path: Path) -> None:
    class Freezes(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 5:
                self.mine = [Node() for _ in range(1000)]
                gc.freeze()

    try:
        make_trainer(tmp_path, [ScheduledGarbageCollector(every_steps=2), Freezes()], max_steps=8).train()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_thresholds_and_a_switched_off_collector_stay_as_the_user_left_them(tmp_path: Path) -> None:
    gc.disable()
    gc.set_threshold(123, 4, 5)
    try:
        make_trainer(tmp_path, [ScheduledGarbageCollector(every_steps=2)]).train()
        assert (gc.isenabled(), gc.get_threshold()) == (False, (123, 4, 5))
    finally:
        gc.enable()
        gc.set_threshold(700, 10, 10)


class Interrupted(TrainerCallback):
    """Raises at a random event of a random step."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.step = chance.randint(0, 5)
        self.event = chance.choice(["step_begin", "pre_optimizer_step", "optimizer_step", "step_end", "epoch_begin"])
        if self.event == "epoch_begin":
            self.step = 0
        self.error = chance.choice([RuntimeError("out of memory"), KeyboardInterrupt(), MemoryError(), SystemExit(3)])

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_") and name[3:] == object.__getattribute__(self, "event"):
            return object.__getattribute__(self, "_maybe")
        return object.__getattribute__(self, name)

    def _maybe(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= self.step:
            raise self.error


def assert_restored_after_interruption(seed: int, folder: Path) -> None:
    before = gc_state()
    trainer = make_trainer(folder, [] if seed % 2 else [ScheduledGarbageCollector(every_steps=2)], max_steps=6)
    if seed % 2:
        trainer.add_callback(ScheduledGarbageCollector(every_steps=2))
    methods = {name for name, value in vars(trainer).items() if callable(value)}
    trainer.add_callback(Interrupted(seed))
    with pytest.raises((RuntimeError, MemoryError, KeyboardInterrupt, SystemExit)):
        trainer.train()
    assert gc_state() == before
    assert {name for name, value in vars(trainer).items() if callable(value)} == methods


@pytest.mark.parametrize("seed", range(20))
def test_everything_is_restored_after_an_interruption(tmp_path: Path, seed: int) -> None:
    assert_restored_after_interruption(seed, tmp_path)


def test_two_trainings_that_overlap_restore_together(tmp_path: Path) -> None:
    class TrainsInside(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                make_trainer(tmp_path / "inner", [ScheduledGarbageCollector(every_steps=1)], max_steps=3).train()
                assert not gc.isenabled()

    make_trainer(tmp_path / "outer", [ScheduledGarbageCollector(every_steps=2), TrainsInside()], max_steps=6).train()


def test_two_holds_that_do_not_nest_restore_together() -> None:
    first, second = HeapHold(), HeapHold()
    first.take()
    first.renew()
    second.take()
    assert second.foreign
    first.give_back()
    second.give_back()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


class FailsOnce(Trainer):
    failed = False

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if not self.failed and self.state.global_step == 3:
            self.failed = True
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().training_step(*args, **kwargs)


def test_a_restart_with_a_smaller_batch_is_governed_again(tmp_path: Path) -> None:
    cycles = MakesCycles()
    callbacks = [cycles, ScheduledGarbageCollector(every_steps=2)]
    make_trainer(tmp_path, callbacks, trainer_class=FailsOnce, auto_find_batch_size=True, max_steps=6).train()
    assert cycles.enabled == {False}


def test_a_forked_worker_collects_automatically_again() -> None:
    hold = HeapHold()
    hold.take()
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert not gc.isenabled()
    finally:
        hold.give_back()


def test_training_is_bit_identical_under_the_governor(tmp_path: Path) -> None:
    prints = []
    for callbacks in ([], [ScheduledGarbageCollector(every_steps=2)]):
        trainer = make_trainer(tmp_path, callbacks, logging_steps=1)
        trainer.train()
        prints.append(fingerprint(trainer))
    assert prints[0] == prints[1]


def test_it_can_be_pickled_after_a_training(tmp_path: Path) -> None:
    callback = ScheduledGarbageCollector(every_steps=2)
    make_trainer(tmp_path / "a", [callback]).train()
    make_trainer(tmp_path / "b", [pickle.loads(pickle.dumps(callback))]).train()


def test_ranks_follow_a_proposal_from_the_same_step_on(tmp_path: Path) -> None:
    """Two ranks on one real store, asking at the same steps with rank 1 lagging behind."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        first = Agreement("test", "a", rank=0, world_size=2)
        second = Agreement("test", "a", rank=1, world_size=2)
        heard: list[tuple[str, str]] = []
        for step in range(2, 30, 2):
            mine = first.at(step)
            if step == 6:
                first.propose("b", from_step=step + 4)
            if step == 16:
                first.propose("c", from_step=step + 4)
            heard.append((mine, second.at(step)))
        assert [one for one, _ in heard] == [two for _, two in heard]
        assert "".join(one for one, _ in heard) == "aaaabbbbbccccc"
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_steps": 0}, r"ScheduledGarbageCollector\(every_steps=0\)"),
        ({"generation": 3}, r"generation=3\): the generations are 0, 1 and 2"),
        ({"boundary_steps": 0}, r"boundary_steps=0"),
        ({"boundary_s": 0}, r"boundary_s=0\): give seconds above 0"),
    ],
)
def test_wrong_values_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduledGarbageCollector(**settings)
