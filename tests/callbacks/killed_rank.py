"""Run by test_two_ranks.py: rank 1 is killed in a backward pass, and rank 0 takes so many seconds to close.

Rank 0 is watched by `attach`, rank 1 by the callbacks alone.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from forgather_mem import Every, Rule, attach, load_callbacks
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.telemetry.records import Moment, RunInfo, Sample
from tests.training import Bigrams, make_trainer


class Killed(TrainerCallback):
    """In the backward pass of step 3, where the other rank is too."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if args.process_index == 1:
            self._state = state
            model.table.weight.register_hook(self.die)

    def die(self, gradient: torch.Tensor) -> None:
        if self._state.global_step == 2:
            os.kill(os.getpid(), signal.SIGKILL)


class SlowToClose:
    """A launcher does not wait for its end."""

    def __call__(self, moment: Moment, sample: Sample) -> dict[str, float]:
        return {}

    def end(self, run: RunInfo) -> None:
        time.sleep(float(sys.argv[2]))


if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    ours = load_callbacks("callbacks/watch.yaml") if rank == 1 else []
    slow = MemoryCallback([Rule(when=Every(steps=1), do=[SlowToClose()])])
    settings = {"ddp_backend": "gloo", "dataloader_pin_memory": False, "disable_tqdm": True, "save_strategy": "no"}
    trainer = make_trainer(Path(sys.argv[1]), [Killed(), slow, *ours], model=Bigrams(), max_steps=9, **settings)
    if rank == 0:
        attach(trainer)
    trainer.train()
