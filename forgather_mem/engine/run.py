"""One training from its first event to its end: one `Run`, shared by all our callbacks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forgather_mem.engine.closing import Closing
from forgather_mem.engine.facts import current_device, facts_of, finish_facts, run_folder, sizes_now
from forgather_mem.engine.ledger import Ledger
from forgather_mem.engine.phases import PhaseStack
from forgather_mem.engine.schedule import (
    INSIDE_A_STEP,
    ArmedRule,
    EventSchedule,
    OverheadMeter,
    Rule,
    assign_writer,
    schedules_of,
)
from forgather_mem.engine.summary import RunSummary
from forgather_mem.probes import probe_of
from forgather_mem.sinks import ConsoleSink
from forgather_mem.system.forks import FORKS
from forgather_mem.system.process_end import PROCESS_END
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.metrics import FLOW, METRICS
from forgather_mem.telemetry.plain_numbers import plain_numbers
from forgather_mem.telemetry.records import Finding, Moment, Outcome, PhaseWatcher, Sample, Sink
from forgather_mem.telemetry.report import Action

__all__ = ["Rule", "Run"]

_OF_A_STEP = INSIDE_A_STEP | {"step_end"}
_FLOWS = frozenset(metric.name for metric in METRICS if metric.kind == FLOW)
Verdict = Callable[[RunSummary], tuple[str, dict[str, Any]]]  # text and data of the finding that closes a run


class Run:
    """One training: readings, phases, ledger, sinks, failure guard and overhead of all our callbacks in it.

    A step's readings form one record, written after the last of our callbacks has seen `step_end`; later events
    (evaluation, checkpoint, epoch end) write records of their own.

    Args:
        args: The trainer's arguments, read once and not kept.
        state: The trainer's state at the start, not kept.
        strict: Let our own failures through (for tests and debugging).
        verdict: Turns the finished summary into the text that closes the run in TensorBoard, with its data.
    """

    def __init__(self, args: Any, state: Any, *, strict: bool = False, verdict: Verdict | None = None) -> None:
        self.output_dir = Path(args.output_dir) if getattr(args, "output_dir", None) else None
        self.facts = facts_of(args, state)
        self.rank, self.world_size = self.facts.rank, self.facts.world_size
        self.device = current_device()
        self.step: int = state.global_step
        self.summary = RunSummary(self.facts)
        self.summary.begin(self.step, sizes_now())
        self.ledger = Ledger()
        self.fence = FailureGuard(strict)
        self.phases = PhaseStack(self.fence)
        self.on_close: list[Callable[[], None]] = []
        self.closed = False
        self._verdict = verdict
        self._folder: Path | None = None
        self._members: dict[int, dict[str, EventSchedule]] = {}
        self._sinks: list[Sink] = []
        self._console: ConsoleSink | None = None  # our own
        self._works: list[Any] = []
        self._probes: dict[type, Any] = {}
        self._readings: dict[Hashable, Any] = {}
        self._record: Sample | None = None
        self._written = self.step  # step of the last `step_end` record
        self._written_at = self._began_at = time.perf_counter()
        self._share: OverheadMeter | None = None  # if some rule has a budget
        self._flow_step = -1
        self._flows: dict[str, float] = {}
        self._seen_plans, self._done = set[int](), set[int]()
        self._event, self._self_s = "", 0.0
        self._end: tuple[str, int | None] | None = None  # how it ended and with which exit code, once that is known
        self._closing = Closing()
        self._forks = FORKS.number
        PROCESS_END.ask(self._process_ends, self._forget)

    @property
    def is_of_this_process(self) -> bool:
        """Whether it began here, and not in a process that has forked this one."""
        return self._forks == FORKS.number

    # ---- what probes, actions and sinks see (sample.RunInfo) ----

    @property
    def phase(self) -> str:
        return self.phases.current

    @property
    def folder(self) -> Path | None:
        if self._folder is None:
            self._folder = run_folder(self.output_dir, self.rank)
            self.facts.folder = str(self._folder) if self._folder else None
        return self._folder

    def outcome(self, what: str) -> Outcome | None:
        return self.ledger.outcome(what)

    def watch_phases(self, watcher: PhaseWatcher) -> None:
        self.phases.watch(watcher)

    def tell(self, finding: Finding) -> None:
        self.fence.call("summary", self.summary.tell, finding)
        for sink in self._sinks:
            self.fence.call_part(sink, "tell", finding)

    def say(self, text: str) -> None:
        console = next((sink for sink in self._sinks if isinstance(sink, ConsoleSink)), None)
        if console is None:
            console = self._console = ConsoleSink()
            self._add_sink(console)
        console.say(text)

    # ---- joining and leaving ----

    def join(
        self, member: object, rules: Sequence[Rule], sinks: Sequence[Sink], epoch: float | None
    ) -> dict[str, EventSchedule]:
        """Add a callback to the run: its works and sinks begin.

        Returns:
            One plan for each event that it handles.
        """
        plans = schedules_of(rules, epoch, self._stand_in, self.fence)
        self._members[id(member)] = plans
        if self._share is None and any(plan.paced for plan in plans.values()):
            self._share = OverheadMeter()
        for sink in sinks:
            self.fence.call(type(sink).__name__, self._add_sink, sink)
        for rule in rules:
            self.fence.call(rule.name, self._begin_works, rule)
        assign_writer(plans, self._members.values())
        return plans

    def leave(self, member: object) -> None:
        """A callback was removed; its works end with the run, its part of the record is written."""
        assign_writer(self._members.pop(id(member), {}), self._members.values())

    # ---- events ----

    def handle(self, plan: EventSchedule, args: Any, state: Any, control: Any, objects: Mapping[str, Any]) -> None:
        """Handle one event for one callback. Nothing is allocated when nothing is due."""
        self.step = state.global_step
        step = self.step + plan.offset
        if plan.event == "epoch_end":
            plan.epochs += 1
        elif plan.event == "step_end" and self.phases.in_step:
            self.phases.in_step = False
        due = not step % plan.period
        urgent = not due and bool(plan.urgent) and self._is_urgent(plan)
        if not (due or urgent) and not (plan.flushes and self._record is not None) and not self.ledger.following:
            return
        began = time.perf_counter()
        if self.ledger.following:
            self.fence.call("ledger", self.ledger.follow, plan.event, step, began)
        if self._record is not None and (self._record.step != step or plan.event not in _joins(self._record)):
            self.flush()
        if (due or urgent) and not (plan.event == "step_end" and plan.seen_step == step):
            plan.seen_step = step
            if id(plan) in self._seen_plans or plan.event != self._event:
                self._seen_plans.clear()
                self._done.clear()
                self._event = plan.event
            self._seen_plans.add(id(plan))
            moment = Moment(plan.event, step, state.epoch, args, state, control, objects, self)
            for rule in plan.rules:
                if rule.off or (step % rule.every_steps and not (urgent and rule.budget_frac and rule.is_usual(step))):
                    continue
                if rule.every_epochs and plan.epochs % rule.every_epochs:
                    continue
                try:
                    self._do(rule, moment)
                except Exception as error:
                    if not self.fence.strike(rule, error):
                        raise
        now = time.perf_counter()
        self._self_s += now - began
        if plan.flushes and self._record is not None:
            self.flush(now)  # the cost of writing appears in the next record
            self._self_s += time.perf_counter() - now

    def flush(self, now: float | None = None) -> None:
        """Write the open record, if any; `now` is the performance counter, if the caller has just read it."""
        sample, self._record = self._record, None
        if sample is None or not sample.values:
            return
        if sample.event == "step_end":
            self.fence.call("step times", self._add_times, sample, time.perf_counter() if now is None else now)
        self.fence.call("summary", self.summary.add, sample)
        for sink in self._sinks:
            self.fence.call_part(sink, "write", sample)

    def close(self, end: str = "finished", exit_code: int | None = None) -> None:
        """The training is over, whichever way: write what is open, give back what was taken. Idempotent.

        The first call says how it ended; a training whose closing is interrupted has not finished.
        """
        if self.closed:
            return
        if self._end is None:
            fence, works = self.fence, self._works[::-1]
            self._closing.add(
                functools.partial(fence.call, "the last record", self.flush),
                functools.partial(fence.call, "phases", self.phases.close),
                *(functools.partial(fence.call_part, work, "end", self) for work in works),
                *(functools.partial(fence.call_part, work, "give_back") for work in works),
                *(functools.partial(fence.call, "on_close", put_back) for put_back in self.on_close),
                self._judge,
            )
            self._end = end, exit_code
        self._closing.carry_out(self._interrupted)

    def put_back(self) -> None:
        """What was changed for this run becomes as it was, whatever has failed before."""
        for work in reversed(self._works):
            self.fence.call_part(work, "give_back")
        for put_back in self.on_close:
            self.fence.call("on_close", put_back)

    @property
    def has_members(self) -> bool:
        """Whether a callback takes part that has not seen the end."""
        return bool(self._members)

    def finish(self, member: object) -> None:
        """A callback has seen `train_end`; after the last of them the run closes."""
        self._members.pop(id(member), None)
        if not self._members:
            self.close()

    def log_values(self) -> dict[str, float]:
        """What our sinks add to the trainer's own log line; plain numbers only."""
        values: dict[str, float] = {}
        for sink in self._sinks:
            new = self.fence.call_part(sink, "log_values", self.step)
            values.update(self.fence.call(f"{type(sink).__name__}.log_values", plain_numbers, new) or {})
        return values

    # ---- inside ----

    def _interrupted(self) -> None:
        if self._end is not None and self._end[0] == "finished":
            self._end = "interrupted", self._end[1]

    def _judge(self) -> None:
        """What came of it all; then the sinks hear of it, and end."""
        assert self._end is not None
        fence = self.fence
        fence.call("what is known of the run", self._conclude, *self._end)
        found = fence.call("verdict", self._verdict, self.summary)
        if found:
            finding = Finding(kind="verdict", step=self.step, text=found[0], data=found[1])
            fence.call("summary", self.summary.tell, finding)
            self._closing.add(*(functools.partial(fence.call_part, sink, "tell", finding) for sink in self._sinks))
        self._closing.add(*(functools.partial(fence.call_part, sink, "end", self) for sink in self._sinks))
        self._closing.add(self._is_over)

    def _is_over(self) -> None:
        self._members.clear()
        self.closed = True
        PROCESS_END.withdraw(self._process_ends)

    def _process_ends(self) -> None:
        self.close("interrupted")

    def _forget(self) -> None:
        """This is a forked child: the training and its files are the parent's."""
        self.closed = True
        self._record = None
        self.phases.forget()
        self._closing.forget()
        for parts in (self._members, self._sinks, self._works, self.on_close):
            parts.clear()

    def _take_self_s(self) -> float:
        """Our own seconds since the last call: in events, and in measuring phases."""
        spent_s, self._self_s = self._self_s + self.phases.watched_s, 0.0
        self.phases.watched_s = 0.0
        self.summary.self_s += spent_s
        return spent_s

    def _add_times(self, sample: Sample, now: float) -> None:
        """How long the steps of this record took, and our own share of it."""
        values: dict[str, float] = sample.values  # type: ignore[assignment]  # ours until it is written
        all_s, steps = now - self._written_at, sample.step - self._written
        self._written, self._written_at = sample.step, now
        if steps > 0:
            values["step/time_s"] = all_s / steps
        values["step/self_s"] = own_s = self._take_self_s()
        self.summary.steps_took(own_s, all_s)
        if self._share is not None:
            self._share.took(own_s, all_s, self._members.values())

    def _conclude(self, end: str, exit_code: int | None) -> None:
        """What is known of the run when it is over goes into its summary."""
        fence, summary = self.fence, self.summary
        fence.call("own time", self._take_self_s)
        fence.call("ledger", self.ledger.close)
        rows = fence.call("ledger", self.ledger.rows) or ()
        summary.told = replace(summary.told, ledger=tuple(rows))
        wall_s = time.perf_counter() - self._began_at
        fence.call("facts", finish_facts, self.facts, end, exit_code, wall_s, self.device)
        for sink in self._sinks:
            fence.call(f"{type(sink).__name__}.problems", summary.ask, sink)
        summary.switched_off = list(dict.fromkeys(summary.switched_off + fence.switched_off))

    def _is_urgent(self, plan: EventSchedule) -> bool:
        """Whether one of these works must read this step, although its rule's budget leaves it out."""
        for work in plan.urgent:
            try:
                if not work.off and work.is_urgent is not None and work.is_urgent():
                    return True
            except Exception as error:
                if not self.fence.strike(work, error):
                    raise
        return False

    def _open(self, moment: Moment) -> Sample:
        event = "step_end" if moment.event in INSIDE_A_STEP else moment.event
        self._record = record = Sample(event, moment.step, moment.epoch, time.time(), {}, self.device)
        return record

    def _do(self, rule: ArmedRule, moment: Moment) -> None:
        sample = self._record or self._open(moment)
        if rule.limit is not None and not rule.crosses(self._value(rule.limit.name, moment, sample)):
            return
        done = self._done
        values: dict[str, float] = sample.values  # type: ignore[assignment]  # ours until it is written
        for work in rule.works:
            if work.off:
                continue
            if work.once:
                if work.once in done:
                    continue
                done.add(work.once)
            try:
                new = work.call(moment, sample)
                if new:
                    values.update(new)
                work.strikes = 0
            except Exception as error:
                if not self.fence.strike(work, error):
                    raise
                continue
            if new:
                if not _FLOWS.isdisjoint(new):
                    self._add_up(sample, new)
                if work.books:
                    self.fence.call("ledger", self._book, work.books, moment, sample, new)

    def _book(self, what: Action, moment: Moment, sample: Sample, new: Mapping[str, float]) -> None:
        self.ledger.book(what, new, step=moment.step)
        if what == "clear":
            self._merge(sample, {"cache/clears": float(self.ledger.calls("clear"))})

    def _merge(self, sample: Sample, new: Mapping[str, float]) -> None:
        values: dict[str, float] = sample.values  # type: ignore[assignment]  # ours until it is written
        values.update(new)
        if not _FLOWS.isdisjoint(new):
            self._add_up(sample, new)

    def _add_up(self, sample: Sample, new: Mapping[str, float]) -> None:
        """Flows are summed over the step: TensorBoard shows the last value of a (tag, step)."""
        values: dict[str, float] = sample.values  # type: ignore[assignment]  # ours until it is written
        if self._flow_step != sample.step:
            self._flow_step = sample.step
            self._flows.clear()
        for name in _FLOWS.intersection(new):
            values[name] = self._flows[name] = self._flows.get(name, 0.0) + new[name]

    def _value(self, name: str, moment: Moment, sample: Sample) -> float | None:
        """A current reading: from the record, or else from the family's probe, which is then called once."""
        value = sample.values.get(name)
        if value is not None:
            return value
        probe_class = probe_of(name)
        if probe_class is None:
            return None
        probe = self._probes.get(probe_class)
        if probe is None:
            probe = self._probes[probe_class] = self._stand_in(probe_class())
            self._begin(probe)
        self._merge(sample, probe(moment, sample))
        return sample.values.get(name)

    def _stand_in(self, work: Any) -> Any:
        """Of works with equal readings, the first replaces the others, so that everything is counted once."""
        reading = getattr(work, "reading", None)
        return work if reading is None else self._readings.setdefault(reading, work)

    def _begin_works(self, rule: Rule) -> None:
        for work in rule.do:
            self._begin(self._stand_in(work))

    def _begin(self, part: Any) -> None:
        if not any(part is known for known in self._works):
            self._works.append(part)
            self.fence.call_part(part, "begin", self)

    def _add_sink(self, sink: Sink) -> None:
        if isinstance(sink, ConsoleSink) and self._console in self._sinks:
            self._sinks.remove(self._console)  # the user's own replaces it
        key = getattr(sink, "key", None)
        for known in self._sinks:
            if known is sink or (key is not None and getattr(known, "key", None) == key):
                return
        self._sinks.append(sink)
        try:
            getattr(sink, "begin", _nothing)(self)
        except Exception as error:  # it does not know where to write
            self._sinks.remove(sink)
            name = f"{type(sink).__name__}.begin"
            if not self.fence.keeps(name, error):
                raise
            self.fence.switched_off.append(f"{name} failed, so that it writes nothing: {error!r:.200}")
            self.fence.call_part(sink, "end", self)


def _nothing(run: Run) -> None:
    """For a sink that has no `begin`."""


def _joins(record: Sample) -> frozenset[str]:
    """Events whose readings belong to this record: a step's record collects until `step_end`."""
    return _OF_A_STEP if record.event == "step_end" else frozenset({record.event})
