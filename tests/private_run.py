"""Run by test_private.py under `forgather-mem run`: `private_run.py HOW WORDS...`; it writes every file that we can."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from transformers import TrainerCallback

from forgather_mem import Every, Rule
from forgather_mem.callbacks import InfoCallback, JsonLogger, JsonMemoryLogger, MemoryCallback, TBLogger, TBMemoryLogger
from forgather_mem.probes import HostProbe
from forgather_mem.sinks import PrometheusSink
from tests.training import make_trainer

HOW = sys.argv[1]
ADDRESS = f"postgres://me:{os.environ['PRIVATE_PASSWORD']}@host/db"


class Ends(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step < 3 or HOW == "finished":
            return
        if HOW == "exception":
            raise ConnectionError(f"401 for {ADDRESS} with {os.environ['HF_TOKEN']}")
        if HOW == "oom":
            raise MemoryError(f"at {ADDRESS}")
        os.kill(os.getpid(), signal.SIGKILL)


info = {"description": "tried", "config": {"wandb_api_key": os.environ["WANDB_API_KEY"], "db": ADDRESS}}
rules = [Rule(when=Every(steps=1), do=[HostProbe()])]
callbacks = [
    InfoCallback(verbose=True), JsonLogger(**info), TBLogger(**info), TBMemoryLogger(), JsonMemoryLogger(),
    MemoryCallback(rules=rules, sinks=[PrometheusSink("memory.prom", every_s=0.01)]), Ends(),
]  # fmt: skip
trainer = make_trainer(Path("out"), callbacks, hub_token=os.environ["HF_TOKEN"], max_steps=4)
trainer.args.api_key = os.environ["WANDB_API_KEY"]  # as a field that a script has added
trainer.args.tracker = {"uri": ADDRESS}
trainer.args.to_dict = lambda given=trainer.args.to_dict: given() | vars(trainer.args)  # type: ignore[misc]
trainer.train()
