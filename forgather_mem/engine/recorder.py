"""The work of a moment: the rules that are due, the record that they fill, and the time that this takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from forgather_mem.engine.ledger import Ledger
from forgather_mem.engine.phases import PhaseStack
from forgather_mem.engine.record import FLOWS, OpenRecord
from forgather_mem.engine.schedule import ArmedRule, EventSchedule, OverheadMeter
from forgather_mem.engine.sink_set import SinkSet
from forgather_mem.engine.summary import RunSummary
from forgather_mem.engine.work_set import WorkSet
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import Moment, Sample

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import Action


class Recorder:
    """Does the rules of a run that are due, and writes its records.

    Attributes:
        record: The record that is being filled.
        works: The works that have begun.
        members: The schedules of the callbacks that take part, by the callback's id.
        meter: Passes our share of the time on to rules with a budget; None while no rule has one.
        own: Our own time since the last record.
        reads: Whether a rule with a budget has filled the open record.
        began_at: Performance counter at the start of the run.
    """

    __slots__ = (
        "_done", "_event", "_fence", "_ledger", "_phases", "_seen_plans", "_sinks", "_summary", "_written",
        "_written_at", "began_at", "members", "meter", "own", "reads", "record", "works",
    )  # fmt: skip

    def __init__(
        self, step: int, fence: FailureGuard, phases: PhaseStack, ledger: Ledger, summary: RunSummary, sinks: SinkSet
    ) -> None:
        self.record = OpenRecord()
        self.members: dict[int, dict[str, EventSchedule]] = {}
        self.meter: OverheadMeter | None = None
        self.own = phases.own
        self.reads = False
        self._fence = fence
        self._phases = phases
        self._ledger = ledger
        self._summary = summary
        self._sinks = sinks
        self.works = WorkSet(fence)
        self._written = step  # step of the last `step_end` record
        self._written_at = self.began_at = time.perf_counter()
        self._seen_plans, self._done = set[int](), set[int]()
        self._event = ""

    def do(self, plan: EventSchedule, moment: Moment, urgent: bool) -> None:
        """Do what is due of one callback at this moment. `urgent`: rules with a budget are due in any case."""
        step, number = moment.step, id(plan)
        plan.seen_step = step
        if number in self._seen_plans or plan.event != self._event:  # another moment than the last time
            self._seen_plans.clear()
            self._done.clear()
            self._event = plan.event
        self._seen_plans.add(number)
        for rule in plan.rules:
            if rule.off or (step % rule.every_steps and not (urgent and rule.budget_frac and rule.is_usual(step))):
                continue
            if rule.every_epochs and plan.epochs % rule.every_epochs:
                continue
            self.reads |= rule.budget_frac is not None
            try:
                self._do(rule, moment)
            except self._fence.struck(rule):
                continue

    def flush(self, now: float | None = None) -> None:
        """Write the open record, if any; `now` is the performance counter, if the caller has just read it."""
        record = self.record
        view = record.sample
        if view is not None and record.values and view.event == "step_end":
            self._fence.call("step times", self._add_times, view.step, time.perf_counter() if now is None else now)
        self.reads = False
        sample = record.freeze()
        if sample is not None:
            self._fence.call("summary", self._summary.add, sample)
            self._sinks.write(sample)

    def take_self_s(self) -> tuple[float, float]:
        """Our own seconds since the last call: in events, and in measuring phases; then those of readings with a
        budget."""
        spent_s, reading_s = self.own.take()
        self._summary.self_s += spent_s
        return spent_s, reading_s

    def forget(self) -> None:
        """This is a forked child: all of it is the parent's."""
        self.record.drop()
        self.members.clear()
        self.works.clear()

    def _add_times(self, step: int, now: float) -> None:
        """How long the steps of the open record took, and our own share of it."""
        values = self.record.values
        all_s, steps = now - self._written_at, step - self._written
        self._written, self._written_at = step, now
        if steps > 0:
            values["step/time_s"] = all_s / steps
        own_s, reading_s = self.take_self_s()
        values["step/self_s"] = own_s
        self._summary.add_step_cost(own_s, all_s, steps)
        if self.meter is not None:
            self.meter.took(own_s, reading_s, all_s, self.members.values())

    def _do(self, rule: ArmedRule, moment: Moment) -> None:
        record = self.record
        sample = record.sample or record.begin(moment)
        crossing = rule.crossing
        if crossing is not None and not crossing.crosses(self._value(crossing.limit.name, moment, sample)):
            return
        rule.has_run = True
        done, values = self._done, record.values
        for work in rule.works:
            if work.off:
                continue
            if work.once:
                if work.once in done:
                    continue
                done.add(work.once)
            try:
                new = work.call(moment, sample)
                if new:  # `record.add`, without a call for each work
                    values.update(new)
                    if not FLOWS.isdisjoint(new):
                        record.sum_flows(new)
                work.strikes = 0
            except self._fence.struck(work):
                continue
            if new and work.books:
                self._fence.call("ledger", self._book, work.books, moment.step, new)

    def _book(self, what: Action, step: int, new: Mapping[str, float]) -> None:
        self._ledger.book(what, new, step=step)
        if what == "clear":
            self.record.add({"cache/clears": float(self._ledger.calls("clear"))})

    def _value(self, name: str, moment: Moment, sample: Sample) -> float | None:
        """A current reading: from the record, or else from the probe that gives it, which is then called once."""
        if name not in sample.values:
            self.record.add(self.works.read(name, moment, sample))
        return sample.values.get(name)
