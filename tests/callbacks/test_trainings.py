"""Our callbacks in real trainings: what they do, what they leave alone, what they leave behind."""

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer

from forgather_mem.callbacks import MemoryCallback, SimpleGarbageCollector
from forgather_mem.engine.run_of import run_of
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.callbacks.common import FailsInForward, all_callbacks
from tests.memory import open_descriptors
from tests.training import AtStep, make_trainer, ours_in


def left_behind(trainer: Trainer) -> dict[str, Any]:
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": {path for path in open_descriptors() if "memory." in path or "forgather" in path or "statm" in path},
        "methods": ours_in(trainer, trainer.callback_handler, trainer.accelerator),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), list(gc.callbacks)),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_frozen")
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
        trainer.add_callback(AtStep(3, ValueError("stop")))
    elif ending == "interrupt":
        trainer.add_callback(AtStep(3, KeyboardInterrupt()))
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
