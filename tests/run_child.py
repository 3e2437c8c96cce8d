"""A watched training that says when it has begun a step, and is killed in one: `python run_child.py FOLDER STEP`."""

import os
import signal
import sys
import threading
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
        if state.global_step == int(sys.argv[2]):  # at any moment soon
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()


trainer = make_trainer(Path(sys.argv[1]), [Telling()], max_steps=100_000)
attach(trainer)
trainer.train()
