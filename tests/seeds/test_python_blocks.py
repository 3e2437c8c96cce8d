"""Every Python block of the documents runs, with nothing but its import lines replaced, and does what it is there for.

The table at the end says what a block finds (`given`), which blocks stand before it, and what it leaves (`left`).
"""

from __future__ import annotations  # and so for the blocks that it compiles

import functools
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback

import forgather_mem
from forgather_mem import callbacks as ours
from tests.events import scalars, texts
from tests.seeds.blocks import WHY_NOT, all_blocks, with_our_imports
from tests.simulated_device import SimulatedDevice, simulated_device
from tests.tokenizer import TextTrainer
from tests.training import make_trainer

pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.filterwarnings("ignore:.do_sample. is set to"),  # a block sets a temperature without it
]
INSTEAD = {
    ".base": "transformers:TrainerCallback",
    "robo_orchard_lab.pipeline.hooks": "forgather_mem.callbacks.hooks",
    "forgather.ml.trainer_types": "transformers",
    "forgather.ml.default_callbacks": "forgather_mem.callbacks",
    "forgather.ml.tb_logger": "forgather_mem.callbacks",
    "forgather.ml.textgen_callback": "forgather_mem.callbacks",
    "src.utils.memory_monitor": "forgather_mem",
}
# What the documents take for granted from one block to the next: the names that they are about.
TAKEN_FOR_GRANTED = {
    "TrainerCallback": TrainerCallback,
    **{name: getattr(ours, name) for name in ("SimpleGarbageCollector", "CudaGarbageCollector")},
    **{name: getattr(ours, name) for name in ("TBLogger", "JsonLogger", "TextgenCallback")},
    **{name: getattr(forgather_mem, name) for name in ("MemoryMonitor", "MemoryTracker", "EpochMemoryMonitor")},
    **{name: getattr(forgather_mem, name) for name in ("BatchMemoryProfiler", "track_memory", "monitor_memory")},
}


@dataclass
class Stage:
    """Where a block runs."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    read: Callable[[], Any]
    until_the_end: ExitStack
    names: dict[str, Any] = field(default_factory=dict)
    kept: Any = None

    def said(self) -> str:
        out, err = self.read()
        return out + err

    def trainer(self, callbacks: Any = (), **settings: Any) -> Trainer:
        defaults = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2}
        return make_trainer(self.folder / "out", callbacks, trainer_class=TextTrainer, **{**defaults, **settings})

    def trained(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        """The callback of a class that the block defines, after a training."""
        callback = self.names[name](*arguments, **keywords)
        self.trainer([callback]).train()
        return callback


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Stage]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORGATHER_MEM_STRICT", "1")
    with ExitStack() as until_the_end:
        gc.freeze()  # what is loaded already: a collection then takes no time
        until_the_end.callback(gc.unfreeze)
        yield Stage(tmp_path, monkeypatch, capsys.readouterr, until_the_end)


def kinds(trainer: Trainer) -> list[str]:
    return [type(callback).__name__ for callback in trainer.callback_handler.callbacks]


def nothing(stage: Stage) -> dict[str, Any]:
    return {}


# ---- 000: the two collectors ----


def epochs_with_a_collection(callback: Any) -> list[int]:
    epochs: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            epochs.append(epoch)

    gc.disable()
    gc.callbacks.append(note)
    try:
        for epoch in range(6):
            callback.on_epoch_end(epoch)
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    return epochs


def collects_when_ours_does(stage: Stage, name: str) -> None:
    theirs, same_of_ours = stage.names[name](collect_freq_epoch=2), getattr(ours, name)(collect_freq_epoch=2)
    assert epochs_with_a_collection(theirs) == epochs_with_a_collection(same_of_ours) == [1, 3, 5]


def a_handler(stage: Stage) -> dict[str, Any]:
    return {"handler": forgather_mem.TrainingLoop()}


def both_collect_in_the_handler(stage: Stage) -> None:
    handler = stage.names["handler"]
    for epoch in range(10):
        handler.on_epoch_end(epoch, {"loss": 1.0})
    handler.on_train_end()
    collector = handler.pop_callback(ours.SimpleGarbageCollector)
    assert [(row["what"], row["calls"]) for row in collector.summary.ledger][:1] == [("collect", 12)]
    assert stage.said().count("Garbage collection finished in") == 12


# ---- 001: hooks; 002: cleaning up by hand ----


def a_device_with_a_cache(stage: Stage) -> dict[str, Any]:
    device: SimulatedDevice = stage.until_the_end.enter_context(simulated_device(stage.monkeypatch))
    device.hold(100)
    device.reserved = 150.0
    stage.monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(device, "reserved", device.allocated))
    return {}


def the_cache_was_cleared(stage: Stage) -> None:
    (row,) = stage.names["memory_manager"].ledger.rows()
    assert (row.what, row.calls, row.freed_bytes) == ("clear", 1, 50 * 2**20)


def a_model_in_a_cycle(stage: Stage) -> dict[str, Any]:
    model = torch.nn.Linear(4, 4)
    model.owners = [model]
    stage.kept = weakref.ref(model)
    return {"model": model}


def the_model_is_gone(stage: Stage) -> None:
    assert stage.kept() is None


# ---- 003: callbacks of a trainer ----


def a_trainer(stage: Stage) -> dict[str, Any]:
    return {"trainer": stage.trainer(), "writer": SummaryWriter(str(stage.folder / "tb"))}


def progress_is_shown(stage: Stage) -> None:
    assert kinds(stage.names["trainer"])[-1] == "ProgressCallback"
    stage.names["trainer"].train()
    assert "step 6/6" in stage.said()


def losses_are_in_the_writers_folder(stage: Stage) -> None:
    stage.names["trainer"].train()
    stage.names["writer"].close()
    assert [step for step, _ in scalars(stage.folder / "runs" / "my_experiment")["train-loss"]] == [2, 4, 6]
    assert "My Experiment" in texts(stage.folder / "runs")["experiment"][0][1]


def text_will_be_generated(stage: Stage) -> None:
    callback = stage.names["callback"]
    assert callback in stage.names["trainer"].callback_handler.callbacks
    assert (len(callback.prompts), callback.generation_steps) == (2, 500)
    assert callback.generation_config["max_new_tokens"] == 30
    stage.names["trainer"].train()
    assert not texts(stage.folder / "tb"), "500 steps have not gone by"


def it_counts_the_steps(stage: Stage) -> None:
    assert stage.trained("MyCustomCallback").step_count == 6
    assert "6 steps" in stage.said()


def the_best_model_is_saved(stage: Stage) -> None:
    best = stage.trained("ModelCheckpointCallback", stage.folder / "best").best_model_path
    assert json.loads((best / "metrics.json").read_text())["eval_loss"] > 0
    assert (best / "config.json").is_file()


def a_trainer_and_what_callbacks_need(stage: Stage) -> dict[str, Any]:
    return {**a_trainer(stage), "summary_writer": SummaryWriter(str(stage.folder / "tb")), "test_prompts": ["w3 w4"]}


def all_were_added_and_work(stage: Stage) -> None:
    trainer = stage.names["trainer"]
    assert kinds(trainer)[-5:] == [*["MyCustomCallback"] * 2, "TBLogger", "JsonLogger", "TextgenCallback"]
    trainer.train()
    stage.names["summary_writer"].close()
    assert [step for step, _ in scalars(stage.folder / "tb")["train-loss"]] == [2, 4, 6]
    (log,) = stage.folder.rglob("trainer_logs.json")
    assert json.loads(log.read_text())[0]["meta"] == {"name": "experiment"}
    assert [step for step, _ in texts(stage.folder / "out")["generated_text"]] == [2, 4, 6]


def a_trainer_with_a_logger(stage: Stage) -> dict[str, Any]:
    return {"trainer": stage.trainer([ours.TBLogger()])}


def all_were_removed(stage: Stage) -> None:
    assert not {"MyCustomCallback", "TBLogger"} & set(kinds(stage.names["trainer"]))


def a_trainer_and_a_folder_for_models(stage: Stage) -> dict[str, Any]:
    # The block calls its class without the folder that the class asks for.
    checkpoint = functools.partial(stage.names["ModelCheckpointCallback"], stage.folder / "best")
    return {**a_trainer(stage), "ModelCheckpointCallback": checkpoint, "prompts": ["w3 w4"]}


def they_stand_in_order(stage: Stage) -> None:
    assert kinds(stage.names["trainer"])[-3:] == ["ModelCheckpointCallback", "TBLogger", "TextgenCallback"]


def it_trains(stage: Stage, *names: str, said: str = "") -> None:
    for name in names:
        stage.trained(name)
    assert said in stage.said()


def weights_and_biases_offline(stage: Stage) -> dict[str, Any]:
    pytest.importorskip("wandb", reason="wandb is not installed")
    stage.monkeypatch.setenv("WANDB_MODE", "offline")
    return {}


def a_run_is_kept_offline(stage: Stage) -> None:
    stage.trained("WandBCallback", "a project")
    assert list((stage.folder / "wandb").glob("offline-run-*/*.wandb"))


def its_settings_are_kept(stage: Stage) -> None:
    callback = stage.trained("ConfigurableCallback", frequency=2, color="red")
    assert (callback.frequency, callback.enabled, callback.config) == (2, True, {"color": "red"})


def a_trainer_with_a_metric(stage: Stage) -> dict[str, Any]:
    settings = {"metric_for_best_model": "eval_loss", "load_best_model_at_end": True}
    trainer = stage.trainer(**settings, save_strategy="steps", save_steps=2)
    return {**a_trainer(stage), "trainer": trainer}


def both_kinds_work_together(stage: Stage) -> None:
    trainer = stage.names["trainer"]
    assert type(trainer.callback_handler.callbacks[-2]) is EarlyStoppingCallback
    trainer.train()
    stage.names["writer"].close()
    assert scalars(stage.folder / "tb")["eval-loss"]


# ---- 004: trackers ----


def readings_are_told(stage: Stage) -> None:
    assert stage.names["cpu_mb"] > 50
    has_device = torch.accelerator.is_available() and torch.cuda.is_initialized()
    assert (stage.names["gpu_mb"] is not None) is has_device
    assert stage.said().startswith("After model creation: ")


def it_says(stage: Stage, *words: str) -> None:
    said = stage.said()
    assert all(word in said for word in words), said


def a_batch(stage: Stage) -> dict[str, Any]:
    return {"batch_idx": 0, "loss": torch.tensor(0.5)}


def called_it_says(stage: Stage, *words: str, monitor: bool = False) -> None:
    trainer = SimpleNamespace(memory_monitor=forgather_mem.EpochMemoryMonitor()) if monitor else SimpleNamespace()
    stage.names["_train_epoch"](trainer)
    it_says(stage, *words)


def data_to_load(stage: Stage) -> dict[str, Any]:
    return {"HybridDataset": lambda config: bytearray(2**20)}


def batches(stage: Stage) -> dict[str, Any]:
    return {"dataloader": range(8), "torch": torch, "loss": 0.5}


def configurations(stage: Stage) -> dict[str, Any]:
    return {"train_model": lambda size: bytearray(size), "config_A": 2**20, "config_B": 2**21}


@dataclass(frozen=True)
class Case:
    """How one block is run."""

    left: Callable[[Stage], None]
    given: Callable[[Stage], dict[str, Any]] = nothing
    after: tuple[str, ...] = ()


def does(check: Callable[..., None], *arguments: Any, **keywords: Any) -> Callable[[Stage], None]:
    return lambda stage: check(stage, *arguments, **keywords)


CASES = {
    "000 python 1": Case(does(collects_when_ours_does, "SimpleGarbageCollector")),
    "000 python 2": Case(does(collects_when_ours_does, "CudaGarbageCollector"), after=("000 python 1",)),
    "000 python 3": Case(both_collect_in_the_handler, a_handler),
    "001 python 1": Case(the_cache_was_cleared, a_device_with_a_cache),
    "001 python 2": Case(the_cache_was_cleared, a_device_with_a_cache, ("001 python 1",)),
    "002 python 1": Case(the_model_is_gone, a_model_in_a_cycle),
    "003 python 1": Case(progress_is_shown, a_trainer),
    "003 python 2": Case(losses_are_in_the_writers_folder, a_trainer),
    "003 python 3": Case(text_will_be_generated, a_trainer),
    "003 python 4": Case(it_counts_the_steps),
    "003 python 5": Case(the_best_model_is_saved),
    "003 python 6": Case(all_were_added_and_work, a_trainer_and_what_callbacks_need, ("003 python 4",)),
    "003 python 7": Case(all_were_removed, a_trainer_with_a_logger, ("003 python 4",)),
    "003 python 8": Case(they_stand_in_order, a_trainer_and_a_folder_for_models, ("003 python 5",)),
    "003 python 9": Case(does(it_trains, "ConditionalCallback")),
    "003 python 10": Case(a_run_is_kept_offline, weights_and_biases_offline),
    "003 python 11": Case(does(it_trains, "MultiProcessCallback", said="main process only")),
    "003 python 12": Case(does(it_trains, "DebugCallback", said="event: on_evaluate")),
    "003 python 13": Case(does(it_trains, "StateInspectionCallback", said="Step 6/6")),
    "003 python 14": Case(does(it_trains, "LossMonitorCallback", "EverythingCallback")),
    "003 python 15": Case(does(it_trains, "SafeCallback")),
    "003 python 16": Case(its_settings_are_kept),
    "003 python 17": Case(does(it_trains, "RobustCallback", said="error: 'RobustCallback' object has no attribute")),
    "003 python 18": Case(both_kinds_work_together, a_trainer_with_a_metric),
    "004 python 1": Case(readings_are_told),
    "004 python 2": Case(does(it_says, "initialization", "after_training")),
    "004 python 3": Case(does(it_says, "Batch 0: ", "loss=0.500000", "Epoch end: "), a_batch),
    "004 python 4": Case(does(it_says, "data_loaded", "forward")),
    "004 python 5": Case(does(called_it_says, "training epoch: ")),
    "004 python 6": Case(does(it_says, "data loading: "), data_to_load),
    "004 python 7": Case(does(called_it_says, "Batch 0: ", "Batch 4: "), batches),
    "004 python 8": Case(does(called_it_says, "Batch 0: ", "loss=0.500000", "Epoch end: ", monitor=True), batches),
    "004 python 9": Case(does(it_says, "config_A: ", "config_B: ", "baseline"), configurations),
}


@pytest.mark.parametrize("name", CASES)
def test_a_block_runs_and_leaves_what_it_is_there_for(name: str, stage: Stage) -> None:
    case, blocks = CASES[name], all_blocks()
    stage.names.update(TAKEN_FOR_GRANTED, __name__="seeds")
    for earlier in case.after:
        exec(compile(with_our_imports(blocks[earlier], INSTEAD), earlier, "exec"), stage.names)
    stage.names.update(case.given(stage))
    exec(compile(with_our_imports(blocks[name], INSTEAD), name, "exec"), stage.names)
    case.left(stage)


def test_no_block_is_left_out() -> None:
    assert {name for name in all_blocks() if "python" in name} == CASES.keys()
