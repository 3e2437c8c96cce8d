"""The demo's progress bar with the last loss, in place of the trainer's bars and printed dicts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Never

from tqdm import tqdm
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

if TYPE_CHECKING:
    from transformers import Trainer
    from transformers import TrainerControl as Control
    from transformers import TrainerState as State
    from transformers import TrainingArguments as Args


class DemoProgress(TrainerCallback):
    """Shows nothing if stderr is not a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm[Never] | None = None

    @classmethod
    def in_place_of_the_trainers(cls, trainer: Trainer) -> DemoProgress:
        """The bar of this training, which from now on is its only one."""
        for printing in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(printing)
        bar = cls()
        trainer.add_callback(bar)
        return bar

    def on_train_begin(self, args: Args, state: State, control: Control, **objects: object) -> None:
        self._bar = tqdm(total=state.max_steps, unit="step", dynamic_ncols=True, disable=not sys.stderr.isatty())

    def on_step_end(self, args: Args, state: State, control: Control, **objects: object) -> None:
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(
        self, args: Args, state: State, control: Control, logs: Mapping[str, float] | None = None, **objects: object
    ) -> None:
        for name in ("loss", "eval_loss"):
            if self._bar is not None and logs and name in logs:
                self._bar.set_postfix_str(f"{name.replace('_', ' ')} {float(logs[name]):.2f}")

    def close(self) -> None:
        """Leave the bar in place, and go to the next line."""
        if self._bar is not None:
            self._bar.close()
