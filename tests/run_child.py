"""A watched training that says when it has begun a step: `python run_child.py FOLDER STEPS`, to be killed."""

import sys
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from forgather_mem import attach
from tests.training import make_trainer


class Telling(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        print(state.global_step, flush=True)
        time.sleep(0.002)


trainer = make_trainer(Path(sys.argv[1]), [Telling()], max_steps=int(sys.argv[2]))
attach(trainer)
trainer.train()
