"""`TrainingLoop`: fires a trainer's events from a custom training loop."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerControl

from forgather_mem.diagnose.oom.failing import close_fenced
from forgather_mem.engine.run import Run
from forgather_mem.engine.run_of import run_of
from forgather_mem.loops.state import NoFlow, default_arguments, new_state
from forgather_mem.telemetry.guard import FailureGuard


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

    Any `TrainerCallback` can be used, also other libraries'; they see a real `TrainerState` and `TrainerControl`.
    Phases come from hooks on the outermost module and on the optimizer: "forward" while the model runs, "backward" from
    there to the optimizer's step, "data" between steps.

    Args:
        model: The outermost module, as called by the loop. Without it there is no forward phase.
        optimizer: Its `step` fires `pre_optimizer_step` and `optimizer_step`. Without it both fire at a step's end.
        args: Passed to callbacks as `args`: `TrainingArguments`, or any object with `output_dir`; None for no folder.
        callbacks: As for a `Trainer`: instances or classes.

    Attributes:
        state: Steps, epoch and log history, as in a Trainer.
        control: What callbacks have requested; see `should_stop`.
    """

    links_itself: ClassVar[bool] = True  # it reports phases and the end itself, without wrapped methods

    def __init__(
        self, model: Any = None, optimizer: Any = None, *, args: Any = None, callbacks: Sequence[Any] = ()
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.args = args if args is not None else default_arguments()
        self.state = new_state(self.args)
        self.control = TrainerControl()
        flow = DefaultFlowCallback() if isinstance(self.args, TrainingArguments) else NoFlow()
        self.callback_handler = CallbackHandler([flow, *callbacks], model, None, optimizer, None)
        self._training = self._optimizer_stepped = False
        self._hooks, self._fence = ExitStack(), FailureGuard()
        self._substeps = self._epochs_begun = 0
        self._epoch: tuple[float, int | None, int] = (0.0, None, 0)  # start, number of steps, first step
        self._fire("init_end")

    # ---- callbacks ----

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Add a callback, or a class of one."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        """Remove a callback, or the first of a class, and return it; None if there is none."""
        popped: TrainerCallback | None = self.callback_handler.pop_callback(callback)
        return popped

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Remove a callback, or the first of a class."""
        self.callback_handler.remove_callback(callback)

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
        self._epoch = (float(number), num_steps, self.state.global_step)
        self._fire("epoch_begin")
        self._enter("data")
        yield number
        self._leave("data")
        self._epochs_begun = number + 1
        self.state.epoch = float(number + 1)
        self._fire("epoch_end")

    @contextmanager
    def step(self) -> Iterator[None]:
        """One optimizer step, with all its micro-batches."""
        self._need_training("step")
        self._leave("data")
        self._substeps = 0
        self._optimizer_stepped = False
        self._fire("step_begin")
        yield
        self._leave("backward")
        if not self._optimizer_stepped:
            self._optimizer_begins()
            self._optimizer_ends()
        self.state.global_step += 1
        began, num_steps, first_step = self._epoch
        if num_steps:
            self.state.epoch = began + (self.state.global_step - first_step) / num_steps
        self._fire("step_end")
        self._enter("data")

    @contextmanager
    def substep(self) -> Iterator[None]:
        """One micro-batch of a step. As in a Trainer, `substep_end` fires for all but a step's last one."""
        if self._substeps:
            self._fire("substep_end")
        self._substeps += 1
        yield

    @contextmanager
    def evaluation(self) -> Iterator[dict[str, float]]:
        """An evaluation; put its metrics into the yielded dict: they are logged and passed to `on_evaluate`."""
        metrics: dict[str, float] = {}
        with self._phase("evaluate"):
            yield metrics
            if metrics:
                self.log(metrics)
            self._fire("evaluate", metrics=metrics)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """The writing of a checkpoint."""
        with self._phase("save"):
            yield
            self._fire("save")

    def log(self, logs: Mapping[str, float]) -> None:
        """Add numbers to `state.log_history` and fire `on_log`."""
        run = self._run()
        ours = run.fence.call("log values", run.log_values) if run is not None else None
        entry = {**logs, **(ours or {})}
        if self.state.epoch is not None:
            entry.setdefault("epoch", self.state.epoch)
        self.state.log_history.append({**entry, "step": self.state.global_step})
        self._fire("log", logs=entry)

    # ---- the handler interface of loops that only know epochs and batches ----

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Plain call: an epoch begins; `epoch` counts from 0."""
        self._reach_epoch(epoch)
        self._fire("epoch_begin")

    def on_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Plain call: a batch is finished, which counts as one optimizer step."""
        self._reach_epoch(self._epochs_begun)
        self.state.global_step += 1
        self._fire("step_end")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Plain call: an epoch has ended; `epoch` counts from 0."""
        self._reach_epoch(epoch)
        self._epochs_begun = epoch + 1
        self.state.epoch = float(epoch + 1)
        self._fire("epoch_end")
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

    def _begin(self, epoch: int = 0) -> None:
        if self._training:
            raise RuntimeError("TrainingLoop.train(): a training is running already; leave its `with` block first")
        self.state = new_state(self.args)
        self.state.epoch = float(epoch)
        if isinstance(self.args, TrainingArguments):
            self.state.max_steps = self.args.max_steps if self.args.max_steps > 0 else sys.maxsize
            for period in ("logging_steps", "eval_steps", "save_steps"):
                setattr(self.state, period, getattr(self.args, period))
        self.control = TrainerControl()
        self._epochs_begun = epoch
        self._epoch = (float(epoch), None, 0)
        self._training = True
        self._hooks = self._fence.call("the hooks of a loop", self._set_hooks) or ExitStack()
        with self._ended_by_errors():
            self._fire("train_begin")

    def _finish(self) -> None:
        self._fire("train_end")
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
        run = self._run()
        try:
            self._hooks.close()
        finally:
            if run is not None:
                close_fenced(run, error)

    def _set_hooks(self) -> ExitStack:
        hooks = ExitStack()
        if hasattr(self.model, "register_forward_pre_hook"):
            begins = self.model.register_forward_pre_hook(self._forward_begins, with_kwargs=True)
            ends = self.model.register_forward_hook(lambda *given: self._forward_ends(given[-1]), always_call=True)
            hooks.callback(begins.remove)
            hooks.callback(ends.remove)
        if hasattr(self.optimizer, "register_step_pre_hook"):
            begins = self.optimizer.register_step_pre_hook(lambda *_: self._optimizer_begins())
            ends = self.optimizer.register_step_post_hook(lambda *_: self._optimizer_ends())
            hooks.callback(begins.remove)
            hooks.callback(ends.remove)
        return hooks

    def _forward_begins(self, model: object, arguments: tuple[object, ...], keywords: dict[str, object]) -> None:
        self._enter("forward")
        run = self._run()
        if run is not None:
            for see in run.phases.on_batch:
                run.fence.call("batch", see, arguments, keywords)

    def _forward_ends(self, outputs: object) -> None:
        run = self._run()
        if run is not None and outputs is None and sys.exc_info()[0] is not None:
            run.fence.call("phases", run.phases.fail)
        elif run is not None and run.fence.call("phases", getattr, run.phases, "current") == "forward":
            run.fence.call("phases", run.phases.leave, "forward")
            run.fence.call("phases", run.phases.enter, "backward")

    def _optimizer_begins(self) -> None:
        self._leave("backward")
        self._optimizer_stepped = True
        self._fire("pre_optimizer_step")
        self._enter("optimizer")

    def _optimizer_ends(self) -> None:
        self._leave("optimizer")
        self._fire("optimizer_step")

    def _fire(self, event: str, **objects: object) -> None:
        control = self.callback_handler.call_event(f"on_{event}", self.args, self.state, self.control, **objects)
        self.control = control if control is not None else self.control

    def _run(self) -> Run | None:
        run: Run | None = self._fence.call("the run of a loop", run_of, self.state)
        return run

    def _enter(self, phase: str) -> None:
        run = self._run()
        if run is not None:
            run.fence.call("phases", run.phases.leave, "backward")  # another micro-batch
            run.fence.call("phases", run.phases.enter, phase)

    def _leave(self, phase: str) -> None:
        run = self._run()
        if run is not None:
            run.fence.call("phases", run.phases.leave, phase)

    @contextmanager
    def _phase(self, phase: str) -> Iterator[None]:
        self._enter(phase)
        run = self._run()
        try:
            yield
        except BaseException:
            if run is not None:
                run.fence.call("phases", run.phases.fail)
            raise
        finally:
            self._leave(phase)

    def _need_training(self, what: str) -> None:
        if not self._training:
            raise RuntimeError(f"TrainingLoop.{what}(): there is no training; put it inside `with loop.train():`")
