"""Runs the callbacks in Lightning: one Lightning callback carries them and fires the events of a Trainer.

Needs the extra `forgather_mem[lightning]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from forgather_mem.callbacks.trainer.method_patches import Arguments, Call, Keywords, MethodPatches
from forgather_mem.loops.events import LoopEvents
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.guard import FailureGuard

if TYPE_CHECKING:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from transformers import TrainerCallback, TrainerControl, TrainerState

try:
    if TYPE_CHECKING or "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
        from lightning.pytorch.callbacks import Callback
    else:  # the same under its older name
        from pytorch_lightning.callbacks import Callback
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "forgather_mem.callbacks.lightning needs Lightning: pip install 'forgather_mem[lightning]'"
    ) from error


class LightningCallbacks(Callback):
    """A Lightning callback that carries trainer callbacks.

        trainer = lightning.Trainer(callbacks=[LightningCallbacks(load_callbacks("callbacks/memory.yaml"))])

    Steps are Lightning's `global_step`, which counts optimizer steps. Validation inside an epoch fires
    `evaluate` before the `epoch_end` of its epoch. Lightning's sanity check is a phase of evaluation after
    `train_begin`, and fires nothing. Each batch of a validation fires `prediction_step`. `log` fires every
    `log_every_n_steps` steps with the batch's loss, the learning rate and what the module has logged, and before
    `evaluate` with the metrics; what our sinks add to these lines goes to Lightning's loggers, too. A callback that
    sets `control.should_training_stop` stops the Lightning trainer after the batch.

    Args:
        callbacks: Instances or classes, as for `transformers.Trainer`.
    """

    def __init__(self, callbacks: Sequence[TrainerCallback | type[TrainerCallback]]) -> None:
        self.callbacks = list(callbacks)
        self._events: LoopEvents | None = None
        self._patches = MethodPatches(FailureGuard())

    @property
    def state(self) -> TrainerState:
        """Steps, epoch and log history of the training that runs, as in a Trainer."""
        return self._training.state

    @property
    def control(self) -> TrainerControl:
        """What callbacks have requested."""
        return self._training.control

    @property
    def _training(self) -> LoopEvents:
        assert self._events is not None, "only the hooks of a training read these"
        return self._events

    # ---- Lightning's hooks ----

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer, pl_module)
        self._phase("evaluate")

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._phase("startup")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._events is None:
            self._begin(trainer, pl_module)

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        arguments = SimpleNamespace(
            output_dir=trainer.default_root_dir,
            logging_dir=trainer.log_dir,
            process_index=trainer.global_rank,
            local_process_index=trainer.local_rank,
            world_size=trainer.world_size,
            accumulate_grad_batches=getattr(trainer, "accumulate_grad_batches", None),
        )
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        self._events = LoopEvents(arguments, self.callbacks, lambda: (pl_module, optimizer))
        self.state.max_steps = trainer.max_steps
        self._inside_step = False
        self._of_validation: set[str] = set()  # names of the validation metrics
        self._of_ours: set[str] = set()  # names that our sinks add to a line
        self._follow(trainer)
        self._patches.wrap(trainer, "save_checkpoint", self._save)
        self._patches.wrap(trainer.fit_loop.epoch_loop, "_on_before_fetch", self._fetch)
        self._training.fire("train_begin")
        self._phase("startup")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follow(trainer)
        self._training.fire("epoch_begin")
        self._phase(None)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        if not self._inside_step:
            self._inside_step = True
            self._training.fire("step_begin")
        self._phase(None)
        self._training.forward_begins((batch,), {})

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        self._training.see_output(loss)
        self._phase("backward")

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._phase(None)

    def on_before_optimizer_step(self, trainer: Trainer, *_: object) -> None:
        self._training.fire("pre_optimizer_step")
        self._phase("optimizer")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        self._phase(None)
        before = self.state.global_step
        self._follow(trainer, batch_idx)
        if self.state.global_step == before:
            self._training.fire("substep_end")
            return
        self._inside_step = False
        after, self.state.global_step = self.state.global_step, before
        self._training.fire("optimizer_step")
        self.state.global_step = after
        self._training.fire("step_end")
        every = getattr(trainer, "log_every_n_steps", 0)  # set without a declaration
        if every and after % every == 0:
            ours = self._log(lambda: {**_step_numbers(trainer, outputs), **self._metrics(trainer, of_validation=False)})
            if ours:  # into the line that Lightning is about to log
                log = partial(pl_module.log_dict, ours, on_step=True, on_epoch=False)
                self._training.fence.call("the log of a module", log)
        trainer.should_stop |= self.control.should_training_stop or self.control.should_epoch_stop

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._events is not None and not trainer.sanity_checking:
            self._known = set(trainer.callback_metrics)
            self._phase("evaluate")

    def on_validation_batch_end(self, trainer: Trainer, *_: object) -> None:
        if self._events is not None and not trainer.sanity_checking:
            counts = trainer.num_val_batches
            self._training.fire("prediction_step", num_batches=sum(counts) if isinstance(counts, list) else counts)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._events is not None and not trainer.sanity_checking:
            self._phase(None)
            self._of_validation |= set(trainer.callback_metrics) - self._known
            metrics = self._events.fence.call("metrics", lambda: self._metrics(trainer, of_validation=True)) or {}
            ours = self._log(lambda: metrics)
            for logger in trainer.loggers if ours else ():  # here a module may log nothing
                self._training.fence.call("a logger of Lightning", logger.log_metrics, ours, trainer.global_step)
            self._training.fire("evaluate", metrics=metrics)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._phase(None)
        self.state.epoch = float(trainer.current_epoch + 1)
        self._training.fire("epoch_end")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training.fire("train_end")
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()  # nothing was trained after the sanity check

    # ---- inside ----

    def _follow(self, trainer: Trainer, batch_idx: int | None = None) -> None:
        """Copies Lightning's counters into the state."""
        self.state.global_step = trainer.global_step
        self.state.epoch = float(trainer.current_epoch)
        batches = trainer.num_training_batches
        if batch_idx is not None and isinstance(batches, int) and batches > 0:
            self.state.epoch += (batch_idx + 1) / batches

    def _metrics(self, trainer: Trainer, *, of_validation: bool) -> dict[str, float]:
        metrics = [(name, value) for name, value in trainer.callback_metrics.items() if name not in self._of_ours]
        return {name: float(value) for name, value in metrics if (name in self._of_validation) is of_validation}

    def _fetch(self, call: Call, arguments: Arguments, keywords: Keywords) -> object:
        """The next batch is asked for; other callbacks, and what the module does at a batch's end, come before."""
        self._phase("data")
        return call(*arguments, **keywords)

    def _save(self, call: Call, arguments: Arguments, keywords: Keywords) -> object:
        """A checkpoint is written inside a phase of its own."""
        if self._events is None:
            return call(*arguments, **keywords)
        outer = self._events.phases.current
        self._phase(None)  # or the wait for the next batch would have the peak of the checkpoint
        with self._events.phase("save"):
            result = call(*arguments, **keywords)
        self._training.fire("save")
        self._phase(outer if outer in STEP_PHASES else None)
        return result

    def _log(self, numbers: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Log these, and return what our sinks have added to them."""
        logs = self._training.fence.call("metrics", numbers) or {}
        line = self._training.log(logs)
        ours = {name: value for name, value in line.items() if name not in logs and name != "epoch"}
        self._of_ours |= set(ours)
        return ours

    def _phase(self, phase: str | None) -> None:
        """Enter this phase; None for no phase."""
        if self._events is not None:
            self._events.leave_all()
            if phase is not None:
                self._events.enter(phase)

    def _close(self, error: BaseException | None = None) -> None:
        events, self._events = self._events, None
        self._patches.unwrap_all()
        if events is not None:
            events.close(error)


def _step_numbers(trainer: Trainer, outputs: Any) -> dict[str, float]:
    """The loss of a batch, as Lightning passes it to callbacks, and the learning rate."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    numbers = {} if loss is None else {"loss": float(loss)}
    if trainer.optimizers:
        numbers["learning_rate"] = float(trainer.optimizers[0].param_groups[0]["lr"])
    return numbers
