"""Run by test_two_ranks.py on two ranks: real distributed trainings with every kind of callback of ours."""

import dataclasses
import gc
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from forgather_mem import Every, Rule
from forgather_mem.callbacks import (
    JsonMemoryLogger,
    MemoryAlert,
    MemoryCallback,
    ScheduledGarbageCollector,
    SimpleGarbageCollector,
    TBMemoryLogger,
)
from forgather_mem.callbacks.memory_alert import Alert
from forgather_mem.telemetry.records import Moment, Sample
from tests.callbacks.common import of_training
from tests.callbacks.test_built_ins import SETTINGS
from tests.tokenizer import TextTrainer
from tests.training import Bigrams, make_trainer

DISTRIBUTED = {"ddp_backend": "gloo", "dataloader_pin_memory": False, "disable_tqdm": True}


class SlowRank(TrainerCallback):
    """Rank 1 lags behind: nobody may wait for it but the training itself."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.process_index == 1 and state.global_step == 2:
            time.sleep(1.0)


class Collections(TrainerCallback):
    """Notes the steps at whose end a full collection ran; on one rank, collecting and training are slow."""

    def __init__(self, slow: bool) -> None:
        self.steps: list[int] = []
        self._step, self._slow = 0, slow

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2 and self._step not in self.steps:
            self.steps.append(self._step)
            time.sleep(0.04 if self._slow else 0.02)  # far above the budget, so that the schedule is stretched

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        gc.callbacks.append(self)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step = state.global_step + 1
        if self._slow:
            time.sleep(0.003)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        gc.callbacks.remove(self)


def level(moment: Moment, sample: Sample) -> Mapping[str, float]:
    """A reading that rises on rank 1 only."""
    return {"mine/level_frac": 0.95 if moment.run.rank == 1 and moment.step >= 7 else 0.2}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    trainer = make_trainer(
        folder, [ *of_training(), SimpleGarbageCollector(collect_freq_step=2, verbose=True),
        TBMemoryLogger(rank_steps=2), JsonMemoryLogger(), MemoryCallback(), SlowRank(), ], trainer_class=TextTrainer,
        **SETTINGS, **DISTRIBUTED,
    )  # fmt: skip
    trainer.train()
    rank = trainer.args.process_index
    collections = Collections(slow=rank == 1)
    governor = ScheduledGarbageCollector(every_steps=2)
    trainer = make_trainer(
        folder, [collections, governor], model=Bigrams(), rows=1024, max_steps=60, logging_strategy="no", **DISTRIBUTED
    )
    trainer.train()
    (folder / f"collections.rank{rank}.json").write_text(json.dumps(collections.steps))
    alerts: list[Alert] = []
    alert = MemoryAlert({"mine/level_frac": "90%"}, {}, None, call=alerts.append, save=True, stop=True)
    readings = MemoryCallback([Rule(when=Every(steps=1), do=[level])])
    trainer = make_trainer(folder / "alert", [readings, alert], model=Bigrams(), rows=512, max_steps=40, **DISTRIBUTED)
    trainer.train()
    told = {"alerts": [dataclasses.asdict(one) for one in alerts], "stopped_at": trainer.state.global_step}
    (folder / f"alerts.rank{rank}.json").write_text(json.dumps(told))
