"""The work of a moment: the rules that are due, the record that they fill, and the time that this takes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from forgather_mem.engine.ledger import Ledger
from forgather_mem.engine.phases import PhaseStack
from forgather_mem.engine.schedule import ArmedRule, ArmedWork, EventSchedule, OverheadMeter
from forgather_mem.engine.sink_set import SinkSet
from forgather_mem.engine.summary import RunSummary
from forgather_mem.probes import DeviceProbe, HostProbe, PhaseProbe
from forgather_mem.probes.by_name import probe_of
from forgather_mem.telemetry.events import EVENTS_INSIDE_A_STEP
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.metrics import FLOW, METRICS
from forgather_mem.telemetry.records import NOTHING, Begins, Moment, RunInfo, Sample, Work

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import Action
_OF_A_STEP = EVENTS_INSIDE_A_STEP | {"step_end"}
FLOWS = frozenset(metric.name for metric in METRICS if metric.kind == FLOW)


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

    def __init__(
        self, step: int, fence: FailureGuard, phases: PhaseStack, ledger: Ledger, summary: RunSummary, sinks: SinkSet
    ) -> None:
        self.record = OpenRecord()
        self.members: dict[int, dict[str, EventSchedule]] = {}
        self.meter: OverheadMeter | None = None
        self.own = phases.own
        self.own.take()
        self.reads = False
        self._fence = fence
        self._ledger = ledger
        self._summary = summary
        self._sinks = sinks
        self.works = WorkSet(fence)
        self._written = step  # step of the last `step_end` record
        self._written_at = self.began_at = time.perf_counter()
        self._seen_plans, self._done = set[int](), set[int]()
        self._event = ""

    def do(self, plan: EventSchedule, moment: Moment, now: bool) -> None:
        """Do what is due of one callback at this moment. `now`: rules with a budget are due in any case."""
        step, number = moment.step, id(plan)
        plan.seen_step = step
        if number in self._seen_plans or plan.event != self._event:  # another moment than the last time
            self._seen_plans.clear()
            self._done.clear()
            self._event = plan.event
        self._seen_plans.add(number)
        for rule in plan.rules:
            if rule.off or (step % rule.every_steps and not (now and rule.budget_frac and not step % rule.usual_steps)):
                continue
            if rule.every_epochs and plan.epochs % rule.every_epochs:
                continue
            self.reads |= rule.budget_frac is not None
            try:
                self._do(rule, moment)
            except self._fence.struck(rule):
                continue

    def read_aside(self, event: str, run: RunInfo) -> Sample:
        """A reading of host and device, as far as a rule reads them; at the training's end of the last phases, too. It
        is in no record, and counts in the summary, in the step that was being made."""
        values: dict[str, float] = {}
        step, steps_done = run.step + bool(run.in_step), self._summary.last_step
        moment = Moment(event, step, None, None, None, None, {}, run)
        sample = Sample(event, step, None, time.time(), values, run.device)
        for work in self.works.of(HostProbe, DeviceProbe, *[PhaseProbe] * (event == "train_end")):
            values.update(work(moment, sample))
        self._summary.add(sample)
        self._summary.last_step = steps_done
        return sample

    def is_urgent(self, works: Iterable[tuple[ArmedRule, ArmedWork]], step: int) -> bool:
        """Whether one of these works must read this step, although its rule's budget leaves it out."""
        for rule, work in works:
            try:
                if not (step % rule.usual_steps or work.off or work.is_urgent is None) and work.is_urgent():
                    return True
            except self._fence.struck(work):
                continue
        return False

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
        self.record.freeze()
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
        done = self._done
        for work in rule.works:
            if work.off:
                continue
            if work.once:
                if work.once in done:
                    continue
                done.add(work.once)
            began = self.own.now() if work.books else None
            try:
                new = work.call(moment, sample)
                if began is not None and new:
                    self.own.add(began, sign=-1)
                if new:
                    record.add(new)
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
        """A current reading: from the record, or else from the probe that gives it, which is then called once.

        What is read more rarely, or after this, counts as it was last.
        """
        if name not in sample.values:
            self.record.add(self.works.read(name, moment, sample))
        return sample.values[name] if name in sample.values else moment.run.latest(name)


class OpenRecord:
    """The record that is being filled: it takes readings and freezes them into a `Sample`, which stays as it is.

    Then it may be opened again.

    Attributes:
        sample: A view of the open record, for works; None while none is open.
        values: Its readings so far.

    >>> from forgather_mem.engine.run import Run, RunFacts
    >>> record, run = OpenRecord(), Run(RunFacts())
    >>> view = record.begin(Moment("optimizer_step", 3, None, None, None, None, {}, run))
    >>> record.add({"host/rss_bytes": 5.0, "cache/freed_bytes": 1.0, "gc/pause_s": 0.5})
    >>> record.add({"host/rss_bytes": 4.0, "cache/freed_bytes": 2.0, "gc/pause_s": 0.5})
    >>> record.freeze().values, record.sample
    ({'host/rss_bytes': 4.0, 'cache/freed_bytes': 3.0, 'gc/pause_s': 1.0}, None)
    """

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self.values: dict[str, float] = {}

    def begin(self, moment: Moment) -> Sample:
        """Begin the record of this moment. A step's record collects what is read in all events inside the step."""
        event = "step_end" if moment.event in EVENTS_INSIDE_A_STEP else moment.event
        self.values = {}
        self.sample = Sample(event, moment.step, moment.epoch, time.time(), self.values, moment.run.device)
        return self.sample

    def takes(self, event: str, step: int) -> bool:
        """Whether what is read at this event belongs to the open record."""
        view = self.sample
        return (
            view is not None
            and view.step == step
            and (event in _OF_A_STEP if view.event == "step_end" else event == view.event)
        )

    def add(self, new: Mapping[str, float]) -> None:
        """Add readings. A flow is the sum of what was read in all events of the record."""
        values = self.values
        if FLOWS.isdisjoint(new):
            values.update(new)
            return
        for name, value in new.items():
            values[name] = value + values.get(name, 0.0) if name in FLOWS else value

    def freeze(self) -> Sample | None:
        """The finished record; None if none is open, or nothing was read."""
        sample, values = self.sample, self.values
        self.sample, self.values = None, {}
        return sample if values else None


class WorkSet:
    """The works that have begun, in this order; of several with the same reading one is called for all.

    See `Begins` and `FullWork` for what is called.

    Attributes:
        readings: What a rule names for each reading.
    """

    def __init__(self, fence: FailureGuard) -> None:
        self._fence = fence
        self._works: dict[int, tuple[Work | Begins, Work]] = {}  # by the id of what the rule names, which comes first
        self.readings: dict[Hashable, Work | Begins] = {}

    def begun(self, named: Work | Begins, run: RunInfo) -> Work:
        """The work of this run, begun if it has not; the first of those with an equal reading stands for all."""
        reading = getattr(named, "reading", None)
        if reading is not None:
            named = self.readings.setdefault(reading, named)
        if id(named) not in self._works:
            itself = named if callable(named) else lambda moment, sample: NOTHING  # where it can't begin
            self._works[id(named)] = named, itself  # before it begins: what it has taken until it fails is given back
            work = self._fence.call_part(named, "begin", run)
            self._works[id(named)] = named, work if callable(work) else itself
        return self._works[id(named)][1]

    def read(self, name: str, moment: Moment, sample: Sample) -> Mapping[str, float]:
        """Readings with this name, from the probe that gives it; empty where only a rule can read it."""
        probe_class = probe_of(name)
        return {} if probe_class is None else self.begun(probe_class(), moment.run)(moment, sample)

    def of(self, *classes: type) -> list[Work]:
        """Those that have begun of these classes."""
        return [work for named, work in self._works.values() if isinstance(named, classes)]

    def ends(self, run: RunInfo) -> Iterator[Callable[[], object]]:
        """The calls that end each work, the last begun first."""
        for _, work in reversed(self._works.values()):
            yield functools.partial(self._fence.call_part, work, "end", run)

    def clear(self) -> None:
        """Drop all of them."""
        self._works.clear()
        self.readings.clear()
