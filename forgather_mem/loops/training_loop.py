"""`TrainingLoop`: fires a trainer's events from a custom training loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from forgather_mem.loops.events import LoopEvents
from forgather_mem.loops.state import default_arguments, of_transformers
from forgather_mem.system.call_wrapping import surrounded
from forgather_mem.system.tracing import is_traced

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState


class TrainingLoop:
    """Fires the events of `transformers.Trainer`, in its order, from a plain PyTorch loop.

        loop = TrainingLoop(model, optimizer, callbacks=load_callbacks("callbacks/memory.yaml"))
        with loop.train():
            for _ in range(num_epochs):
                with loop.epoch():
                    for batch in data:
                        with loop.step():
                            loss = model(**batch).loss
                            loss.backward()
                            optimizer.step()
                            optimizer.zero_grad()
                        loop.log({"loss": loss.item()})
                with loop.evaluation() as metrics:
                    metrics["eval_loss"] = evaluate(model)

    Any `TrainerCallback` can be used, also other libraries'; they see a real `TrainerState` and `TrainerControl`. Where
    the script does not import transformers, ours see the same names.
    Phases come from hooks on the outermost module and on the optimizer: "forward" while the model runs, "backward" from
    there to the optimizer's step, "data" between steps.

    Args:
        model: The outermost module, as called by the loop. Without it there is no forward phase.
        optimizer: Its `step` fires `pre_optimizer_step` and `optimizer_step`. Without it both fire at a step's end.
        args: Passed to callbacks as `args`: `TrainingArguments`, or any object with `output_dir`; None for no folder.
        callbacks: As for a `Trainer`: instances or classes.
    """

    links_itself: ClassVar[bool] = True  # it reports phases and the end itself, without wrapped methods

    def __init__(
        self, model: Any = None, optimizer: Any = None, *, args: Any = None, callbacks: Sequence[Any] = ()
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.args = args if args is not None else default_arguments()
        self._events = LoopEvents(self.args, callbacks, lambda: (model, optimizer))
        self.callback_handler = self._events.handler
        self._training = self._optimizer_stepped = False
        self._substeps = self._epochs_begun = 0
        self._events.fire("init_end")

    @property
    def state(self) -> TrainerState:
        """Steps, epoch and log history, as in a Trainer."""
        return self._events.state

    @property
    def control(self) -> TrainerControl:
        """What callbacks have requested; see `should_stop`."""
        return self._events.control

    # ---- callbacks ----

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Add a callback, or a class of one."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        """Remove a callback, or the first of a class, and return it; None if there is none."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Remove a callback, or the first of a class."""
        self.callback_handler.pop_callback(callback)

    @property
    def should_stop(self) -> bool:
        """Whether a callback has requested the end of the training or the epoch."""
        return bool(self.control.should_training_stop or self.control.should_epoch_stop)

    # ---- a training, outermost first ----

    @contextmanager
    def train(self) -> Iterator[TrainingLoop]:
        """A whole training. An exception passes through unchanged, after everything has been restored."""
        self._begin()
        with self._ended_by_errors():
            yield self
            self._finish()

    @contextmanager
    def epoch(self, num_steps: int | None = None) -> Iterator[int]:
        """One epoch; yields its number, counted from 0.

        Args:
            num_steps: Optimizer steps in it, if known: `state.epoch` is then fractional within the epoch.
        """
        self._need_training("epoch")
        number = self._epochs_begun
        self.control.should_epoch_stop = False
        self._epoch: tuple[float, int | None, int] = (float(number), num_steps, self.state.global_step)
        self._events.fire("epoch_begin")
        self._events.enter("data")
        yield number
        self._events.leave("data")
        self._epochs_begun = number + 1
        self.state.epoch = float(number + 1)
        self._events.fire("epoch_end")

    @contextmanager
    def step(self) -> Iterator[None]:
        """One optimizer step, with all its micro-batches."""
        self._need_training("step")
        self._events.leave("startup")
        self._events.leave("data")
        self._substeps = 0
        self._optimizer_stepped = False
        self._events.fire("step_begin")
        yield
        self._events.leave("backward")
        if not self._optimizer_stepped:
            self._optimizer_begins()
            self._events.optimizer_ends()
        self.state.global_step += 1
        began, num_steps, first_step = self._epoch
        if num_steps:
            self.state.epoch = began + (self.state.global_step - first_step) / num_steps
        self._events.fire("step_end")
        self._events.enter("data")

    @contextmanager
    def substep(self) -> Iterator[None]:
        """One micro-batch of a step. As in a Trainer, `substep_end` fires for all but a step's last one."""
        if self._substeps:
            self._events.fire("substep_end")
        self._substeps += 1
        yield

    @contextmanager
    def evaluation(self) -> Iterator[dict[str, float]]:
        """An evaluation; put its metrics into the yielded dict: they are logged and passed to `on_evaluate`."""
        metrics: dict[str, float] = {}
        with self._events.phase("evaluate"):
            yield metrics
            if metrics:
                self.log(metrics)
            self._events.fire("evaluate", metrics=metrics)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """The writing of a checkpoint."""
        with self._events.phase("save"):
            yield
            self._events.fire("save")

    def log(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Add numbers to `state.log_history` and fire `on_log`.

        Returns:
            The line with what our callbacks add to it, for the trackers of this loop:
            `accelerator.log(loop.log({"loss": loss}), step=loop.state.global_step)`.
        """
        return self._events.log(logs)

    # ---- the handler interface of loops that only know epochs and batches ----

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Plain call: an epoch begins; `epoch` counts from 0."""
        self._reach_epoch(epoch)
        self._events.fire("epoch_begin")

    def on_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Plain call: a batch is finished, which counts as one optimizer step."""
        self._reach_epoch(self._epochs_begun)
        self.state.global_step += 1
        self._events.fire("step_end")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Plain call: an epoch has ended; `epoch` counts from 0."""
        self._reach_epoch(epoch)
        self._epochs_begun = epoch + 1
        self.state.epoch = float(epoch + 1)
        self._events.fire("epoch_end")
        if logs:
            self.log(logs)

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        """Plain call: the training is over."""
        if self._training:
            with self._ended_by_errors():
                self._finish()

    # ---- inside ----

    def _reach_epoch(self, epoch: int) -> None:
        if not self._training:
            self._begin(epoch)
            self._events.leave("startup")  # these loops tell of no phase that would end it

    def _begin(self, epoch: int = 0) -> None:
        if self._training:
            raise RuntimeError("TrainingLoop.train(): a training is running already; leave its `with` block first")
        self._events.renew()
        self.state.epoch = float(epoch)
        if isinstance(self.args, of_transformers("TrainingArguments", "training_args") or ()):
            self.state.max_steps = self.args.max_steps if self.args.max_steps > 0 else sys.maxsize
            for period in ("logging_steps", "eval_steps", "save_steps"):
                setattr(self.state, period, getattr(self.args, period))
        self._epochs_begun = epoch
        self._epoch = (float(epoch), None, 0)
        self._training = True
        self._hooks = self._events.fence.call("the hooks of a loop", self._set_hooks) or ExitStack()
        with self._ended_by_errors():
            self._events.fire("train_begin")
            self._events.enter("startup")

    def _finish(self) -> None:
        self._events.fire("train_end")
        self._end()

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """An error that leaves the block ends the training, also one that comes while it ends: a second Ctrl-C."""
        try:
            try:
                yield
            except BaseException as error:
                self._end(error)
                raise
        except BaseException as error:
            self._end(error)
            raise

    def _end(self, error: BaseException | None = None) -> None:
        self._training = False
        try:
            self._hooks.close()
        finally:
            self._events.close(error)

    def _set_hooks(self) -> ExitStack:
        hooks, events = ExitStack(), self._events

        def hear(register: Callable[..., Any], tell: Callable[..., None], **how: bool) -> None:
            hooks.callback(register(lambda *given: None if is_traced() else tell(*given), **how).remove)

        model = self.model
        if hasattr(model, "register_forward_pre_hook"):
            hear(model.register_forward_pre_hook, lambda _, *given: events.forward_begins(*given), with_kwargs=True)
            hear(model.register_forward_hook, lambda *given: events.forward_ends(given[-1]), always_call=True)
            hooks.callback(surrounded(sys.modules["torch"].autograd, "backward", events.backward_begins))
        if hasattr(self.optimizer, "register_step_pre_hook"):
            hear(self.optimizer.register_step_pre_hook, lambda *_: self._optimizer_begins())
            hear(self.optimizer.register_step_post_hook, lambda *_: events.optimizer_ends())
        return hooks

    def _optimizer_begins(self) -> None:
        self._optimizer_stepped = True
        self._events.optimizer_begins()

    def _need_training(self, what: str) -> None:
        if not self._training:
            raise RuntimeError(f"TrainingLoop.{what}(): there is no training; put it inside `with loop.train():`")
