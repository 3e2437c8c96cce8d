"""What happens in one training, from its first event to its end: one `Run`, shared by all our callbacks."""

from __future__ import annotations

import atexit
import operator
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forgather_mem.fence import Fence
from forgather_mem.ledger import Ledger
from forgather_mem.metrics import FLOW, METRICS
from forgather_mem.phase_stack import PhaseStack
from forgather_mem.plan import INSIDE_A_STEP, ArmedRule, OwnShare, Plan, Rule, plans_of, settle_who_flushes
from forgather_mem.run_facts import current_device, facts_of, finish_facts, run_folder, sizes_now
from forgather_mem.sample import Finding, Moment, Outcome, PhaseWatcher, Sample, Sink
from forgather_mem.sinks import ConsoleSink
from forgather_mem.summary import RunSummary

__all__ = ["RUN_ATTRIBUTE", "Rule", "Run"]

# The run hangs on the trainer's state: a new state object at each `train()`, seen by all callbacks of
# that training, and ignored when the state is written to a checkpoint.
RUN_ATTRIBUTE = "_forgather_mem_run"
_OF_A_STEP = INSIDE_A_STEP | {"step_end"}
_FLOWS = frozenset(metric.name for metric in METRICS if metric.kind == FLOW)
Verdict = Callable[[RunSummary], tuple[str, dict[str, Any]]]  # text and data of the finding that closes a run
_PROBE_OF = {"host": "HostProbe", "device": "DeviceProbe", "gc": "PythonProbe", "workers": "WorkerProbe"}


class Run:
    """One training: readings, phases, ledger, sinks, fence and own cost of all our callbacks in it.

    A step's readings make one record, written after the last of our callbacks has seen `step_end`;
    events after it (evaluation, checkpoint, epoch end) write records of their own.

    Args:
        args: The trainer's arguments, read once and not kept.
        state: The trainer's state at the beginning, not kept.
        strict: Let our own failures through (for tests and for finding them).
        verdict: Turns the finished summary into the text that closes the run in TensorBoard, and the data beside it.
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
        self.phases = PhaseStack()
        self.fence = Fence(strict)
        self.on_close: list[Callable[[], None]] = []
        self.closed = False
        self._verdict = verdict
        self._folder: Path | None = None
        self._members: dict[int, dict[str, Plan]] = {}
        self._sinks: list[Sink] = []
        self._console: ConsoleSink | None = None  # our own
        self._works: list[Any] = []
        self._probes: dict[str, Any] = {}
        self._readings: dict[Hashable, Any] = {}
        self._record: Sample | None = None
        self._written = self.step  # the step of the last `step_end` record
        self._written_at = self._began_at = time.perf_counter()
        self._share: OwnShare | None = None  # where some rule keeps to a budget
        self._flow_step = -1
        self._flows: dict[str, float] = {}
        self._seen_plans, self._done = set[int](), set[int]()
        self._event, self._self_s = "", 0.0
        atexit.register(self.close, "interrupted")

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
        self.summary.tell(finding)
        for sink in self._sinks:
            self.fence.call_part(sink, "tell", finding)

    def say(self, text: str) -> None:
        console = next((sink for sink in self._sinks if isinstance(sink, ConsoleSink)), None)
        if console is None:
            console = self._console = ConsoleSink()
            self._add_sink(console)
        console.say(text)

    # ---- callbacks come in ----

    def join(
        self, member: object, rules: Sequence[Rule], sinks: Sequence[Sink], epoch: float | None
    ) -> dict[str, Plan]:
        """A callback takes part from now on: its works and sinks begin.

        Returns:
            One plan for each event in which it has something to do.
        """
        plans = plans_of(rules, epoch, self._stand_in)
        self._members[id(member)] = plans
        if self._share is None and any(plan.paced for plan in plans.values()):
            self._share = OwnShare()
        for sink in sinks:
            self._add_sink(sink)
        for rule in rules:
            for work in rule.do:
                self._begin(self._stand_in(work))
        settle_who_flushes(plans, self._members.values())
        return plans

    def leave(self, member: object) -> None:
        """A callback was taken out; its works end with the run, its share of the record is written."""
        settle_who_flushes(self._members.pop(id(member), {}), self._members.values())

    # ---- events ----

    def handle(self, plan: Plan, args: Any, state: Any, control: Any, objects: Mapping[str, Any]) -> None:
        """One event reaches one callback. Nothing is built when nothing is due."""
        self.step = state.global_step
        step = self.step + plan.offset
        if plan.event == "epoch_end":
            plan.epochs += 1
        due = not step % plan.period
        urgent = not due and any(map(operator.call, plan.urgent))
        if not (due or urgent) and not (plan.flushes and self._record is not None) and not self.ledger.following:
            return
        began = time.perf_counter()
        if self.ledger.following:
            self.ledger.follow(plan.event, step, began)
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
                self.fence.call_rule(rule, self._do, moment)
        now = time.perf_counter()
        self._self_s += now - began
        if plan.flushes and self._record is not None:
            self.flush(now)  # what writing takes stands in the next record
            self._self_s += time.perf_counter() - now

    def flush(self, now: float | None = None) -> None:
        """Write the record that is open, if any; `now` is the performance counter's, of who has just read it."""
        sample, self._record = self._record, None
        if sample is None or not sample.values:
            return
        if sample.event == "step_end":
            values: dict[str, float] = sample.values  # type: ignore[assignment]  # ours until it is written
            now = time.perf_counter() if now is None else now
            all_s, steps = now - self._written_at, sample.step - self._written
            if steps > 0:
                values["step/time_s"] = all_s / steps
            values["step/self_s"] = own_s = self._take_self_s()
            self.summary.steps_took(own_s, all_s)
            if self._share is not None:
                self._share.took(own_s, all_s, self._members.values())
            self._written, self._written_at = sample.step, now
        self.summary.add(sample)
        for sink in self._sinks:
            self.fence.call_part(sink, "write", sample)

    def close(self, end: str = "finished", exit_code: int | None = None) -> None:
        """The training is over, whichever way: write what is open, give back what was taken. Idempotent."""
        if self.closed:
            return
        self.flush()
        self.phases.close()
        for work in reversed(self._works):
            self.fence.call_part(work, "end", self)
        for give_back in self.on_close:
            self.fence.call("on_close", give_back)
        self.closed = True  # not sooner: what a Ctrl-C up to here leaves undone, the next call does
        atexit.unregister(self.close)
        summary = self.summary
        self._take_self_s()
        self.ledger.close()
        summary.ledger = [row.as_dict() for row in self.ledger.rows()]
        finish_facts(self.facts, end, exit_code, time.perf_counter() - self._began_at, self.device)
        summary.ask(self._sinks)
        summary.switched_off += self.fence.switched_off
        found = self.fence.call("verdict", self._verdict, summary)
        if found:
            self.tell(Finding(kind="verdict", step=self.step, text=found[0], data=found[1]))
        for sink in self._sinks:
            self.fence.call_part(sink, "end", self)
        self._members.clear()

    def finish(self, member: object) -> None:
        """A callback has seen `train_end`; after the last of them the run closes."""
        self._members.pop(id(member), None)
        if not self._members:
            self.close()

    def log_values(self) -> dict[str, float]:
        """What our sinks want to stand in the trainer's own log line; plain numbers only."""
        gives = [give for sink in self._sinks if (give := getattr(sink, "log_values", None)) is not None]
        return {name: value for give in gives for name, value in give(self.step).items()}

    # ---- inside ----

    def _take_self_s(self) -> float:
        """Our own seconds since the last call: in events, and in measuring phases."""
        spent_s, self._self_s = self._self_s + self.phases.watched_s, 0.0
        self.phases.watched_s = 0.0
        self.summary.self_s += spent_s
        return spent_s

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
        for work, once, books in rule.works:
            if once:
                if once in done:
                    continue
                done.add(once)
            new = work(moment, sample)
            if not new:
                continue
            values.update(new)
            if not _FLOWS.isdisjoint(new):
                self._add_up(sample, new)
            if books:
                self._book(books, moment, sample, new)

    def _book(self, what: str, moment: Moment, sample: Sample, new: Mapping[str, float]) -> None:
        self.ledger.book(what, new, step=moment.step)
        if what == "clear":
            self._merge(sample, {"cache/clears": float(self.ledger.calls("clear"))})

    def _merge(self, sample: Sample, new: Mapping[str, float]) -> None:
        values: dict[str, float] = sample.values  # type: ignore[assignment]  # ours until it is written
        values.update(new)
        if not _FLOWS.isdisjoint(new):
            self._add_up(sample, new)

    def _add_up(self, sample: Sample, new: Mapping[str, float]) -> None:
        """What flows is added up over the step: TensorBoard shows the last value of a (tag, step)."""
        values: dict[str, float] = sample.values  # type: ignore[assignment]  # ours until it is written
        if self._flow_step != sample.step:
            self._flow_step = sample.step
            self._flows.clear()
        for name in _FLOWS.intersection(new):
            values[name] = self._flows[name] = self._flows.get(name, 0.0) + new[name]

    def _value(self, name: str, moment: Moment, sample: Sample) -> float | None:
        """A reading of this moment: from the record, else from the family's probe, which is then asked once."""
        value = sample.values.get(name)
        probe_name = _PROBE_OF.get(name.split("/")[0])
        if value is not None or probe_name is None:
            return value
        probe = self._probes.get(probe_name)
        if probe is None:
            from forgather_mem import probes

            probe = self._probes[probe_name] = self._stand_in(getattr(probes, probe_name)())
            self._begin(probe)
        self._merge(sample, probe(moment, sample))
        return sample.values.get(name)

    def _stand_in(self, work: Any) -> Any:
        """Of works that give the same reading the first serves all, so that what it counts is counted once."""
        reading = getattr(work, "reading", None)
        return work if reading is None else self._readings.setdefault(reading, work)

    def _begin(self, part: Any) -> None:
        if not any(part is known for known in self._works):
            self._works.append(part)
            self.fence.call_part(part, "begin", self)

    def _add_sink(self, sink: Sink) -> None:
        if isinstance(sink, ConsoleSink) and self._console in self._sinks:
            self._sinks.remove(self._console)  # a user's own takes its place
        key = getattr(sink, "key", None)
        for known in self._sinks:
            if known is sink or (key is not None and getattr(known, "key", None) == key):
                return
        self._sinks.append(sink)
        self.fence.call_part(sink, "begin", self)


def _joins(record: Sample) -> frozenset[str]:
    """Events whose readings stand in this record: a step's record gathers until `step_end`."""
    return _OF_A_STEP if record.event == "step_end" else frozenset({record.event})
