"""One training from its first event to its end: one `Run`, shared by all our callbacks."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgather_mem.engine.closing import Closing
from forgather_mem.engine.facts import (
    current_device,
    finish_facts,
    header_of,
    run_folder,
    sizes_now,
    startup_of,
    training_key,
)
from forgather_mem.engine.ledger import Ledger
from forgather_mem.engine.phases import PhaseStack
from forgather_mem.engine.recorder import Recorder
from forgather_mem.engine.schedule import ArmedRule, EventSchedule, OverheadMeter, assign_writer, schedules_of
from forgather_mem.engine.settings import (
    settings_of_forward,
    settings_of_loaders,
    settings_of_others,
    settings_of_training,
)
from forgather_mem.engine.sink_set import SinkSet
from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.probes.live_objects import live_unless_frozen
from forgather_mem.system.allocator import ASK
from forgather_mem.system.forks import FORKS
from forgather_mem.system.process_end import PROCESS_END
from forgather_mem.system.time_budget import OwnTime, backed_off
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import (
    Begins,
    Finding,
    Moment,
    Objects,
    Outcome,
    PhaseWatcher,
    SeesBatch,
    Sink,
    Work,
)
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.rule import Rule

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import RunReport

_PASSES_TO_SEE = 8  # of which one has a graph, or none will have
ClosingFinding = Callable[[RunSummary], tuple[str, dict[str, Any]]]  # text and data of the finding that closes a run


class Run:
    """One training: readings, phases, ledger, sinks, failure guard and overhead of all our callbacks in it.

    A step's readings form one record, written after the last of our callbacks has seen `step_end`; later events
    (evaluation, checkpoint, epoch end) write records of their own. `Run.begin` makes one for a training.

    Args:
        facts: What is known of the training by now.
        step, output_dir: Optimizer steps done before it; the trainer's folder.
        device: Index of this process's accelerator, None without one.
        strict: Let our own failures through (for tests and debugging).
        verdict: Turns the finished summary into the text that closes the run in TensorBoard, with its data.
    """

    def __init__(
        self,
        facts: RunFacts,
        step: int = 0,
        *,
        output_dir: Path | None = None,
        device: int | None = None,
        strict: bool = False,
        verdict: ClosingFinding | None = None,
    ) -> None:
        self.output_dir = output_dir
        self.facts = facts
        self.rank, self.world_size = facts.header.rank, facts.header.world_size
        self.device = device
        self.step = step
        self.summary = RunSummary(facts)
        self.ledger = Ledger()
        self.fence = FailureGuard(strict)
        self.phases = PhaseStack(self.fence)
        self.phases.on_output = self._see_forward
        self.trainer: Callable[[], Any] = _no_trainer
        self.closed = False
        self._verdict = verdict
        self._folder: Path | None = None
        self._key: str | None = None  # of this training in the ranks' store
        self._num_keys: dict[str, int] = {}
        self._sinks = SinkSet(self.fence)
        self._recorder = Recorder(step, self.fence, self.phases, self.ledger, self.summary, self._sinks)
        self._record, self._works, self._members = self._recorder.record, self._recorder.works, self._recorder.members
        self._at_close: list[Callable[[], object]] = []
        self._settings_are_read = False
        self._passes_to_see = _PASSES_TO_SEE
        self._paced: list[ArmedRule] = []  # rules that keep to a budget
        self._end: tuple[str, int | None] | None = None  # how it ended, and the exit code
        self._closes_since = 0.0, 0.0  # the clocks of our own time
        self._closing = Closing()
        self._forks = FORKS.number

    @classmethod
    def begin(cls, args: Any, state: Any, *, strict: bool = False, verdict: ClosingFinding | None = None) -> Run:
        """The run of a training that begins now. It closes when the process ends, at the latest.

        Args:
            args, state: The trainer's, read once and not kept.
            strict, verdict: As in the constructor.
        """
        own = OwnTime()
        began = own.now()
        output_dir = Path(args.output_dir) if getattr(args, "output_dir", None) else None
        header, device = header_of(args, state.global_step), current_device()
        header = replace(header, started_with=sizes_now(), startup=startup_of(header.process_started_s))
        facts = RunFacts(header)
        run = cls(facts, state.global_step, output_dir=output_dir, device=device, strict=strict, verdict=verdict)
        run.summary.begin(run.step, dict(header.started_with))
        PROCESS_END.ask(run._process_ends, run._forget)
        run._recorder.own.add(began)
        own.close()
        return run

    @property
    def is_of_this_process(self) -> bool:
        """Whether it began here, and not in a process that has forked this one."""
        return self._forks == FORKS.number

    # ---- what probes, actions and sinks see (records.RunInfo) ----

    @property
    def phase(self) -> str:
        return self.phases.current

    @property
    def failed_phase(self) -> str | None:
        return self.phases.failed

    @property
    def in_step(self) -> bool | None:
        return self.phases.in_step

    @property
    def folder(self) -> Path | None:
        if self._folder is None:
            self._folder = run_folder(self.output_dir, self.rank, self.store_key("folder"))
        return self._folder

    @property
    def header(self) -> RunHeader:
        known = self.facts.header
        events = known.event_folder or self._sinks.event_folder()
        if events and "://" not in events:  # it may be read from another working directory
            events = os.path.abspath(events)
        folder = os.path.abspath(self._folder) if self._folder else known.folder
        self.facts.header = replace(known, folder=folder, event_folder=events)
        return self.facts.header

    def store_key(self, what: str) -> str:
        if self._key is None:
            self._key = training_key(self.summary.first_step or 0, self.rank, self.world_size)
        number = self._num_keys[what] = self._num_keys.get(what, -1) + 1
        return f"{what}/{self._key}/{number}"

    def latest(self, name: str) -> float | None:
        return self.summary.latest.get(name)

    @property
    def told(self) -> RunReport:
        return self.summary.told

    def so_far(self) -> dict[str, object]:
        from forgather_mem.engine.so_far import plain_summary

        self._tell_ledger()
        return plain_summary(self.summary)

    def outcome(self, what: str) -> Outcome | None:
        return self.ledger.outcome(what)

    def emit(self, finding: Finding) -> None:
        self.fence.call("summary", self.summary.tell, finding)
        if self.closed:  # the report once more, with this
            self.fence.call("verdict", self._verdict, self.summary)
        self._sinks.tell(finding)

    def print_line(self, text: str) -> None:
        self._sinks.say(text, self)

    def reach(self, step: int) -> None:
        self.summary.last_step = max(self.summary.last_step, step)

    def enter_phase(self, phase: str) -> bool:
        return self.phases.enter(phase)

    def leave_phase(self, phase: str) -> None:
        self.phases.leave(phase)

    def fail(self, error: BaseException, end: str) -> None:
        if self.closed:
            return
        self.fence.call("facts", self.facts.failed_by, error)
        for tell in self._sinks.calls("failing", end, self.facts.error):
            tell()  # first of all: a launcher kills who takes long to end
        try:
            for see in tuple(self.phases.on_failure if end != "interrupted" else ()):
                self.fence.call("oom", see, error)
        finally:  # a Ctrl-C while they look at it too
            self.close(end)

    def begun(self, named: Work | Begins) -> Work:
        return self._works.begun(named, self)

    def watch_phases(self, watcher: PhaseWatcher) -> None:
        self.phases.watch(watcher)

    def watch_batches(self, see: SeesBatch) -> None:
        self.phases.on_batch.append(see)

    def watch_failure(self, see: Callable[[BaseException], object]) -> None:
        self.phases.on_failure.append(see)

    def at_close(self, call: Callable[[], object]) -> None:
        self._at_close.append(call)

    # ---- joining and leaving ----

    def add_member(
        self, member: object, rules: Sequence[Rule], sinks: Sequence[Sink], epoch: float | None
    ) -> dict[str, EventSchedule]:
        """Add a callback to the run: its works and sinks begin.

        Returns:
            One plan for each event that it handles.
        """
        began = self._recorder.own.now()
        self._members[id(member)] = {}  # it takes part from now on
        for sink in sinks:
            self.fence.call(type(sink).__name__, self._sinks.add, sink, self)
        plans = schedules_of(rules, epoch, self.begun, self.fence)
        self._members[id(member)] = plans
        self._paced += [rule for plan in plans.values() for rule in plan.paced]
        if self._recorder.meter is None and self._paced:
            self._recorder.meter = OverheadMeter()
        assign_writer(plans, self._members.values())
        self._recorder.own.add(began)
        return plans

    # ---- events ----

    def handle(self, plan: EventSchedule, args: Any, state: Any, control: Any, objects: Objects) -> None:
        """Handle one event for one callback. Nothing is allocated when nothing is due."""
        step = state.global_step
        if step != self.step:
            self.step = step
            self.phases.step_ended(step)
        step += plan.offset
        if plan.event == "epoch_end":
            plan.epochs += 1
        due = urgent = False
        for period in plan.periods:
            if not step % period:
                due = True
                break
        else:
            urgent = bool(plan.urgent) and self._is_urgent(plan, step)
        flushes = plan.flushes and bool(self._record.values)
        if not (due or urgent or flushes or self.ledger.following):
            return
        recorder, own = self._recorder, self._recorder.own
        began = own.now()
        if self.ledger.following:
            self.fence.call("ledger", self.ledger.follow, plan.event, step, began[0])
        if not self._settings_are_read and plan.event == "step_end":  # by now there is an optimizer
            self._settings_are_read = True
            self.fence.call("settings", self._read_settings, args, objects)
        if self._record.sample is not None and not self._record.takes(plan.event, step):
            recorder.flush()
        if (due or urgent) and not (plan.event == "step_end" and plan.seen_step == step):
            recorder.do(plan, Moment(plan.event, step, state.epoch, args, state, control, objects, self), urgent)
        began = own.add(began, reading=due and bool(plan.paced))
        if plan.flushes and self._record.values:
            reads = recorder.reads
            recorder.flush(began[0])  # the cost of writing appears in the next record
            own.add(began, reading=reads)

    def _read_settings(self, args: object, objects: Objects) -> None:
        model, optimizer, loader = map(objects.get, ("model", "optimizer", "train_dataloader"))
        settings = settings_of_training(args, model, optimizer) | settings_of_loaders([loader])
        if model is not None and not self.facts.header.is_observed:
            modules = live_unless_frozen(sys.modules["torch"].nn.Module)
            settings |= {} if modules is None else settings_of_others(model, optimizer, modules)
        self._tell_settings(self.facts.settings | settings)  # who has begun the run may have told some

    def _see_forward(self, outputs: object) -> None:
        self.phases.on_output = None
        settings = settings_of_forward(outputs)
        self._passes_to_see -= 1
        if not settings and self._passes_to_see:
            self.phases.on_output = self._see_forward
        elif settings and self._settings_are_read:
            self._tell_settings(settings)
        self.facts.settings.update(settings)  # else told with the others

    def _tell_settings(self, settings: dict[str, str]) -> None:
        self.emit(Finding(kind="settings", step=self.step, text="settings", data=settings))

    def handle_late(self, plan: EventSchedule, *event: Any) -> None:
        """As `handle`, after the end, for what goes on by then; in the process that has trained."""
        if self.closed and self.is_of_this_process:
            self.handle(plan, *event)
            self._recorder.own.close()

    def flush(self, now: float | None = None) -> None:
        """Write the open record, if any; `now` is the performance counter, if the caller has just read it."""
        self._recorder.flush(now)

    def close(self, end: str = "finished", exit_code: int | None = None) -> None:
        """The training is over, whichever way: write what is open, give back what was taken. Idempotent.

        The first call says how it ended; a training whose closing is interrupted has not finished.
        """
        if self.closed:
            return
        if self._end is None:
            self._closes_since = self._recorder.own.now()
            fenced = functools.partial(functools.partial, self.fence.call)
            self._closing.add(
                fenced("what was read less often", self._tell_backed_off),
                fenced("the last record", self.flush),
                fenced("phases", self.phases.close),
                *self._works.ends(self),
                *(fenced(_name(call), call) for call in self._at_close),
                self._judge,
            )
            self._end = end, exit_code
        self._closing.carry_out(self._interrupted)

    def put_back(self) -> None:
        """What was changed for this run becomes as it was, whatever has failed before."""
        self._works.give_back()
        for call in self._at_close:
            self.fence.call(_name(call), call)

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
        """What the sinks add to the trainer's own log line."""
        return self._sinks.log_values(self.step)

    # ---- inside ----

    def _interrupted(self) -> None:
        if self._end is not None and self._end[0] == "finished":
            self._end = "interrupted", self._end[1]

    def _judge(self) -> None:
        """What came of it all; then the sinks hear of it, and end."""
        assert self._end is not None
        self.fence.call("what is known of the run", self._conclude, *self._end)
        found = self.fence.call("verdict", self._verdict, self.summary)
        if found:
            finding = Finding(kind="verdict", step=self.step, text=found[0], data=found[1])
            self.fence.call("summary", self.summary.tell, finding)
            self._closing.add(*self._sinks.calls("tell", finding))
        self._closing.add(*self._sinks.calls("end", self))
        self._closing.add(self._is_over)

    def _is_over(self) -> None:
        self._members.clear()
        self._works.clear()
        self._at_close.clear()
        self.closed = True
        PROCESS_END.withdraw(self._process_ends)

    def _process_ends(self) -> None:
        self.close("interrupted")

    def _forget(self) -> None:
        """This is a forked child: the training and its files are the parent's."""
        self.closed = True
        self._recorder.forget()
        self.phases.forget()
        self._closing.forget()
        self._sinks.clear()
        self._at_close.clear()

    def _tell_backed_off(self) -> None:
        for rule in {id(rule): rule for rule in self._paced if rule.longest_stretch > 1}.values():
            self.emit(backed_off(self, *rule.told_rarely()))

    def _tell_ledger(self) -> None:
        self.summary.told = replace(self.summary.told, ledger=tuple(self.ledger.rows()))

    def _conclude(self, end: str, exit_code: int | None) -> None:
        """What is known of the run when it is over goes into its summary."""
        fence, summary = self.fence, self.summary
        self.reach(self.step)  # not every step has a record
        fence.call("header", lambda: self.header)
        self._recorder.own.add(self._closes_since)
        fence.call("own time", self._recorder.take_self_s)
        self._recorder.own.close()
        fence.call("ledger", self.ledger.close)
        fence.call("ledger", self._tell_ledger)
        wall_s = time.perf_counter() - self._recorder.began_at
        fence.call("facts", finish_facts, self.facts, end, exit_code, wall_s, self.device)
        self._sinks.collect_problems(summary)
        summary.switched_off = list(dict.fromkeys(summary.switched_off + fence.switched_off + ASK.failure))

    def _is_urgent(self, plan: EventSchedule, step: int) -> bool:
        """Whether one of these works must read this step, although its rule's budget leaves it out."""
        for rule, work in plan.urgent:
            try:
                if rule.is_usual(step) and not work.off and work.is_urgent is not None and work.is_urgent():
                    return True
            except self.fence.struck(work):
                continue
        return False


def _name(call: Callable[[], object]) -> str:
    return str(getattr(call, "__qualname__", "at_close"))


def _no_trainer() -> None:
    """Nobody has linked it."""
