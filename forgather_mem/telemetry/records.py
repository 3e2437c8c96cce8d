"""The values passed between engine, probes, actions and sinks, and all members of these parts, each once.

`Sample` and `Finding` are plain data: safe to keep, to queue, to write, to pickle. A `Moment` holds live objects (the
trainer's) and is valid during the call only: never keep one.

`Work` (a probe or an action), `Sink` and `PhaseWatcher` are called by the engine; `RunInfo` is what they learn of their
training. `Begins` is what begins a work for one training. `FullWork` and `FullSink` say what else the engine looks for:
each of these members is optional, and is called or read only if it is there. `forgather_mem.testing` checks a part of
your own.

What fails in a part is logged once and ends no training; `KeyboardInterrupt` and `SystemExit` pass.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from forgather_mem.telemetry.guard import FailureGuard
    from forgather_mem.telemetry.report import RunReport
    from forgather_mem.telemetry.report_part import RunHeader

NOTHING: Mapping[str, float] = {}  # what a work returns that has read nothing
FORETOLD = "foretold"  # `what` of the findings that tell early what would fail late
# A peak deserves its own step's record if it is this many times the last.
RISEN = 1.01
# Fraction of a run's time for our readings; above it the expensive ones are taken less often, as the report says.
OWN_BUDGET_FRAC = 0.005

JsonData = Mapping[str, Any]
Objects = Mapping[str, Any]  # the keyword arguments of an event: model, optimizer, logs, ...
SeesBatch = Callable[[Sequence[Any], Mapping[str, Any]], object]


class Sample(NamedTuple):
    """The readings of one step: bytes, seconds, fractions and counts by name (see `forgather_mem.telemetry.metrics`).

    Attributes:
        event: The event of this record, without "on_"; "step_end" for a step's record.
        step: Optimizer steps done (`state.global_step`).
        epoch: Fractional epoch, None if the trainer has none.
        time_s: Wall clock, seconds since 1970.
        values: Name to number. A missing reading is absent, never 0, -1 or NaN.
        device: Index of this process's accelerator, None without one.
    """

    event: str
    step: int
    epoch: float | None
    time_s: float
    values: Mapping[str, float]
    device: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A message worth reporting to a person.

    Attributes:
        kind: What it is about, e.g. "leak", "oom", "switched_off", "clear".
        step: Optimizer steps done at that time.
        text: One or more lines for people.
        data: The same for programs; JSON-able values only.
    """

    kind: str
    step: int
    text: str
    data: JsonData = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one collection, clear or trim, known after the following steps.

    Attributes:
        step: The optimizer step it belongs to.
        time_s: Seconds inside the call.
        next_step_excess_s: Seconds by which the next step exceeded the usual step; negative if it was faster.
        freed_bytes: Freed by the call.
        retaken_bytes: Of these, reallocated within three steps.
    """

    step: int
    time_s: float
    next_step_excess_s: float
    freed_bytes: float
    retaken_bytes: float


@dataclass(slots=True)
class Moment:
    """One event of a training as it happens; holds live objects, never keep it.

    Attributes:
        event: Name without "on_".
        step: Optimizer steps done.
        epoch: Fractional epoch.
        args, state, control: The trainer's own.
        objects: The event's keyword arguments: model, optimizer, train_dataloader, logs, metrics, ...
        run: The training of this event.
    """

    event: str
    step: int
    epoch: float | None
    args: Any
    state: Any
    control: Any
    objects: Objects
    run: RunInfo

    @property
    def is_main(self) -> bool:
        """Whether this process prints for all: the trainer's own word, or else by rank."""
        return bool(getattr(self.state, "is_world_process_zero", self.run.rank == 0))


@runtime_checkable
class Work(Protocol):
    """A probe or an action: called when its rule is due, returns what it read or did, by name.

    A function will do. What else a work may have is in `FullWork`; one that keeps something for as long as a training
    is best begun for each, see `Begins`.
    """

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        """Read or act.

        Args:
            moment: The event, with the trainer's live objects. Don't keep it.
            sample: A view of the record of this step as far as it has been read, so that an action can use what a
                probe before it in the list has read. Don't keep it: it grows until the record is written.

        Returns:
            Finite numbers by name, "family/what_unit": bytes, seconds, fractions or counts. What could not be read is
            left out. An empty mapping for nothing.
        """


class Begins(Protocol):
    """What a rule may name in place of a work: settings, from which the work of one training is made.

    So nothing of a training is left in it, and it can be copied and pickled at any time. All of ours are made so.
    Its `reading` and `books` count; the rest of `FullWork` is looked for in what `begin` returns.
    """

    def begin(self, run: RunInfo) -> Work:
        """A training begins: the work that is called in it, and dropped at its end.

        What is taken here or later is given back through `run.at_close`, asked before it is taken.
        """


class FullWork(Work, Protocol):
    """A work with all optional members that the engine looks for, once when a run begins.

    Attributes:
        reading: Two works with an equal `reading` return the same numbers, so that the first is called for both.
        books: "collect", "clear" or "trim": what it returns is then recorded in the ledger. Default: "".
    """

    reading: Hashable
    books: str

    def begin(self, run: RunInfo) -> Work | None:
        """A training begins: return the work to call in it; or None, and keep its state here. May come twice."""

    def end(self, run: RunInfo) -> None:
        """The training is over, by whatever way, also an exception: say what is left to say. The sinks still write."""

    def is_urgent(self) -> bool:
        """Whether this step must be read, found within some microseconds.

        Called in the steps that a rule's budget leaves out, so that a peak is in its own step's record.
        """


class Sink(Protocol):
    """A destination of records. What else a sink may have is in `FullSink`.

    A sink handles its own I/O errors: it drops, counts, retries later, and says so in `problems`. It flushes each
    record: what stands in a buffer is lost when the process is killed, and written twice when the process forks.
    """

    def write(self, sample: Sample) -> None:
        """Write one record.

        Called when a step's readings are complete and for events outside a step, some times a step at most, from the
        thread that trains; in order of steps. The sample is yours to keep: it does not change any more.
        """


class FullSink(Sink, Protocol):
    """A sink with all optional members that the engine looks for.

    Order of the calls: `begin`; any number of `write`, `tell`, `say`, `log_values` and
    `evaluation_values`; `problems`; `tell` with a last
    finding, of kind "verdict"; `end`. One object may serve several trainings, one after the other.

    Attributes:
        key: Of two sinks with an equal key the run takes the first only: they would write the same to the same place.
        folder: The folder of this run's event files, so that the report can name it; None without one.
    """

    key: Hashable
    folder: str | None

    def begin(self, run: RunInfo) -> None:
        """A training begins. If this raises, the run goes on without the sink, and the report says why."""

    def tell(self, finding: Finding) -> None:
        """Something worth telling a person was found; at any moment between `begin` and `end`."""

    def failing(self, end: str, error: str | None) -> None:
        """An error has left the training, which will have this `run.end`: to be done at once, before the closing."""

    def say(self, text: str) -> None:
        """Print lines for people. The first sink with this member prints for the run, in place of our `ConsoleSink`."""

    def log_values(self, step: int) -> Mapping[str, float]:
        """Finite numbers by name for the trainer's own log line, after `step` optimizer steps; once for each line."""

    def evaluation_values(self, sample: Sample) -> Mapping[str, float]:
        """The same for the line of an evaluation; `sample` was read at its end. The run sets the line's prefix."""

    def problems(self) -> str | None:
        """One sentence for the report about what could not be written; None if everything was.

        It is asked for before `end`: a sink that writes on a thread of its own counts what still waits as well.
        """

    def end(self, run: RunInfo) -> None:
        """The training is over, by whatever way: write what is left, close what is open. May come twice."""


class PhaseWatcher(Protocol):
    """A watcher of phases: `phase_begin` and `phase_end` come in pairs and nest like the phases.

    Each step has four phases, `events.STEP_PHASES`; the others are rare. Two attributes, both optional and both read at
    every phase, spare a watcher calls at the phases of a step; it hears of the others always:

    - `wants_begin: bool`: False: not called for them at all.
    - `wants_end: bool`: False: not called at their ends.

    Two more, read once, are for the one that only keeps what was last: `beside`, whose `phase` is set to the number of
    each phase of a step that begins (`events.PHASE_NUMBER`), and `step_ended(step)`, called when so many are done.
    """

    def phase_begin(self, phase: str) -> None:
        """A phase begins, one of `events.PHASES`."""

    def phase_end(self, phase: str) -> None:
        """It has ended, also by an exception (`RunInfo.failed_phase`)."""


class RunInfo(Protocol):
    """What a probe, an action or a sink can learn about its training, and what it can ask of it."""

    # ---- which training ----

    @property
    def output_dir(self) -> Path | None:
        """The trainer's `args.output_dir`."""

    @property
    def folder(self) -> Path | None:
        """The folder for this run's files (`<output_dir>/forgather_mem/<time>`), the same on all ranks; None if there
        is none. It may have to be created."""

    @property
    def header(self) -> RunHeader:
        """What is known of the process and its training by now."""

    @property
    def rank(self) -> int:
        """This process's rank among `world_size` processes."""

    @property
    def world_size(self) -> int:
        """The number of processes in the training."""

    def store_key(self, what: str) -> str:
        """A new key for `system.rank_store`: of this training only, and equal on all ranks if each of them asks equally
        often for keys of this kind."""

    @property
    def device(self) -> int | None:
        """Index of this process's accelerator, None without one."""

    @property
    def fence(self) -> FailureGuard:
        """Contains the failures of what is not called by the engine."""

    def trainer(self) -> Any:
        """The trainer, as long as something else holds it; None without a link to it."""

    # ---- how far it is ----

    @property
    def step(self) -> int:
        """Optimizer steps done."""

    @property
    def in_step(self) -> bool | None:
        """Whether a step has begun that has not ended; None without a link, which tells of phases."""

    @property
    def phase(self) -> str:
        """The current phase, one of `events.PHASES`; "other" without a link."""

    @property
    def failed_phase(self) -> str | None:
        """The phase that an exception has left last, until another one begins."""

    def latest(self, name: str, /) -> float | None:
        """The last value of this sample name in a written record; None before the first."""

    @property
    def told(self) -> RunReport:
        """The parts of the report that findings have told so far: leak, oom, advice, clean-up calls."""

    def so_far(self) -> dict[str, object]:
        """All that a report needs of the records so far, as plain values; 2 ms."""

    def outcome(self, what: str) -> Outcome | None:
        """The outcome of the last "collect", "clear" or "trim"; None before one is known."""

    # ---- what it can be told ----

    def emit(self, finding: Finding) -> None:
        """Pass a finding to the sinks and the report."""

    def print_line(self, text: str) -> None:
        """Print for people, through the console sink: rank 0 only, without disturbing the progress bar."""

    def reach(self, step: int) -> None:
        """Say that so many optimizer steps are done, where no event has told so yet."""

    def enter_phase(self, phase: str) -> bool:
        """Begin a phase. False if it belongs to the current one, as inside an evaluation; then don't leave it."""

    def leave_phase(self, phase: str) -> None:
        """End a phase, and whatever was left open inside it."""

    def fail(self, error: BaseException, end: str) -> None:
        """End the run by this error: "oom", "exception" or "interrupted". Nothing of it is kept. Idempotent."""

    def begun(self, named: Work | Begins) -> Work:
        """The work of this run for what a rule names; begun if it has not."""

    # ---- what else one can hear of; all until the run ends ----

    def watch_phases(self, watcher: PhaseWatcher) -> None:
        """Call `watcher` at every change of phase; for those that are open it begins now.

        A Trainer's phases are there only where a callback asks for them, by `needs_phases`.
        """

    def watch_batches(self, see: SeesBatch, /) -> None:
        """Call `see` with the arguments and keywords of what trains on a micro-batch, before it begins."""

    def watch_failure(self, see: Callable[[BaseException], object], /) -> None:
        """Call `see` with the error that ends the run, while its frames are alive; not for a Ctrl-C. Keep nothing."""

    def at_close(self, call: Callable[[], object], /) -> None:
        """Call this when all works have ended, before the sinks do. It may be called twice."""
