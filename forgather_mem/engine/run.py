"""One training from its first event to its end: one `Run`, shared by all our callbacks."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgather_mem.engine import facts as process_facts
from forgather_mem.engine.closing import Closing, Step
from forgather_mem.engine.ledger import Ledger
from forgather_mem.engine.phases import PhaseStack
from forgather_mem.engine.recorder import Recorder
from forgather_mem.engine.schedule import ArmedRule, EventSchedule, OverheadMeter, assign_writer, schedules_of
from forgather_mem.engine.settings import see_forwards, settings_of_step
from forgather_mem.engine.sink_set import SinkSet, evaluation_prefix
from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.system.allocator import ASK
from forgather_mem.system.forks import FORKS
from forgather_mem.system.process_end import PROCESS_END
from forgather_mem.system.time_budget import PREPARATION, Clocks, backed_off
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import Begins, Finding, Moment, Objects, Sink, Work
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.rule import Rule

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import RunReport

ClosingFinding = Callable[[RunSummary], tuple[str, dict[str, Any]]]  # text and data of the finding that closes a run


class Run:
    """One training: readings, phases, ledger, sinks, failure guard and overhead of all our callbacks in it.

    A step's readings form one record, written after the last of our callbacks has seen `step_end`; later events
    (evaluation, checkpoint, epoch end) write records of their own. `Run.begin` makes one for a training.

    Args:
        facts: What is known of the training by now.
        strict: Let our own failures through (for tests and debugging).
        verdict: Turns the finished summary into the text that closes the run in TensorBoard, with its data.

    Attributes:
        output_dir: The trainer's folder.
        closed: Whether it is over.
        end: How it ends, with the exit code; None while it goes on.
        at_close_calls: What `at_close` was told.
        settings_are_read: Whether it is known what decides its memory.
        paced: The rules that keep to a budget.
    """

    def __init__(self, facts: RunFacts, *, strict: bool = False, verdict: ClosingFinding | None = None) -> None:
        self.output_dir: Path | None = None
        self.facts = facts
        self.rank, self.world_size = facts.header.rank, facts.header.world_size
        self.device = process_facts.current_device()
        self.step = facts.header.step
        self.summary = RunSummary(facts)
        self.ledger = Ledger()
        self.fence = FailureGuard(strict)
        self.phases = PhaseStack(self.fence)
        see_forwards(self.phases, self.tell_settings)
        self.trainer: Callable[[], Any] = lambda: None  # nobody has linked it
        self.closed = False
        self.end: str | None = None
        self.verdict = verdict
        self._folder: Path | None = None
        self._key: str | None = None  # of this training in the ranks' store
        self._num_keys: dict[str, int] = {}
        self.sinks = SinkSet(self.fence)
        self.recorder = Recorder(self.step, self.fence, self.phases, self.ledger, self.summary, self.sinks)
        self._record, self.works, self.members = self.recorder.record, self.recorder.works, self.recorder.members
        self.summary.readings = self.works.readings
        self.at_close_calls: list[Callable[[], object]] = []
        self.settings_are_read = False
        self.paced: list[ArmedRule] = []
        self.closing = Closing()
        self._forks = FORKS.number
        # The rest of `RunInfo` is what its parts can do
        self.latest, self.outcome, self.reach = self.summary.latest.get, self.ledger.outcome, self.summary.reach
        self.enter_phase, self.leave_phase = self.phases.enter, self.phases.leave
        self.watch_phases, self.watch_batches = self.phases.watch, self.phases.on_batch.append
        self.watch_failure, self.at_close = self.phases.on_failure.append, self.at_close_calls.append

    @classmethod
    def begin(cls, args: Any, state: Any, *, strict: bool = False, verdict: ClosingFinding | None = None) -> Run:
        """The run of a training that begins now. It closes when the process ends, at the latest.

        Args:
            args, state: The trainer's, read once and not kept.
            strict, verdict: As in the constructor.
        """
        header = process_facts.header_of(args, state.global_step)
        header = replace(
            header, started_with=process_facts.sizes_now(), startup=process_facts.startup_of(header.process_started_s)
        )
        run = cls(RunFacts(header), strict=strict, verdict=verdict)
        run.output_dir = Path(args.output_dir) if getattr(args, "output_dir", None) else None
        run.summary.begin(run.step, dict(header.started_with))
        PROCESS_END.ask(run.process_ends, run.forget)
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
            self._folder = process_facts.run_folder(self.output_dir, self.rank, self.store_key("folder"))
        return self._folder

    @property
    def header(self) -> RunHeader:
        known = self.facts.header
        events = known.event_folder or self.sinks.event_folder()
        if events and "://" not in events:  # it may be read from another working directory
            events = os.path.abspath(events)
        folder = os.path.abspath(self._folder) if self._folder else known.folder
        spent_s, grown_bytes = PREPARATION.take()
        known = replace(known, setup_s=known.setup_s + spent_s, setup_bytes=known.setup_bytes + grown_bytes)
        self.facts.header = replace(known, folder=folder, event_folder=events)
        return self.facts.header

    def store_key(self, what: str) -> str:
        if self._key is None:
            self._key = process_facts.training_key(self.summary.first_step or 0, self.rank, self.world_size)
        number = self._num_keys[what] = self._num_keys.get(what, -1) + 1
        return f"{what}/{self._key}/{number}"

    @property
    def told(self) -> RunReport:
        return self.summary.told

    def so_far(self) -> dict[str, object]:
        from forgather_mem.engine.so_far import plain_summary

        _store_ledger(self)
        return plain_summary(self.summary)

    def emit(self, finding: Finding) -> None:
        self.fence.call("summary", self.summary.tell, finding)
        if self.closed:  # the report once more, with this
            self.fence.call("verdict", self.verdict, self.summary)
        self.sinks.tell(finding)

    def tell_settings(self, settings: dict[str, str]) -> None:
        """These decide what memory it takes; told before a step has ended, they are told then with the others."""
        if self.settings_are_read:
            self.emit(Finding(kind="settings", step=self.step, text="settings", data=settings))
        self.facts.settings.update(settings)

    def print_line(self, text: str) -> None:
        self.sinks.say(text, self)

    def fail(self, error: BaseException, end: str) -> None:
        if self.closed:
            return
        self.fence.call("facts", self.facts.failed_by, error)
        for tell in self.sinks.calls("failing", end, self.facts.error):
            tell()  # first of all: a launcher kills who takes long to end
        try:
            for see in tuple(self.phases.on_failure if end != "interrupted" else ()):
                self.fence.call("oom", see, error)
        finally:  # a Ctrl-C while they look at it too
            self.close(end)

    def begun(self, named: Work | Begins) -> Work:
        return self.works.begun(named, self)

    # ---- joining and leaving ----

    def add_member(
        self, member: object, rules: Sequence[Rule], sinks: Sequence[Sink], epoch: float | None
    ) -> dict[str, EventSchedule]:
        """Add a callback to the run: its works and sinks begin.

        Returns:
            One plan for each event that it handles.
        """
        self.members[id(member)] = {}  # it takes part from now on
        for sink in sinks:
            self.fence.call(type(sink).__name__, self.sinks.add, sink, self)
        plans = schedules_of(rules, epoch, self.begun, self.fence)
        self.members[id(member)] = plans
        self.paced += [rule for plan in plans.values() for rule in plan.paced]
        if self.recorder.meter is None and self.paced:
            self.recorder.meter = OverheadMeter()
        assign_writer(plans, self.members.values())
        return plans

    # ---- events ----

    def steps_are_done(self, step: int) -> None:
        """So many steps are done."""
        if step != self.step:
            self.step = step
            self.phases.step_ended(step)

    def handle(self, plan: EventSchedule, args: Any, state: Any, control: Any, objects: Objects) -> None:
        """Handle one event for one callback. Nothing is allocated when nothing is due."""
        self.steps_are_done(state.global_step)
        step = state.global_step + plan.offset
        if plan.event == "epoch_end":
            plan.epochs += 1
        due = not all(step % period for period in plan.periods)
        urgent = not due and self.recorder.is_urgent(plan.urgent, step)
        flushes = plan.flushes and bool(self._record.values)
        if not (due or urgent or flushes or self.ledger.following):
            return
        recorder, own = self.recorder, self.recorder.own
        began = own.now()
        if self.ledger.following:
            self.fence.call("ledger", self.ledger.follow, plan.event, step, began[0])
        if not self.settings_are_read and plan.event == "step_end":  # by now there is an optimizer
            self.settings_are_read = True
            self.fence.call("settings", self._read_settings, args, objects)
        if self._record.sample is not None and not self._record.takes(plan.event, step):
            recorder.flush()
        if (due or urgent) and not (plan.event == "step_end" and plan.seen_step == step):
            recorder.do(plan, Moment(plan.event, step, state.epoch, args, state, control, objects, self), urgent)
        self.phases.look_again()
        began = own.add(began, reading=due and bool(plan.paced))
        if plan.flushes and self._record.values:
            reads = recorder.reads
            recorder.flush(began[0])  # the cost of writing appears in the next record
            own.add(began, reading=reads)

    def _read_settings(self, args: object, objects: Objects) -> None:
        found = settings_of_step(args, objects, is_observed=self.facts.header.is_observed)
        self.tell_settings(self.facts.settings | found)

    def close(self, end: str = "finished") -> None:
        """The training is over, whichever way: write what is open, give back what was taken. Idempotent.

        The first call says how it ended; a training whose closing is interrupted has not finished.
        """
        if self.closed:
            return
        if self.end is None:
            self.closing.add(*_closing_steps(self, self.recorder.own.now()))
            self.end = end
        self.closing.carry_out(functools.partial(_interrupted, self))

    def put_back(self) -> None:
        """What was changed for this run becomes as it was, whatever has failed before."""
        for call in self.at_close_calls:
            self.fence.call("at_close", call)

    def finish(self, member: object) -> None:
        """A callback has seen `train_end`; after the last of them the run closes."""
        self.members.pop(id(member), None)
        if not self.members:
            self.close()

    def log_values(self, line: Iterable[str] = ()) -> dict[str, float]:
        """What the sinks add to the trainer's own log line, whose names these are; with the prefix of an evaluation."""
        prefix = evaluation_prefix(line)
        if not prefix:
            return self.sinks.numbers("log_values", lambda: self.step)
        reading = functools.partial(self.recorder.read_aside, "evaluate", self)
        return {prefix + name: value for name, value in self.sinks.numbers("evaluation_values", reading).items()}

    # ---- when the process ends, or is forked ----

    def process_ends(self) -> None:
        """It is over with the process, at the latest."""
        self.close("interrupted")

    def forget(self) -> None:
        """This is a forked child: the training and its files are the parent's."""
        self.closed = True
        self.recorder.forget()
        self.phases.forget()
        self.closing.forget()
        self.sinks.clear()
        self.at_close_calls.clear()


# ---- how it ends ----


def _closing_steps(run: Run, since: Clocks) -> list[Step]:
    """What is done at the end of this run, which closes since then; more steps follow from it."""
    fenced = functools.partial(functools.partial, run.fence.call)
    has_begun = run.in_step or run.failed_phase is not None
    return [
        fenced("what was read less often", _emit_backed_off, run),
        fenced("the last record", run.recorder.flush),
        *[fenced("phases of a step", run.phases.close)] * bool(run.in_step),  # between steps nobody knows what is open
        # Its end may be long after its last record, as in a step that an error has ended; before any it is as it began
        *[fenced("the last reading", run.recorder.read_aside, "train_end", run)] * bool(run.summary.spans or has_begun),
        fenced("phases", run.phases.close),
        *run.works.ends(run),
        *(fenced(str(getattr(call, "__qualname__", "at_close")), call) for call in run.at_close_calls),
        functools.partial(_judge, run, since),
    ]


def _interrupted(run: Run) -> None:
    """A training whose closing is interrupted has not finished."""
    if run.end == "finished":
        run.end = "interrupted"


def _store_ledger(run: Run) -> None:
    """What actions have done so far goes into the summary."""
    run.summary.told = replace(run.summary.told, ledger=tuple(run.ledger.rows()))


def _emit_backed_off(run: Run) -> None:
    for rule in {id(rule): rule for rule in run.paced if rule.longest_stretch > 1}.values():
        run.emit(backed_off(run, *rule.text_of_longer_intervals()))


def _judge(run: Run, since: Clocks) -> None:
    """What came of it all; then the sinks hear of it, and end."""
    assert run.end is not None
    run.fence.call("what is known of the run", _conclude, run, since, run.end)
    found = run.fence.call("verdict", run.verdict, run.summary)
    steps: list[Step] = []
    if found:
        finding = Finding(kind="verdict", step=run.step, text=found[0], data=found[1])
        run.fence.call("summary", run.summary.tell, finding)
        steps += run.sinks.calls("tell", finding)
    run.closing.add(*steps, *run.sinks.calls("end", run), functools.partial(_is_over, run))


def _is_over(run: Run) -> None:
    for kept in (run.members, run.works, run.at_close_calls):
        kept.clear()
    run.closed = True
    PROCESS_END.withdraw(run.process_ends)


def _conclude(run: Run, since: Clocks, end: str) -> None:
    """What is known of the run when it is over goes into its summary."""
    fence, summary, recorder = run.fence, run.summary, run.recorder
    run.reach(run.step)  # not every step has a record
    fence.call("header", lambda: run.header)
    recorder.own.add(since)
    fence.call("own time", recorder.take_self_s)
    recorder.own.close()
    fence.call("ledger", run.ledger.close)
    fence.call("ledger", _store_ledger, run)
    fence.call("facts", process_facts.finish_facts, run.facts, end, time.perf_counter() - recorder.began_at, run.device)
    run.sinks.collect_problems(summary)
    summary.switched_off = list(dict.fromkeys(summary.switched_off + fence.switched_off + ASK.failure))
