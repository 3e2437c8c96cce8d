"""When Lightning's `ModelCheckpoint` saves, as far as that is certain."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from forgather_mem.diagnose.alerts.checkpoint import SavePlan

_Lightnings = Any  # most of what is read here is set without a declaration
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")  # those that save all of it in one file
# Callbacks that neither stop a training nor move what is there
_HARMLESS = ("Progress", "Summary", "Monitor", "ModelCheckpoint", "LightningCallbacks")


def planned_saves(trainer: _Lightnings) -> SavePlan | None:
    """The checkpoints of the only `ModelCheckpoint`; None for none, and where a hook or a strategy changes them."""
    savers = [one for one in trainer.checkpoint_callbacks if type(one).__name__ == "ModelCheckpoint"]
    hooks = [getattr(type(part), "on_save_checkpoint", None) for part in (trainer.lightning_module, *trainer.callbacks)]
    if (
        len(savers) != 1
        or not savers[0].save_top_k
        or trainer.fast_dev_run
        or type(trainer.strategy).__name__ not in _STRATEGIES
        or type(trainer.strategy.checkpoint_io).__name__ != "TorchCheckpointIO"
        or not all(str(hook.__module__).startswith(("lightning.", "pytorch_lightning.")) for hook in hooks if hook)
    ):
        return None
    saver = savers[0]
    every, count = saver._every_n_train_steps or None, _num_saves(trainer, saver)
    stay = [any(name in type(one).__name__ for name in _HARMLESS) for one in trainer.callbacks]
    most = count if saver.save_top_k < 0 else min(count, 1 if saver.monitor else 2)  # a metric may let some out
    if not all(stay) or not saver._enable_version_counter:  # without it one name may be used again and again
        most = 1
    keeps, place = None if saver.save_top_k < 0 else saver.save_top_k, str(saver.dirpath)
    options = "save_top_k=1", "save_weights_only=True", "dirpath"
    plan = SavePlan(num_checkpoints=count, most_at_once=most, every_steps=every, keeps=keeps, folder=place)
    plan = replace(plan, only_model=saver.save_weights_only, is_buffered=True, options=options)
    return plan if count > 0 else None


def _num_saves(trainer: _Lightnings, saver: _Lightnings) -> int:
    """How many are certain if nothing stops the training."""
    if every := saver._every_n_train_steps:
        steps = trainer.estimated_stepping_batches
        return math.floor(steps / every) if math.isfinite(steps) else 1
    if not (every := saver._every_n_epochs) or trainer.check_val_every_n_epoch != 1:
        return 0
    return int((trainer.max_epochs or 0) // every) if trainer.max_steps < 0 else int(every == 1)
