"""Runs the callbacks in Lightning: one Lightning callback carries them and fires the events of a Trainer.

Needs the extra `forgather_mem[lightning]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerControl, TrainerState

from forgather_mem.diagnose.oom.failing import close_fenced
from forgather_mem.engine.run import Run
from forgather_mem.engine.run_of import run_of
from forgather_mem.telemetry.guard import FailureGuard

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "forgather_mem.callbacks.lightning needs Lightning: pip install 'forgather_mem[lightning]'"
    ) from error

if TYPE_CHECKING:
    import torch
    from lightning.pytorch import LightningModule, Trainer

_FENCE = FailureGuard()  # for what is ours outside a run


class LightningCallbacks(Callback):
    """A Lightning callback that carries trainer callbacks.

        trainer = lightning.Trainer(callbacks=[LightningCallbacks(load_callbacks("callbacks/memory.yaml"))])

    Steps are Lightning's `global_step`, which counts optimizer steps. Validation inside an epoch fires
    `evaluate` before the `epoch_end` of its epoch; Lightning's sanity check fires nothing. `log` fires every
    `log_every_n_steps` steps with the batch's loss, the learning rate and what the module has logged, and before
    `evaluate` with the metrics. A callback that sets `control.should_training_stop` stops the Lightning trainer after
    the batch.

    Args:
        callbacks: Instances or classes, as for `transformers.Trainer`.
    """

    def __init__(self, callbacks: Sequence[TrainerCallback | type[TrainerCallback]]) -> None:
        self.callbacks = list(callbacks)
        self._handler: CallbackHandler | None = None

    # ---- Lightning's hooks ----

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.state = TrainerState()
        self.control = TrainerControl()
        self._args = SimpleNamespace(
            output_dir=trainer.default_root_dir,
            logging_dir=trainer.log_dir,
            process_index=trainer.global_rank,
            world_size=trainer.world_size,
        )
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        self._handler = CallbackHandler([_NoFlow(), *self.callbacks], pl_module, None, optimizer, None)
        self.state.is_world_process_zero = trainer.is_global_zero
        self.state.is_local_process_zero = trainer.local_rank == 0
        self.state.max_steps = trainer.max_steps
        self._inside_step = False
        self._of_validation: set[str] = set()  # names of the validation metrics
        self._follow(trainer)
        self._fire("train_begin")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follow(trainer)
        self._fire("epoch_begin")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        if not self._inside_step:
            self._inside_step = True
            self._fire("step_begin")
        self._phase("forward")

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        self._phase("backward")

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._phase(None)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self._fire("pre_optimizer_step")
        self._phase("optimizer")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: object, batch_idx: int
    ) -> None:
        self._phase(None)
        before = self.state.global_step
        self._follow(trainer, batch_idx)
        if self.state.global_step == before:
            self._fire("substep_end")
            return
        self._inside_step = False
        after, self.state.global_step = self.state.global_step, before
        self._fire("optimizer_step")
        self.state.global_step = after
        self._fire("step_end")
        every = getattr(trainer, "log_every_n_steps", 0)  # set without a declaration
        if every and after % every == 0:
            self._log(lambda: {**_step_numbers(trainer, outputs), **self._metrics(trainer, of_validation=False)})
        if self.control.should_training_stop or self.control.should_epoch_stop:
            trainer.should_stop = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._handler is not None and not trainer.sanity_checking:
            self._known = set(trainer.callback_metrics)
            self._phase("evaluate")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._handler is not None and not trainer.sanity_checking:
            self._phase(None)
            self._of_validation |= set(trainer.callback_metrics) - self._known
            metrics = _FENCE.call("metrics", lambda: self._metrics(trainer, of_validation=True)) or {}
            self._log(lambda: metrics)
            self._fire("evaluate", metrics=metrics)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: object) -> None:
        if self._handler is not None:
            self._fire("save")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.state.epoch = float(trainer.current_epoch + 1)
        self._fire("epoch_end")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._fire("train_end")
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close(exception)

    # ---- inside ----

    def _follow(self, trainer: Trainer, batch_idx: int | None = None) -> None:
        """Copies Lightning's counters into the state."""
        self.state.global_step = trainer.global_step
        self.state.epoch = float(trainer.current_epoch)
        batches = trainer.num_training_batches
        if batch_idx is not None and isinstance(batches, int) and batches > 0:
            self.state.epoch += (batch_idx + 1) / batches

    def _metrics(self, trainer: Trainer, *, of_validation: bool) -> dict[str, float]:
        metrics = trainer.callback_metrics.items()
        return {name: float(value) for name, value in metrics if (name in self._of_validation) is of_validation}

    def _log(self, numbers: Callable[[], dict[str, float]]) -> None:
        run = self._run()
        logs = _FENCE.call("metrics", numbers) or {}
        ours = run.fence.call("log values", run.log_values) if run is not None else None
        entry = {**logs, **(ours or {}), "epoch": self.state.epoch}
        self.state.log_history.append({**entry, "step": self.state.global_step})
        self._fire("log", logs=entry)

    def _fire(self, event: str, **objects: object) -> None:
        assert self._handler is not None
        control = self._handler.call_event(f"on_{event}", self._args, self.state, self.control, **objects)
        self.control = control if control is not None else self.control

    def _run(self) -> Run | None:
        return run_of(self.state) if self._handler is not None else None

    def _phase(self, phase: str | None) -> None:
        """Enter this phase; None for no phase."""
        run = self._run()
        if run is not None:
            run.fence.call("phases", run.phases.leave, run.phases.current)
            if phase is not None:
                run.fence.call("phases", run.phases.enter, phase)

    def _close(self, error: BaseException | None = None) -> None:
        run = self._run()
        try:
            if run is not None:
                close_fenced(run, error)
        finally:
            self._handler = None


class _NoFlow(DefaultFlowCallback):
    """Lightning decides when to log, validate and save; transformers warns if no flow callback does."""

    def on_step_end(self, args: object, state: object, control: object, **kwargs: object) -> None: ...

    def on_epoch_end(self, args: object, state: object, control: object, **kwargs: object) -> None: ...


def _step_numbers(trainer: Trainer, outputs: Any) -> dict[str, float]:
    """The loss of a batch, as Lightning passes it to callbacks, and the learning rate."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    numbers = {} if loss is None else {"loss": float(loss)}
    if trainer.optimizers:
        numbers["learning_rate"] = float(trainer.optimizers[0].param_groups[0]["lr"])
    return numbers
