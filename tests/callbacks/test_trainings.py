"""Our callbacks in real trainings: what they do, what they leave alone, what they leave behind."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import Trainer, TrainerCallback

from forgather_mem.callbacks import (
    ClearCacheCallback,
    CudaGarbageCollector,
    JsonMemoryLogger,
    MemoryCallback,
    PeakMemory,
    SimpleGarbageCollector,
    TBMemoryLogger,
)
from forgather_mem.engine.run_of import run_of
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import AtEvent, Every
from tests.training import fingerprint, make_trainer


def all_callbacks() -> list[TrainerCallback]:
    return [
        SimpleGarbageCollector(verbose=True),
        CudaGarbageCollector(collect_freq_step=2, verbose=True),
        ClearCacheCallback("step", 2, garbage_collection=True),
        TBMemoryLogger(metrics=["host", "device", "phases", "gc", "workers", "tensors"]),
        JsonMemoryLogger(),
        PeakMemory(),
        MemoryCallback(),
    ]


class Watcher(TrainerCallback):
    """Notes what the trainer's control says after everybody else has run."""

    def __init__(self) -> None:
        self.controls: list[str] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.controls.append(repr(control))


def captured(rules: list[Rule], **options: Any) -> tuple[MemoryCallback, Capture]:
    capture = Capture()
    return MemoryCallback(rules, [capture], **options), capture


class Steps:
    """A work that notes when it was called."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def __call__(self, moment: Any, sample: Any) -> dict[str, float]:
        self.steps.append(moment.step)
        return {}


def test_training_is_bit_identical_with_and_without_us(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    seen = []
    for name, callbacks in (("without", []), ("with", all_callbacks())):
        watcher = Watcher()
        trainer = make_trainer(tmp_path / name, [*callbacks, watcher], logging_steps=1, **settings)
        trainer.train()
        seen.append((fingerprint(trainer), watcher.controls))
    assert seen[0] == seen[1]


def open_files() -> set[str]:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.exists(link)}


def left_behind(trainer: Trainer) -> dict[str, Any]:
    handler, accelerator = trainer.callback_handler, trainer.accelerator
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": {path for path in open_files() if "memory." in path or "forgather" in path or "statm" in path},
        "methods": sorted(
            name
            for owner in (trainer, handler, accelerator)
            for name, value in vars(owner).items()
            if type(value).__module__.startswith("forgather_mem")
        ),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), list(gc.callbacks)),
    }


class Fails(TrainerCallback):
    def __init__(self, event: str, error: BaseException) -> None:
        self.event, self.error = event, error

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.event == "step_end" and state.global_step == 3:
            raise self.error


class FailsInForward(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 3:
            raise RuntimeError("forward failed")
        return super().compute_loss(*args, **kwargs)


@pytest.mark.usefixtures("unfrozen")
@pytest.mark.parametrize("way", ["constructor", "add_callback"])
@pytest.mark.parametrize("ending", ["normal", "exception in a callback", "interrupt", "exception in forward"])
def test_nothing_is_left_behind_however_a_training_ends(tmp_path: Path, way: str, ending: str) -> None:
    make_trainer(tmp_path / "warm").train()
    trainer_class = FailsInForward if ending == "exception in forward" else Trainer
    ours = all_callbacks()
    trainer = make_trainer(tmp_path / "run", ours if way == "constructor" else [], trainer_class=trainer_class)
    before = left_behind(trainer)
    if way == "add_callback":
        for callback in ours:
            trainer.add_callback(callback)
    if ending == "exception in a callback":
        trainer.add_callback(Fails("step_end", ValueError("stop")))
    elif ending == "interrupt":
        trainer.add_callback(Fails("step_end", KeyboardInterrupt()))
    expected = {
        "normal": (),
        "exception in a callback": ValueError,
        "interrupt": KeyboardInterrupt,
        "exception in forward": RuntimeError,
    }
    if ending == "normal":
        trainer.train()
    else:
        with pytest.raises(expected[ending]):
            trainer.train()
    assert left_behind(trainer) == before
    run = run_of(trainer.state)
    assert run.closed
    assert run.summary.facts.end == {"normal": "finished", "interrupt": "interrupted"}.get(ending, "exception")


def test_a_collector_follows_the_epochs_of_a_real_training(tmp_path: Path) -> None:
    callback, capture = captured([])
    collector = SimpleGarbageCollector(collect_freq_epoch=2)
    make_trainer(tmp_path, [callback, collector], max_steps=-1, num_train_epochs=5, rows=8).train()
    assert [row["calls"] for row in collector.summary.ledger] == [2]  # after epochs 2 and 4
    assert [(s.event, s.epoch) for s in capture.samples if "collect/objects" in s.values] == [
        ("epoch_end", 2.0),
        ("epoch_end", 4.0),
    ]


@pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE:UserWarning")
def test_a_resumed_training_keeps_the_rhythm_of_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1"
    )  # transformers 4.46 reads its checkpoints in no other way
    settings = {"max_steps": -1, "num_train_epochs": 4, "rows": 16, "save_strategy": "steps", "save_steps": 6}
    make_trainer(tmp_path, **settings).train()  # 4 steps an epoch; a checkpoint in the middle of epoch 2
    callback, capture = captured([])
    trainer = make_trainer(tmp_path, [callback, SimpleGarbageCollector(collect_freq_epoch=2)], **settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert [(s.step, s.epoch) for s in capture.samples if "collect/objects" in s.values] == [(8, 2.0), (16, 4.0)]


def test_a_clear_counts_optimizer_steps_not_micro_batches(tmp_path: Path) -> None:
    steps = Steps()
    every = MemoryCallback([Rule(Every(steps=2), [steps])])
    make_trainer(tmp_path, [every], gradient_accumulation_steps=4, max_steps=5, rows=128).train()
    assert steps.steps == [2, 4]
    assert ClearCacheCallback("step", 2).rules[0].when == Every(steps=2)


def test_collecting_by_step_collects_at_those_steps(tmp_path: Path) -> None:
    callback, capture = captured([])
    make_trainer(tmp_path, [callback, SimpleGarbageCollector(collect_freq_step=2)], max_steps=5).train()
    assert [s.step for s in capture.samples if "collect/objects" in s.values] == [2, 4]


def test_garbage_in_a_cycle_is_gone_after_a_collection(tmp_path: Path) -> None:
    import weakref

    class Node:
        pass

    node = Node()
    node.self = node  # type: ignore[attr-defined]
    alive = weakref.ref(node)
    gc.disable()
    try:
        del node
        assert alive() is not None
        make_trainer(tmp_path, [SimpleGarbageCollector(collect_freq_step=1)], max_steps=1).train()
        assert alive() is None
    finally:
        gc.enable()


def test_the_documents_plain_call_collects_after_every_nth_epoch_counted_from_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    collector = SimpleGarbageCollector(collect_freq_epoch=5, verbose=True)
    for epoch in range(10):
        collector.on_epoch_end(epoch, {"loss": 1.0})
    said = capsys.readouterr()
    text = said.out + said.err
    assert text.count("Running garbage collection at end of epoch") == 2
    assert "end of epoch 5..." in text
    assert "end of epoch 10..." in text
    collector.on_epoch_end(epoch=4, logs=None)
    collector.on_epoch_end(np.int64(4), {})
    assert capsys.readouterr().err.count("end of epoch 5...") == 2


def test_verbose_collectors_say_what_they_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, [CudaGarbageCollector(collect_freq_step=3, verbose=True)], max_steps=6).train()
    said = capsys.readouterr()
    text = said.out + said.err
    assert text.count("Running garbage collection at end of step") == 2
    assert text.count("Garbage collection finished in") == 2
    assert "freed" in text
    if not torch.accelerator.is_available():
        assert text.count("there is no accelerator") == 1


def test_callbacks_can_be_added_and_taken_out_by_class_and_by_instance(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.add_callback(SimpleGarbageCollector)
    mine = ClearCacheCallback()
    trainer.add_callback(mine)
    assert trainer.pop_callback(mine) is mine
    assert isinstance(trainer.pop_callback(SimpleGarbageCollector), SimpleGarbageCollector)
    trainer.add_callback(TBMemoryLogger)
    trainer.add_callback(MemoryCallback)
    trainer.remove_callback(TBMemoryLogger)
    assert [type(c) for c in trainer.callback_handler.callbacks if type(c).__module__.startswith("forgather_mem")] == [
        MemoryCallback
    ]
    trainer.remove_callback(MemoryCallback)
    trainer.train()


def test_taking_out_one_class_leaves_the_others(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, all_callbacks())
    for callback in all_callbacks():
        assert type(trainer.pop_callback(type(callback))) is type(callback)


def test_the_training_loop_is_unwrapped_when_ours_are_gone(tmp_path: Path) -> None:
    class OwnLoop(Trainer):
        def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
            return super()._inner_training_loop(*args, **kwargs)

    trainer = make_trainer(tmp_path, [SimpleGarbageCollector()], trainer_class=OwnLoop)
    assert "_inner_training_loop" in vars(trainer)
    trainer.remove_callback(SimpleGarbageCollector)
    trainer.train()
    assert "_inner_training_loop" not in vars(trainer)


def test_one_callback_serves_several_trainings(tmp_path: Path) -> None:
    callback, capture = captured([Rule(Every(steps=1), [Steps()]), Rule(AtEvent("train_end"), [Steps()])])
    logger = TBMemoryLogger()
    for name in ("a", "b"):
        make_trainer(tmp_path / name, [callback, logger], max_steps=3).train()
    trainer = make_trainer(tmp_path / "c", [callback, logger], max_steps=3)
    trainer.train()
    trainer.train()
    assert logger.summary is not None
    assert logger.summary.steps == 3
    assert [s.step for s in capture.samples if "host/rss_bytes" in s.values] == [1, 2, 3]  # of the last run
    for name in ("a", "b"):
        assert read_events(tmp_path / name, "mem_host/rss_gib") == [1, 2, 3]


def read_events(folder: Path, tag: str) -> list[int]:
    steps = []
    for directory in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
        accumulator.Reload()
        tags = accumulator.Tags()
        if tag in tags["scalars"]:
            steps += [event.step for event in accumulator.Scalars(tag)]
        elif tag in tags["tensors"]:
            steps += [event.step for event in accumulator.Tensors(tag)]
    return steps


def test_loss_and_memory_stand_in_one_tensorboard_run(tmp_path: Path) -> None:
    make_trainer(tmp_path, [TBMemoryLogger()], report_to=["tensorboard"], max_steps=4).train()
    folders = {path.parent for path in tmp_path.rglob("*tfevents*")}
    assert len(folders) == 1
    assert read_events(tmp_path, "train/loss") == [2, 4]
    assert read_events(tmp_path, "mem_host/rss_gib") == [1, 2, 3, 4]


def test_a_clear_stands_in_the_record_of_the_logger_whatever_the_order(tmp_path: Path) -> None:
    capture = Capture()
    collector, logger = SimpleGarbageCollector(collect_freq_step=2), MemoryCallback([], [capture])
    reader = MemoryCallback([Rule(Every(steps=1), [lambda moment, sample: {"mine/count": 1.0}])])
    for order in ([collector, logger, reader], [reader, logger, collector]):
        capture.samples.clear()
        make_trainer(tmp_path, order, max_steps=2).train()
        assert [sorted(n for n in s.values if n in ("mine/count", "collect/objects")) for s in capture.samples] == [
            ["mine/count"],
            ["collect/objects", "mine/count"],
        ]


class RunsOutOfMemoryOnce(Trainer):
    failed = False

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if not self.failed and self.state.global_step == 2:
            self.failed = True
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().training_step(*args, **kwargs)


def test_a_restart_with_a_smaller_batch_begins_a_new_run(tmp_path: Path) -> None:
    callback, capture = captured([Rule(Every(steps=1), [lambda m, s: {"mine/count": 1.0}])])
    trainer = make_trainer(
        tmp_path, [callback], trainer_class=RunsOutOfMemoryOnce, auto_find_batch_size=True, max_steps=4
    )
    before = list(gc.callbacks)
    trainer.train()
    assert [s.step for s in capture.samples] == [1, 2, 3, 4]  # of the second run
    assert callback.summary is not None
    assert callback.summary.steps == 4
    assert callback.summary.facts.end == "finished"
    assert gc.callbacks == before


def test_a_callback_added_in_the_middle_of_a_training_joins_in(tmp_path: Path) -> None:
    callback, capture = captured([Rule(Every(steps=1), [lambda m, s: {"mine/count": 1.0}])])

    class Adds(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                trainer.add_callback(callback)

    trainer = make_trainer(tmp_path, [Adds()])
    trainer.train()
    assert [s.step for s in capture.samples] in ([3, 4, 5, 6], [4, 5, 6])
    assert callback.summary.facts.end == "finished"


def test_a_callback_taken_out_in_the_middle_leaves_the_others_working(tmp_path: Path) -> None:
    first, capture = captured([Rule(Every(steps=1), [lambda m, s: {"mine/first": 1.0}])])
    last = MemoryCallback([Rule(Every(steps=1), [lambda m, s: {"mine/last": 1.0}])])

    class Removes(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                trainer.callback_handler.callbacks.remove(last)

    trainer = make_trainer(tmp_path, [Removes(), first, last])
    trainer.train()
    assert [s.step for s in capture.samples if "mine/first" in s.values] == [1, 2, 3, 4, 5, 6]
    assert [s.step for s in capture.samples if "mine/last" in s.values] == [1, 2, 3]
    assert first.summary.facts.end == "finished"


def test_switched_off_by_the_environment_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGATHER_MEM", "0")
    trainer = make_trainer(tmp_path, all_callbacks())
    trainer.train()
    assert not list(tmp_path.rglob("*tfevents*"))
    assert run_of(trainer.state) is None
    assert "_inner_training_loop" not in vars(trainer)


def test_disabled_callbacks_do_nothing(tmp_path: Path) -> None:
    steps = Steps()
    trainer = make_trainer(tmp_path, [MemoryCallback([Rule(Every(steps=1), [steps])], enabled=False)])
    trainer.train()
    assert steps.steps == []
    assert run_of(trainer.state) is None


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda callback: pickle.loads(pickle.dumps(callback))])
def test_callbacks_can_be_copied_and_pickled_before_and_after_a_training(tmp_path: Path, make_copy: Any) -> None:
    ours = all_callbacks()
    ours = [make_copy(callback) for callback in ours]
    make_trainer(tmp_path / "a", ours).train()
    again = [make_copy(callback) for callback in ours]
    make_trainer(tmp_path / "b", again).train()
    assert read_events(tmp_path / "b", "mem_host/rss_gib") == [1, 2, 3, 4, 5, 6]


def test_a_trainer_with_a_wrapped_method_can_be_copied(tmp_path: Path) -> None:
    callback, _ = captured([Rule(Every(steps=1), [Steps()])])
    trainer = make_trainer(tmp_path, [callback], max_steps=2)
    twin = copy.deepcopy(trainer)
    twin.train()
    assert (twin.state.global_step, trainer.state.global_step) == (2, 0)
    trainer.train()
    assert trainer.state.global_step == 2


def test_a_trainer_is_freed_without_a_collection_as_soon_as_without_us(tmp_path: Path) -> None:
    import weakref

    def alive_after(callbacks: list[TrainerCallback]) -> bool:
        trainer = make_trainer(tmp_path, callbacks)
        trainer.train()
        reference = weakref.ref(trainer)
        gc.disable()
        try:
            del trainer
            return reference() is not None
        finally:
            gc.enable()

    assert alive_after([SimpleGarbageCollector(), MemoryCallback()]) == alive_after([])


def test_evaluate_and_predict_work_outside_a_training(tmp_path: Path) -> None:
    ours = all_callbacks()
    trainer = make_trainer(tmp_path, ours)
    trainer.evaluate()
    trainer.train()
    metrics = trainer.evaluate()
    assert not any(key.startswith("mem") for key in metrics)
    trainer.predict(trainer.eval_dataset)


def test_our_numbers_stand_in_the_trainers_log_but_not_in_an_evaluations_metrics(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [PeakMemory()], eval_strategy="steps", eval_steps=3)
    trainer.train()
    losses = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert losses
    for entry in losses:
        ours = {key: value for key, value in entry.items() if key.startswith("mem_")}
        assert ours
        assert all(type(value) in (int, float) for value in ours.values())
    assert not any(key.startswith("mem_") for key in trainer.evaluate())


def test_the_names_that_the_link_wraps_exist(tmp_path: Path) -> None:
    from forgather_mem.callbacks.trainer.phases import PHASE_OF_METHOD

    trainer = make_trainer(tmp_path)
    for name in (*PHASE_OF_METHOD, "log", "train"):
        assert callable(getattr(Trainer, name)), name
    assert callable(trainer.accelerator.backward)
    assert callable(trainer.callback_handler.on_pre_optimizer_step)
    assert callable(trainer.callback_handler.on_optimizer_step)


def test_the_phases_of_a_step_come_in_their_order(tmp_path: Path) -> None:
    seen: list[str] = []

    class Phases:
        def begin(self, run: Any) -> None:
            run.watch_phases(self)

        def phase_begin(self, phase: str) -> None:
            seen.append(phase)

        def phase_end(self, phase: str) -> None:
            pass

        def __call__(self, moment: Any, sample: Any) -> dict[str, float]:
            seen.append(f"step {moment.step}")
            return {}

    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    callback = MemoryCallback([Rule(Every(steps=1), [Phases()])])
    make_trainer(tmp_path, [callback], max_steps=2, gradient_accumulation_steps=2, **settings).train()
    micro = ["forward", "backward"] * 2
    assert seen == [
        "startup",
        *["data", *micro, "optimizer", "step 1"],
        *["data", *micro, "optimizer", "step 2", "evaluate", "save"],
    ]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SimpleGarbageCollector(0), r"SimpleGarbageCollector\(collect_freq_epoch=0\): a period is 1 epoch"),
        (lambda: SimpleGarbageCollector(collect_freq_step=0), r"collect_freq_step=0\): a period is 1 step or more"),
        (lambda: SimpleGarbageCollector(True), r"whole number"),
        (lambda: SimpleGarbageCollector("2"), r"whole number"),
        (lambda: SimpleGarbageCollector(None), r"give collect_freq_epoch or collect_freq_step"),
        (lambda: SimpleGarbageCollector(verbose="yes"), r"verbose='yes'\): verbose is true or false"),
        (lambda: CudaGarbageCollector(-1), r"CudaGarbageCollector\(collect_freq_epoch=-1\)"),
        (lambda: ClearCacheCallback("batch"), r"empty_cache_at='batch'\).*'epoch' or 'step'"),
        (lambda: ClearCacheCallback("step", 0), r"empty_cache_freq=0\): a period is 1 step or more"),
        (lambda: ClearCacheCallback(garbage_collection=1), r"garbage_collection is true or false"),
        (lambda: TBMemoryLogger(every_steps=0), r"TBMemoryLogger\(every_steps=0\)"),
        (lambda: TBMemoryLogger(metrics=["host", "devise"]), r"did you mean 'device'\?"),
        (lambda: TBMemoryLogger(metrics="host"), r"give a list of groups: host, device"),
        (lambda: TBMemoryLogger(metrics=[]), r"name one group or more"),
        (lambda: MemoryCallback(["collect"]), r"each is a Rule"),
        (lambda: MemoryCallback(3), r"rules=3\): give a list of rules"),
        (lambda: MemoryCallback(sinks="x"), r"sinks='x'\): give a list of sinks"),
        (lambda: TBMemoryLogger("runs"), r"summary_writer='runs'\).*use logging_dir"),
        (lambda: TBMemoryLogger(logging_dir=3), r"logging_dir=3\): give a folder's name"),
        (lambda: SimpleGarbageCollector(enabled="no"), r"enabled='no'\): enabled is true or false"),
        (lambda: ClearCacheCallback(strict=1), r"strict=1\): strict is true or false"),
        (lambda: SimpleGarbageCollector().on_epoch_end(1.5, {}), r"epoch=1.5\): an epoch is a whole number"),
        (lambda: MemoryCallback([], ["tb"]), r"a sink has a method write"),
    ],
)
def test_wrong_values_are_refused_when_a_callback_is_built(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_giving_a_step_period_makes_the_epoch_period_none() -> None:
    collector = SimpleGarbageCollector(collect_freq_step=5)
    assert (collector.collect_freq_epoch, collector.collect_freq_step) == (None, 5)
    assert SimpleGarbageCollector().collect_freq_epoch == 1
