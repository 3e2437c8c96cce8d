"""What all our callbacks do alike: they join trainings and leave them, are copied, and are switched off."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from forgather_mem.callbacks import ClearCacheCallback, MemoryCallback, SimpleGarbageCollector, TBMemoryLogger
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import AtEvent, Every
from tests.callbacks.common import RunsOutOfMemoryOnce, Steps, all_callbacks, captured
from tests.events import scalars
from tests.launch.commands import environment
from tests.training import AtStep, make_trainer


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


@pytest.mark.slow
def test_one_callback_serves_several_trainings(tmp_path: Path) -> None:
    callback, capture = captured([Rule(Every(steps=1), [Steps()]), Rule(AtEvent("train_end"), [Steps()])])
    logger = TBMemoryLogger()
    for name in ("a", "b"):
        make_trainer(tmp_path / name, [callback, logger], max_steps=3).train()
    trainer = make_trainer(tmp_path / "c", [callback, logger], max_steps=3)
    trainer.train()
    trainer.train()
    assert logger.summary.steps == 3
    assert [s.step for s in capture.samples if "host/rss_bytes" in s.values] == [1, 2, 3]  # of the last run
    for name in ("a", "b"):
        assert [step for step, _ in scalars(tmp_path / name)["mem_host/rss_gib"]] == [1, 2, 3]


@pytest.mark.slow
def test_a_restart_with_a_smaller_batch_begins_a_new_run(tmp_path: Path) -> None:
    callback, capture = captured([Rule(Every(steps=1), [lambda m, s: {"mine/count": 1.0}])])
    made = make_trainer(tmp_path, [callback], trainer_class=RunsOutOfMemoryOnce, auto_find_batch_size=True, max_steps=4)
    before = list(gc.callbacks)
    made.train()
    assert [s.step for s in capture.samples] == [1, 2, 3, 4]  # of the second run
    assert callback.summary.steps == 4
    assert callback.summary.facts.end == "finished"
    assert gc.callbacks == before


@pytest.mark.slow
def test_a_callback_added_in_the_middle_of_a_training_joins_in(tmp_path: Path) -> None:
    callback, capture = captured([Rule(Every(steps=1), [lambda m, s: {"mine/count": 1.0}])])
    trainer = make_trainer(tmp_path, [AtStep(3, lambda: trainer.add_callback(callback))])
    trainer.train()
    assert [s.step for s in capture.samples] in ([3, 4, 5, 6], [4, 5, 6])
    assert callback.summary.facts.end == "finished"


def test_a_callback_taken_out_in_the_middle_leaves_the_others_working(tmp_path: Path) -> None:
    first, capture = captured([Rule(Every(steps=1), [lambda m, s: {"mine/first": 1.0}])])
    last = MemoryCallback([Rule(Every(steps=1), [lambda m, s: {"mine/last": 1.0}])])
    removes = AtStep(3, lambda: trainer.callback_handler.callbacks.remove(last), "step_begin")
    trainer = make_trainer(tmp_path, [removes, first, last])
    trainer.train()
    assert [s.step for s in capture.samples if "mine/first" in s.values] == [1, 2, 3, 4, 5, 6]
    assert [s.step for s in capture.samples if "mine/last" in s.values] == [1, 2, 3]
    assert first.summary.facts.end == "finished"


@pytest.mark.slow
def test_evaluate_and_predict_work_outside_a_training(tmp_path: Path) -> None:
    ours = all_callbacks()
    trainer = make_trainer(tmp_path, ours)
    trainer.evaluate()
    trainer.train()
    assert not any(key.startswith("mem") for key in trainer.evaluate())
    trainer.predict(trainer.eval_dataset)


LOOP_THEN_TRAINER = """
import sys

import torch

import forgather_mem
from forgather_mem.callbacks import LeakDetector, MemoryCallback

class Mine(LeakDetector):
    pass

parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([parameter])
with forgather_mem.watch(output_dir=None, quiet=True) as watching:
    for _ in range(3):
        parameter.sum().backward()
        optimizer.step()
print(watching.report()["steps"], sorted({name.partition(".")[0] for name in sys.modules} & UNWANTED))

early, mine = watching.callbacks[0], Mine()
from transformers import TrainerCallback
from tests.training import make_trainer

trainer = make_trainer(sys.argv[1], [early, mine], max_steps=4)
print(isinstance(early, TrainerCallback), issubclass(Mine, TrainerCallback))
handle = forgather_mem.attach(trainer)
trainer.train()
print(handle.report()["steps"], early.summary.steps, trainer.pop_callback(MemoryCallback) is early)
print(isinstance(MemoryCallback(), TrainerCallback))
"""
UNWANTED = {"transformers", "accelerate", "huggingface_hub", "yaml", "jinja2", "google_crc32c", "psutil", "tensorboard"}


@pytest.mark.soak
def test_a_trainer_takes_callbacks_that_were_made_for_a_loop_before_transformers_was_imported(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "script.py").write_text(LOOP_THEN_TRAINER.replace("UNWANTED", str(UNWANTED)))
    words = [sys.executable, "-W", "ignore", str(tmp_path / "script.py"), str(tmp_path / "out")]
    done = subprocess.run(words, cwd=root, env=environment(PYTHONPATH=str(root)), capture_output=True, text=True)
    assert done.stdout.splitlines() == ["3 []", "True True", "4 4 True", "True"], done.stderr
