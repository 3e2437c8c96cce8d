"""What do all our trainer callbacks share? They bring rules into the run of a training and pass events on."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from transformers import TrainerCallback

from forgather_mem.callbacks.link import Link
from forgather_mem.engine import RUN_ATTRIBUTE, Run
from forgather_mem.errors import check_flags
from forgather_mem.fence import Fence
from forgather_mem.plan import Plan, Rule, events_of
from forgather_mem.report import verdict, write_report
from forgather_mem.sample import Sink
from forgather_mem.summary import RunSummary

# A run may begin late, with a callback added during a training; what fires outside a training begins none.
_BEGINS_A_RUN = frozenset(
    {"train_begin", "epoch_begin", "step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "step_end"}
)


class RuleCallback(TrainerCallback):
    """A trainer callback made of rules. Not for users: take `MemoryCallback(rules=[...])`.

    Args:
        rules: What to do when.
        sinks: Where the run's records go, besides the sinks that other callbacks bring.
        enabled: False makes the callback do nothing at all; so does the environment's `FORGATHER_MEM=0`.
        strict: Let failures of our own end the training instead of logging them once.

    Raises:
        ValueError: when `enabled` or `strict` is neither true nor false.
    """

    # Whether readings need to know the phase (forward, backward, ...), which only a link to the trainer tells.
    needs_phases = False
    # Events that it serves outside a training too, as in an evaluation before or after it.
    outside: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self, rules: Sequence[Rule], sinks: Sequence[Sink] = (), *, enabled: bool = True, strict: bool = False
    ) -> None:
        check_flags(type(self).__name__, enabled=enabled, strict=strict)
        self.rules = tuple(rules)
        self.sinks = tuple(sinks)
        self.enabled = enabled
        self.strict = strict
        self._summary: RunSummary | None = None
        self._forget_run()

    @property
    def summary(self) -> RunSummary | None:
        """Numbers of the training that is running, or of the last one; None before the first."""
        return self._run.summary if self._run is not None else self._summary

    def close(self) -> None:
        """End the run now: write what is open, restore what was changed. For a training that ended by an exception."""
        if self._run is not None:
            run = self._run
            self._leave_run()
            run.close("interrupted")

    # ---- events; each looks first whether there is anything to do ----

    def on_init_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if self._on():
            Fence(self.strict).call("link", self._stay_linked)

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._event("train_begin", args, state, control, objects)

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._event("train_end", args, state, control, objects)
        if self._run is not None:
            run = self._run
            self._leave_run()
            run.finish(self)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "epoch_begin" in self._events:
            self._event("epoch_begin", args, state, control, objects)

    def on_epoch_end(self, args: Any = None, state: Any = None, control: Any = None, **objects: Any) -> None:
        """The trainer's event, or the plain call `on_epoch_end(epoch, logs=None)` of a loop that has no trainer.

        In the plain call `epoch` counts from 0; a rule of every N epochs is due after epochs N, 2 N, ...

        Raises:
            ValueError: for a plain call with an epoch that is no whole number.
        """
        if state is None or isinstance(state, Mapping):
            self._plain_epoch_end(_whole_number(objects.get("epoch", args)))
        elif "epoch_end" in self._events:
            self._event("epoch_end", args, state, control, objects)

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "step_begin" in self._events:
            self._event("step_begin", args, state, control, objects)

    def on_substep_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "substep_end" in self._events:
            self._event("substep_end", args, state, control, objects)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "pre_optimizer_step" in self._events:
            self._event("pre_optimizer_step", args, state, control, objects)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "optimizer_step" in self._events:
            self._event("optimizer_step", args, state, control, objects)

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "step_end" in self._events:
            self._event("step_end", args, state, control, objects)

    def on_evaluate(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "evaluate" in self._events:
            self._event("evaluate", args, state, control, objects)

    def on_predict(self, args: Any, state: Any, control: Any, *metrics: Any, **objects: Any) -> None:
        if "predict" in self._events:
            self._event("predict", args, state, control, objects)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "prediction_step" in self._events:
            self._event("prediction_step", args, state, control, objects)

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "save" in self._events:
            self._event("save", args, state, control, objects)

    def on_log(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "log" in self._events:
            self._event("log", args, state, control, objects)

    def on_push_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if "push_begin" in self._events:
            self._event("push_begin", args, state, control, objects)

    # ---- inside ----

    def __getstate__(self) -> dict[str, Any]:
        kept = dict(self.__dict__)
        for name in ("_run", "_plans"):  # a training's own: not for another process or a copy
            kept.pop(name, None)
        return kept

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self._forget_run()

    def _on(self) -> bool:
        return self.enabled and os.environ.get("FORGATHER_MEM", "") != "0"

    def _stay_linked(self) -> None:
        link = Link.find(self)
        if link is not None:
            link.stay()

    def _forget_run(self) -> None:
        self._run: Run | None = None
        self._plans: dict[str, Plan] = {}
        self._events = events_of(self.rules) if self.enabled else frozenset()
        self._following: bool | None = None  # whether something that was booked is followed over the next steps

    def _leave_run(self) -> None:
        if self._run is not None:
            self._summary = self._run.summary
        self._forget_run()

    def _event(self, event: str, args: Any, state: Any, control: Any, objects: Mapping[str, Any]) -> None:
        run: Run | None = self._run
        if run is None or run.closed or getattr(state, RUN_ATTRIBUTE, None) is not run or event == "train_begin":
            run = self._enter(event, args, state)
        plan = self._plans.get(event)
        if run is not None:
            if plan is not None:
                run.handle(plan, args, state, control, objects)
            if run.ledger.following is not self._following:
                self._follow(run.ledger.following)
        elif event in self.outside and self._on():
            Fence(self.strict).call(type(self).__name__, self._one_event, event, args, state, control, objects)

    def _follow(self, following: bool) -> None:
        """Only while something is followed are there events in which no rule of ours looks."""
        self._following = following
        self._events = frozenset(event for event, plan in self._plans.items() if following or plan.rules)

    def _enter(self, event: str, args: Any, state: Any) -> Run | None:
        """The run of this training, which we join; begun when we are the first. None outside a training."""
        if not self._on() or event not in _BEGINS_A_RUN:
            return None
        found: Run | None = getattr(state, RUN_ATTRIBUTE, None)
        if found is not None and found.closed and event != "train_begin":
            return None
        if self._run is not None and (event == "train_begin" or self._run is not found):
            self._run.close("exception")  # begun again without a `train_end`: an exception, auto_find_batch_size
        self._leave_run()
        if found is None or found.closed:
            found = Fence(self.strict).call("run", self._begin_run, args, state)
            if found is None:
                self.enabled = False
                return None
        self._run = found
        link = found.fence.call("link", Link.find, self)
        if link is not None:
            self._linked(link, found)
        self._plans = found.join(self, self.rules, self.sinks, state.epoch)
        if link is not None:
            found.fence.call("link", self._use_link, link)
        return found

    def _use_link(self, link: Link) -> None:
        """For a callback that needs more of the trainer than its events; called when it has joined a run."""

    def _linked(self, link: Link, run: Run) -> None:
        """A training that we joined has this link to its trainer."""
        link.begin(run, phases=self.needs_phases)

    def _plain_epoch_end(self, epoch: int) -> None:
        if self._on():
            state = SimpleNamespace(global_step=0, epoch=epoch + 1.0)
            self._one_event("epoch_end", SimpleNamespace(), state, None, {}, epochs_before=epoch)

    def _one_event(
        self, event: str, args: Any, state: Any, control: Any, objects: Mapping[str, Any], epochs_before: int = 0
    ) -> None:
        """One event without a training around it: a run of its own, begun and closed here."""
        run = Run(args, state, strict=self.strict)
        plan = run.join(self, self.rules, self.sinks, float(epochs_before)).get(event)
        if plan is not None:
            run.handle(plan, args, state, control, objects)
        run.close()

    def _begin_run(self, args: Any, state: Any) -> Run:
        run = Run(args, state, strict=self.strict, verdict=_close_report)
        setattr(state, RUN_ATTRIBUTE, run)
        return run


def _close_report(summary: RunSummary) -> tuple[str, dict[str, Any]]:
    """The finding that closes a run; its report is written, too, where there is a folder with files of ours."""
    facts = summary.facts
    for name in ("folder", "event_folder"):  # who reads it may stand in another folder
        place = getattr(facts, name)
        if place and "://" not in place:
            setattr(facts, name, os.path.abspath(place))
    text, data = verdict(summary)
    folder = facts.folder
    if folder is not None and Path(folder).is_dir():
        with contextlib.suppress(OSError):  # the log has it, and it can be made from that
            write_report(data["report"], folder)
    return text, data


def _whole_number(epoch: Any) -> int:
    try:
        return operator.index(epoch)
    except TypeError:
        raise ValueError(f"on_epoch_end(epoch={epoch!r}): an epoch is a whole number, counted from 0") from None
