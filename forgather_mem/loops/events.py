"""The events and phases of a loop that is no Trainer: fired for its callbacks, and told to their run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forgather_mem.diagnose.oom.recognition import close_fenced
from forgather_mem.engine.phases import PhaseStack
from forgather_mem.engine.run import Run
from forgather_mem.engine.run_of import run_of
from forgather_mem.engine.schedule import ArmedRule, ArmedWork
from forgather_mem.loops.state import LoopControl, new_state, of_transformers
from forgather_mem.telemetry.guard import FailureGuard

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl

BEFORE_FORWARD = ("forward", "backward", "data")  # or before the optimizer
Objects = Callable[[], tuple[object, object]]  # the model and the optimizer of a training
# Inside each step, and most often of no interest to anybody.
_INSIDE = ("step_begin", "pre_optimizer_step", "optimizer_step")


class LoopEvents:
    """What any loop tells trainer callbacks. Failures of our own never reach the loop.

    Args:
        args: What callbacks get as `args`.
        callbacks: Instances or classes, as for a `Trainer`.
        objects: Gives the model and the optimizer, which are passed to callbacks, anew for each event: nothing of ours
            holds them in between.

    Attributes:
        state, control: As in a Trainer; the loop counts in `state`.
        handler: The callbacks.
        phases: Those of the run, or without one of nobody.
        is_quiet: Whether no callback wants the events of the step that comes: who tells of it need only call `phases`
            and `step_passes`.
    """

    def __init__(
        self,
        args: Any,
        callbacks: Sequence[TrainerCallback | type[TrainerCallback]],
        objects: Objects = lambda: (None, None),
    ) -> None:
        self.args, self.fence = args, FailureGuard()
        flow = []  # without `TrainingArguments` the loop's own code decides when to log, evaluate and save
        if isinstance(args, of_transformers("TrainingArguments", "training_args") or ()):
            from transformers import DefaultFlowCallback

            flow = [DefaultFlowCallback()]
        self.handler = CallbackList([*flow, *callbacks], objects)
        self.renew()

    def renew(self) -> None:
        """Another training: its state and control are new ones."""
        self.state = new_state(self.args)
        control: type[Any] = of_transformers("TrainerControl") or LoopControl
        self.control: TrainerControl = control()
        self._no_phases = PhaseStack()  # where none of the callbacks is ours
        self._run: Run | None = None
        self.phases, self.is_quiet, self._quiet_until = self._no_phases, False, 0.0
        self._due: dict[str, float] = {}  # after so many steps somebody wants this event inside a step again
        self._urgent: list[tuple[ArmedRule, ArmedWork]] = []  # what may want the end of a step before that

    def fire(self, event: str, **objects: object) -> None:
        """Call `on_<event>` of all callbacks; what is in `objects` is passed to them by name."""
        if self.state.global_step < self._due.get(event, 0.0):
            return
        self.control = self.handler.call_event(f"on_{event}", self.args, self.state, self.control, **objects)
        self._look_ahead()  # they change their minds in events only

    def step_passes(self) -> bool:
        """A step of which nobody was told is over. False if its end is to be told all the same."""
        run, step = self._run, self.state.global_step
        assert run is not None
        run.steps_are_done(step)
        if self._urgent and run.recorder.is_urgent(self._urgent, step):
            return False
        if step >= self._quiet_until:
            self.is_quiet = False
        return True

    def _look_ahead(self) -> None:
        done, self._urgent = self.state.global_step, []
        for event in (*_INSIDE, "step_end"):
            self._due[event] = math.inf
            for callback in self.handler.callbacks:
                # Of somebody else's callback it is not known what it wants
                due, urgent = getattr(callback, "next_wanted", lambda *_: (0.0, ()))(event, done)
                self._due[event] = min(self._due[event], due)
                self._urgent += urgent
        self._quiet_until = min(self._due.pop("step_end") - 1, *self._due.values())
        run = self.run()
        self.phases = self._no_phases if run is None else run.phases
        self.is_quiet = run is not None and done < self._quiet_until

    def run(self) -> Run | None:
        """The run of this training, if one of the callbacks is ours."""
        if self._run is None or self._run.closed:
            self._run = self.fence.call("the run of a loop", run_of, self.state)
        return self._run

    def log(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Add numbers, with what our sinks add to a log line, to `state.log_history`, and fire `on_log`.

        Returns:
            The whole line.
        """
        run = self.run()
        ours = run.fence.call("log values", run.log_values, logs) if run is not None else None
        entry = {**logs, **(ours or {})}
        if self.state.epoch is not None:
            entry.setdefault("epoch", self.state.epoch)
        self.state.log_history.append({**entry, "step": self.state.global_step})
        self.fire("log", logs=entry)
        return entry

    def close(self, error: BaseException | None = None) -> None:
        """The training is over, ended by this error if there is one. Idempotent."""
        run = self.run()
        if run is not None:
            run.fence.call("the end of a run", run.reach, self.state.global_step)  # not each step is read
            close_fenced(run, error)

    # ---- phases ----

    def enter(self, phase: str) -> None:
        """This phase begins; a pass that is open is over then."""
        self.fence.call("phases", self.phases.turn, phase, BEFORE_FORWARD[:2])

    def leave(self, phase: str) -> None:
        """This phase is over, if it is open."""
        self.fence.call("phases", self.phases.leave, phase)

    def leave_all(self) -> None:
        """No phase is open from now on."""
        self.fence.call("phases", lambda: self.phases.leave(self.phases.current))

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """The block is this phase."""
        self.enter(phase)
        try:
            yield
        except BaseException:
            self.fence.call("phases", self.phases.fail)
            raise
        finally:
            self.leave(phase)

    # ---- what a module and an optimizer tell ----

    def forward_begins(self, arguments: tuple[object, ...], keywords: dict[str, object]) -> None:
        """The outermost module is called with these."""
        self.fence.call("phases", self.phases.turn, "forward", BEFORE_FORWARD)
        self.fence.call("phases", self.phases.see_batch, arguments, keywords)

    def forward_ends(self, outputs: object) -> None:
        """It has returned; the loss may be computed now. None where an exception has left it."""
        if outputs is None and sys.exc_info()[0] is not None:
            self.fence.call("phases", self.phases.fail)
            return
        self.see_output(outputs)

    def backward_begins(self) -> None:
        """The backward pass does."""
        if self.phases.current == "forward":  # not inside an evaluation
            self.phases.turn("backward", ("forward",))

    def see_output(self, outputs: object) -> None:
        """A forward pass has returned this."""
        self.fence.call("settings", self.phases.on_output, outputs)

    def optimizer_begins(self) -> None:
        """The gradients are there, and the optimizer is called."""
        self.leave_all()
        self.fire("pre_optimizer_step")
        self.enter("optimizer")

    def optimizer_ends(self) -> None:
        """The optimizer has returned."""
        self.leave("optimizer")
        self.fire("optimizer_step")


class CallbackList:
    """Calls callbacks as transformers' `CallbackHandler` does, which is not imported for a loop.

    Args:
        callbacks: Instances or classes, as for a `Trainer`.
        objects: Gives the model and the optimizer, which are passed to each of them.
    """

    def __init__(self, callbacks: Iterable[TrainerCallback | type[TrainerCallback]], objects: Objects) -> None:
        self.callbacks: list[TrainerCallback] = []
        for callback in callbacks:
            self.add_callback(callback)
        self._objects = objects

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Add a callback, or a new one of a class."""
        self.callbacks.append(callback() if isinstance(callback, type) else callback)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        """Remove a callback, or the first of a class, and return it; None if there is none."""
        for known in self.callbacks:
            if isinstance(known, callback) if isinstance(callback, type) else known == callback:
                self.callbacks.remove(known)
                return known
        return None

    def call_event(self, event: str, args: object, state: object, control: object, **objects: object) -> Any:
        """Call this method of each; returns the control that the last of them has returned, if any has."""
        model, optimizer = self._objects()
        for callback in self.callbacks:
            returned = getattr(callback, event)(
                args, state, control, model=model, processing_class=None, optimizer=optimizer,
                lr_scheduler=None, train_dataloader=None, eval_dataloader=None, **objects,
            )  # fmt: skip
            control = control if returned is None else returned
        return control
