"""A training that reports to one tracker; prints what it logged, as JSON, in its last line.

train.py TRACKER HOW: `trainer`, `fails` (with an exception), or `accelerate` for a loop of one's own.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from forgather_mem import TrainingLoop
from forgather_mem.callbacks import LeakDetector, PeakMemory
from tests.training import make_trainer, tiny_model

ALSO = ["headroom", "phases", "tensors", "verdict"]


def with_trainer(tracker: str, *, fails: bool) -> list[dict[str, float]]:
    callbacks = [PeakMemory(also=ALSO, strict=True), LeakDetector(strict=True)]
    settings: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 3, "run_name": "tested"}
    if tracker == "trackio":
        settings["trackio_space_id"] = None
    trainer = make_trainer(Path("out"), callbacks, report_to=[tracker], **settings)
    if fails:
        step, trainer.training_step = (
            trainer.training_step,
            lambda *given: 1 / (4 - trainer.state.global_step) * step(*given),
        )
    try:
        trainer.train()
    except ZeroDivisionError:
        assert fails
    return trainer.state.log_history


def with_accelerate(tracker: str) -> list[dict[str, float]]:
    from accelerate import Accelerator

    accelerator = Accelerator(log_with=tracker, project_dir="out", cpu=True)
    accelerator.init_trackers("tested", init_kwargs={"trackio": {"space_id": None}})
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters())
    loop = TrainingLoop(model, optimizer, callbacks=[PeakMemory(also=ALSO, strict=True)])
    rows = torch.randint(0, 64, (4, 16))
    with loop.train():
        for _ in range(6):
            with loop.step():
                loss = model(input_ids=rows, labels=rows).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if loop.state.global_step % 2 == 0:
                accelerator.log(loop.log({"loss": loss.item()}), step=loop.state.global_step)
    accelerator.end_training()
    return loop.state.log_history


if __name__ == "__main__":
    tracker, how = sys.argv[1:]
    history = with_accelerate(tracker) if how == "accelerate" else with_trainer(tracker, fails=how == "fails")
    Path("history.json").write_text(json.dumps(history))
