"""The base of all our trainer callbacks: adds rules to the run of a training and passes events on."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from forgather_mem.callbacks.trainer.calling import calling_trainer
from forgather_mem.engine.run_of import RUNS, run_of
from forgather_mem.engine.schedule import EventSchedule, NextWanted, events_of
from forgather_mem.errors import check_flags
from forgather_mem.loops.state import of_transformers
from forgather_mem.system.time_budget import PREPARATION
from forgather_mem.telemetry.events import EVENTS, EVENTS_INSIDE_A_STEP, EVENTS_THAT_BEGIN_A_RUN
from forgather_mem.telemetry.guard import FailureGuard, Guarded
from forgather_mem.telemetry.records import Objects, Sink
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.run_session import is_off, why_off

if TYPE_CHECKING:
    from transformers import TrainerCallback
    from transformers import TrainerControl as Control
    from transformers import TrainerState as State
    from transformers import TrainingArguments as Args

    from forgather_mem.callbacks.trainer.link import Link
    from forgather_mem.engine.run import Run
    from forgather_mem.engine.summary import RunSummary
else:

    class TrainerCallback:
        """In the place of transformers' class until the script has imported that: a loop without it needs neither."""


def _passing_on(event: str) -> Callable[..., None]:
    """The handler of an event that does nothing else; it first checks whether there is anything to do."""
    is_inside = event in EVENTS_INSIDE_A_STEP

    def handle(
        self: RuleCallback, args: Args, state: State, control: Control, *metrics: object, **objects: object
    ) -> None:
        if event in self._events:
            due, urgent = self.next_wanted(event, state.global_step) if is_inside else (0.0, ())
            if urgent or not due or due <= state.global_step:
                self._event(event, args, state, control, objects)

    handle.__name__ = f"on_{event}"
    handle.__qualname__ = f"RuleCallback.on_{event}"
    return handle


class RuleCallback(TrainerCallback):
    """A trainer callback made of rules. Internal; users take `MemoryCallback(rules=[...])`.

    It is a `TrainerCallback` as soon as one of ours is made, or a Trainer has one, in a process that has imported that.

    Args:
        rules: What to do, and when.
        sinks: Where the run's records go, in addition to the sinks of other callbacks.
        enabled: False disables the callback; so does `FORGATHER_MEM=0` in the environment.
        strict: Let failures of our own end the training instead of logging them once.

    Raises:
        ValueError: if `enabled` or `strict` is neither true nor false.
    """

    # Whether readings need the phase (forward, backward, ...), which only a link to the trainer provides.
    needs_phases = False
    # Events that it also handles outside a training, as in an evaluation before or after it.
    outside: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self, rules: Sequence[Rule], sinks: Sequence[Sink] = (), *, enabled: bool = True, strict: bool = False
    ) -> None:
        check_flags(type(self).__name__, enabled=enabled, strict=strict)
        FailureGuard(strict).call("link", _be_trainer_callbacks)
        self.rules = tuple(rules)
        self.sinks = tuple(sinks)
        self.enabled = enabled
        self.strict = strict
        self.failure: str | None = None  # why our run of the last training could not begin
        self._summary: RunSummary | None = None
        self._forget_run()

    @property
    def summary(self) -> RunSummary | None:
        """Numbers of the current or last training; None before the first. Switched off, there are none in it."""
        return self._run.summary if self._run is not None else self._summary

    def next_wanted(self, event: str, steps_done: int) -> NextWanted:
        """After how many steps this event of a step is wanted again; and what may want it before that."""
        plan = self._plans.get(event)
        if getattr(type(self), f"on_{event}") is getattr(RuleCallback, f"on_{event}"):  # else it does what is not known
            if event not in self._events:
                return math.inf, ()
            if plan is not None and self._following is False:
                due = min(((steps_done // period + 1) * period for period in plan.periods), default=math.inf)
                return due - plan.offset, plan.urgent
        return 0.0, ()

    def close(self) -> None:
        """End the run now: flush what is open, restore what was changed. For a training that raised an exception."""
        if self._run is not None:
            run = self._run
            self._leave_run()
            run.close("interrupted")

    # ---- events ----

    def on_init_end(self, args: Args, state: State, control: Control, **objects: object) -> None:
        FailureGuard(self.strict).call("link", _be_trainer_callbacks)
        FailureGuard(self.strict).call("link", self._stay_linked)

    def on_train_begin(self, args: Args, state: State, control: Control, **objects: object) -> None:
        self.failure = None
        self._summary = _nothing_watched() if self.enabled and is_off() else None
        self._event("train_begin", args, state, control, objects)

    def on_train_end(self, args: Args, state: State, control: Control, **objects: object) -> None:
        self._event("train_end", args, state, control, objects)
        FailureGuard(self.strict).call("the end of a run", self._finish, state.global_step)

    def on_epoch_end(self, args: Any = None, state: Any = None, control: Any = None, **objects: object) -> None:
        """The trainer's event, or the plain call `on_epoch_end(epoch, logs=None)` of a loop without a trainer.

        In the plain call `epoch` counts from 0; a rule with a period of N epochs is due after epochs N, 2 N, ...

        Raises:
            TypeError: for a plain call with an epoch that is not an integer.
        """
        if state is None or isinstance(state, Mapping):
            epoch: Any = objects.get("epoch", args)
            FailureGuard(self.strict).call(type(self).__name__, self._plain_epoch_end, operator.index(epoch))
        elif "epoch_end" in self._events:
            self._event("epoch_end", args, state, control, objects)

    # ---- inside ----

    def __getstate__(self) -> dict[str, object]:
        of_this_training = ("_run", "_plans", "_part")  # and of this process
        return {name: value for name, value in self.__dict__.items() if name not in of_this_training}

    def __setstate__(self, kept: dict[str, object]) -> None:
        self.__dict__.update(kept)
        self._forget_run()

    def _on(self) -> bool:
        return self.enabled and self.failure is None and not is_off()

    def _finish(self, step: int) -> None:
        run = self._run
        if run is not None:
            run.step = step  # a callback may have heard of none since the first
            self._leave_run()
            run.fence.call("the end of a run", run.finish, self)
            if not run.members and not run.closed:  # closing has failed
                run.put_back()

    def _stay_linked(self) -> None:
        link = self._link() if self._on() else None
        if link is not None:
            link.stay(FailureGuard(self.strict))

    def _link(self) -> Link | None:
        """The link of the trainer that is calling us, created if missing; None outside a trainer."""
        if (trainer := calling_trainer()) is None:
            return None
        from forgather_mem.callbacks.trainer.link import Link

        return Link.of(trainer, self)

    def _forget_run(self) -> None:
        self._run: Run | None = None
        self._plans: dict[str, EventSchedule] = {}
        self._events = events_of(self.rules) if self.enabled else frozenset()
        self._following: bool | None = None  # whether the effect of an action is followed over the next steps
        self._part = Guarded(type(self).__name__)  # in one training

    def _leave_run(self) -> None:
        if self._run is not None:
            self._summary = self._run.summary
        self._forget_run()

    def _event(self, event: str, args: object, state: State, control: object, objects: Objects) -> None:
        try:
            run: Run | None = self._run
            if run is None or run.closed or run_of(state) is not run or event == "train_begin":
                with PREPARATION:
                    run = self._enter(event, args, state)
            plan = self._plans.get(event)
            if run is not None:
                if plan is not None:
                    run.handle(plan, args, state, control, objects)
                if (following := run.ledger.following) is not self._following:
                    # Events without a rule of ours are handled only while something is followed
                    self._following = following
                    self._events = frozenset(name for name, one in self._plans.items() if following or one.rules)
            # Not where the training's files are those of a process that has forked us
            elif event in self.outside and self._on() and getattr(run_of(state), "is_of_this_process", True):
                self._one_event(event, args, state, control, objects)
            self._part.strikes = 0
        except (self._run.fence if self._run is not None else FailureGuard(self.strict)).struck(self._part):
            if self._part.off:
                self._events = frozenset()  # until the next training

    def _enter(self, event: str, args: object, state: State) -> Run | None:
        """The run of this training: joined, or begun if we are the first. None outside a training."""
        if not self._on() or event not in EVENTS_THAT_BEGIN_A_RUN:
            return None
        found = run_of(state)
        if found is None and self._run is not None and not self._run.closed and event != "train_begin":
            found = self._run  # a copy, or another state, has taken the place of the training's
            RUNS.give(state, found)
            return found
        if found is not None and found.closed and event != "train_begin":
            return None
        if self._run is not None and (event == "train_begin" or self._run is not found):
            # Restarted without a `train_end`: an exception, auto_find_batch_size
            self._run.fence.call("the end of a run", self._run.close, "exception")
        self._leave_run()
        if found is None or found.closed:
            fence = FailureGuard(self.strict)
            found = fence.call("run", self._begin_run, args, state)
            if found is None:
                self.failure = fence.failure
                self._events = frozenset()  # until the next training
                return None
        self._run = found
        link = found.fence.call("link", self._link)
        if link is not None:
            found.fence.call("link", functools.partial(link.begin, found, phases=self.needs_phases))
        self._plans = found.add_member(self, self.rules, self.sinks, state.epoch)
        return found

    def _plain_epoch_end(self, epoch: int) -> None:
        if self._on():
            state = SimpleNamespace(global_step=0, epoch=epoch + 1.0)
            self._one_event("epoch_end", SimpleNamespace(), state, None, {}, epochs_before=epoch)

    def _one_event(
        self, event: str, args: object, state: object, control: object, objects: Objects, epochs_before: int = 0
    ) -> None:
        """One event outside a training: a run of its own, begun and closed here."""
        from forgather_mem.engine.run import Run

        run = Run.begin(args, state, strict=self.strict)
        try:
            plan = run.add_member(self, self.rules, self.sinks, float(epochs_before)).get(event)
            if plan is not None:
                run.handle(plan, args, state, control, objects)
        finally:
            run.close()

    def _begin_run(self, args: object, state: object) -> Run:
        from forgather_mem.callbacks.run_begin import close_report  # and all that a training needs
        from forgather_mem.engine.run import Run

        run = Run.begin(args, state, strict=self.strict, verdict=close_report)
        RUNS.give(state, run)
        return run


def _be_trainer_callbacks() -> None:
    theirs = of_transformers("TrainerCallback")
    if theirs is not None and TrainerCallback in RuleCallback.__bases__:
        with contextlib.suppress(TypeError):  # a class of somebody's has both as its bases, in an order that is none
            RuleCallback.__bases__ = (theirs,)


def _nothing_watched() -> RunSummary:
    from forgather_mem.engine.summary import RunSummary

    return RunSummary(switched_off=[f"Nothing was watched: {why_off()}"])


for _event in EVENTS:  # the others do nothing but pass it on
    if f"on_{_event}" not in vars(RuleCallback):
        setattr(RuleCallback, f"on_{_event}", _passing_on(_event))
_be_trainer_callbacks()
