"""Callbacks that act on a metric: keep the best model, stop when it no longer gets better."""

import json
from pathlib import Path

from transformers import TrainerCallback


class Best:
    """The best value of a metric so far."""

    def __init__(self, mode="min", threshold=0.0):
        if mode not in ("min", "max"):
            raise ValueError(f"mode={mode!r}: a metric is best at its 'min' or its 'max'")
        self.sign = 1 if mode == "max" else -1
        self.threshold = threshold
        self.value = None

    def improves(self, value):
        """Whether this value is better than all before, by more than the threshold; it is then the best."""
        if self.value is not None and self.sign * (value - self.value) <= self.threshold:
            return False
        self.value = value
        return True


class ModelCheckpointCallback(TrainerCallback):
    """Writes the model to `output_dir/best` whenever an evaluation is the best one so far."""

    def __init__(self, output_dir="best_models", metric="eval_loss", mode="min"):
        self.folder = Path(output_dir) / "best"
        self.metric = metric
        self.best = Best(mode)

    def on_evaluate(self, args, state, control, metrics=None, model=None, **kwargs):
        value = (metrics or {}).get(self.metric)
        if value is None or not self.best.improves(value) or not state.is_world_process_zero:
            return
        model.save_pretrained(self.folder)
        told = {"step": state.global_step, "epoch": state.epoch, **metrics}
        (self.folder / "metrics.json").write_text(json.dumps(told, indent=2))
        print(f"step {state.global_step}: best {self.metric} so far, {value:.4f}; saved to {self.folder}")


class EarlyStoppingCallback(TrainerCallback):
    """Ends the training when so many evaluations in a row were not better by more than a threshold."""

    def __init__(self, patience=3, threshold=0.0, metric="eval_loss", mode="min"):
        self.patience = patience
        self.metric = metric
        self.best = Best(mode, threshold)
        self.waited = 0

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        value = (metrics or {}).get(self.metric)
        if value is None:
            return
        self.waited = 0 if self.best.improves(value) else self.waited + 1
        if self.waited >= self.patience:  # every rank sees the same metrics, so all stop at this step
            control.should_training_stop = True
            print(f"step {state.global_step}: {self.metric} has not improved {self.waited} times; the training ends")
