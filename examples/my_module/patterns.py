"""Callbacks that show a pattern: now and then, configured, on one process only, without breaking the training."""

import logging
import os

from transformers import TrainerCallback

logger = logging.getLogger(__name__)


def note_learning_rate(state, lr_scheduler=None, **kwargs):
    """A function for the callbacks below: says where the training stands."""
    print(f"step {state.global_step}: learning rate {lr_scheduler.get_last_lr()[0]:.2e}")


class ConditionalCallback(TrainerCallback):
    """Calls a function every N-th step, from an epoch on."""

    def __init__(self, function=note_learning_rate, every_steps=500, from_epoch=0):
        self.function = function
        self.every_steps = every_steps
        self.from_epoch = from_epoch

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.every_steps == 0 and state.epoch >= self.from_epoch:
            self.function(state, **kwargs)


class ConfigurableCallback(TrainerCallback):
    """Counts the rows that were trained on; how often it tells and what it says besides stands in the template."""

    def __init__(self, frequency=100, enabled=True, **labels):
        self.frequency = frequency
        self.enabled = enabled
        self.labels = labels
        self.rows = 0

    def on_step_end(self, args, state, control, **kwargs):
        if not self.enabled:
            return
        self.rows += args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        if state.global_step % self.frequency == 0 and state.is_world_process_zero:
            labels = "".join(f", {name}={value}" for name, value in self.labels.items())
            print(f"step {state.global_step}: {self.rows} rows{labels}")


class MultiProcessCallback(TrainerCallback):
    """Speaks once however many processes train: only the first of them prints."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs and "loss" in logs:
            print(f"step {state.global_step}: loss {logs['loss']:.4f} on {args.world_size} processes")


class RobustCallback(TrainerCallback):
    """Calls a function with every log line; what it raises is told once and does not end the training."""

    def __init__(self, function):
        self.function = function
        self.failed = False

    def on_log(self, args, state, control, logs=None, **kwargs):
        try:
            self.function(logs)
        except Exception as error:  # noqa: BLE001  whatever a user's function raises
            if not self.failed:
                logger.warning("step %d: %s: %s", state.global_step, type(error).__name__, error)
            self.failed = True


class WandBCallback(TrainerCallback):
    """Sends log lines to Weights & Biases; "offline" keeps them in a folder, for `wandb sync`."""

    def __init__(self, project_name, run_name=None, mode="offline"):
        self.settings = {"project": project_name, "name": run_name, "mode": mode}
        self.run = None

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            import wandb  # not needed by who only reads the template

            self.run = wandb.init(dir=os.path.abspath(args.output_dir), **self.settings)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.run is not None and logs:
            self.run.log(logs, step=state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        if self.run is not None:
            self.run.finish()
            self.run = None
