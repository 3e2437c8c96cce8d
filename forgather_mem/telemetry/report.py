"""The report of a run as values: schema 1, a promise to users.

Keys are only ever added. Sizes are in bytes, times in seconds. What was not measured is 0, None or empty.
`report_schema` turns these classes into JSON and back; `docs/report.schema.json` is made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from forgather_mem.telemetry.redaction import redacted_argv
from forgather_mem.telemetry.report_part import ADDED, RARE, Amount, Rank, ReportPart, Signed

Memory = Literal["host", "device"]
Verdict = Literal["not enough data", "leak", "no leak", "copied pages"]
Sure = Literal["not yet", "likely", "yes"]
LineIs = Literal["made", "added"]
Unit = Literal["a step", "an evaluation", "a save", "a generation"]
Action = Literal["collect", "clear", "trim"]

TENSORS = "parameters", "gradients", "optimizer"
"""Parts of memory that are counted tensor by tensor."""
THERE_BEFORE, PYTHON = "there before the first step", "Python and libraries"
"""On the host, without the weights and what other parts name: libraries and the script's own data; and what of it a
census has found no owner of."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Training(ReportPart):
    """The process that trained."""

    script: str = ""
    argv: tuple[str, ...] = ()
    wall_s: Amount = 0.0  # of the training
    startup_s: Amount = field(default=0.0, metadata=RARE)  # from the start of the process to its first step
    end: str | None = None  # "finished", "exception", "oom", "killed", "interrupted"; None until that is recorded
    exit_code: Signed | None = None  # if known; 128 + the signal if it was killed
    rank: Rank = 0
    world_size: Rank = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    # What decides how much memory it takes, by names such as "arguments.optim" and "model.dtype"; no other arguments
    settings: Mapping[str, str] = field(default_factory=dict, metadata=RARE)
    folder: str | None = field(default=None, metadata=ADDED)  # of its files
    event_folder: str | None = field(default=None, metadata=ADDED)  # of its TensorBoard files
    host: str | None = field(default=None, metadata=RARE)  # the machine's name, with several processes
    worker: str = field(default="", metadata=RARE)  # of those of `multiprocessing`: "rank 1", or its name
    error: str | None = field(default=None, metadata=RARE)  # type and first line of the exception that ended it
    error_line: str | None = field(default=None, metadata=RARE)  # the innermost of the user's own: "train.py:41"

    def __post_init__(self) -> None:
        # Here, since nobody shall write or show them as they were given, nor those of a file of an older version
        object.__setattr__(self, "argv", redacted_argv(self.argv))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HostMemory(ReportPart):
    """Resident memory of the process, and the smallest limit that applies."""

    rss_start_bytes: int = 0
    rss_end_bytes: int = 0
    rss_peak_bytes: int = 0
    limit_bytes: int = 0
    limit_kind: str = "host"  # "cgroup", or a limit of the process alone: "RLIMIT_DATA", "RLIMIT_AS"
    # Of a limit of the process alone, which resident memory is no part of: what counts for it, when it ended
    limit_used_frac: Amount = field(default=0.0, metadata=RARE)
    workers_peak_bytes: int = field(default=0, metadata=RARE)  # of data workers, pages that they share counted once
    # By the C library, for tensors above all, and not freed, when the training began and when it ended: 0 if unknown
    allocated_start_bytes: int = field(default=0, metadata=RARE)
    allocated_end_bytes: int = field(default=0, metadata=RARE)
    # What the C library had kept of freed memory when the training began: a loop is met once its first pass is over
    gaps_start_bytes: int = field(default=0, metadata=RARE)
    activations_bytes: int = field(default=0, metadata=RARE)  # what a forward pass of the first steps left allocated
    rank: Rank | None = field(default=None, metadata=RARE)  # here and below: whose numbers a merged report has


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeviceMemory(ReportPart):
    """An accelerator's allocator in this process, and the size of the card."""

    name: str
    index: int = field(default=0, metadata=ADDED)
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    total_bytes: int
    allocated_start_bytes: int = field(default=0, metadata=ADDED)
    allocated_end_bytes: int = field(default=0, metadata=ADDED)
    reserved_start_bytes: int = field(default=0, metadata=ADDED)
    reserved_end_bytes: int = field(default=0, metadata=ADDED)
    rank: Rank | None = field(default=None, metadata=RARE)

    @property
    def where(self) -> str:
        """Its name in `Peak.where`."""
        return f"gpu{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Peak(ReportPart):
    """The peak of the run on "host" or "gpu{i}", or of one phase there."""

    where: str
    bytes: int
    step: int
    phase: str
    # The last step that could tell this phase's peak, if the run's peak has hidden it since
    not_read_since: int | None = field(default=None, metadata=RARE)
    rank: Rank | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Breakdown(ReportPart):
    """What memory consisted of, each part at its own peak."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations_peak: int = 0  # how far memory rose in the passes above what was held at the end of the step
    cached: int = 0  # held by the device's allocator at the end but not by a tensor
    other: int = 0

    def sizes(self) -> dict[str, int]:
        """The sizes by the names that people read."""
        return {one.name.removesuffix("_peak"): getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Collector(ReportPart):
    """Python's collector: full collections, and all of its pauses, whatever caused them."""

    collections: int = 0
    pause_total_s: Amount = 0.0
    pause_max_s: Amount = 0.0
    rank: Rank | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CacheClears(ReportPart):
    """Our clears of the device cache."""

    clears: int = 0
    freed_bytes: int = 0
    time_s: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CleanupCall(ReportPart):
    """All calls of "gc.collect" or of one `empty_cache` from one line."""

    what: str
    file: str
    line: int
    calls: int
    seconds: Amount
    freed_bytes: int
    whose: str  # whose line it is: "user", "library" or "us"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LeakSuspect(ReportPart):
    """A holder that may explain a leak."""

    type: str
    bytes_per_step: float
    count_per_step: float
    held_by: str | None  # "Trainer.losses"; None if that is not known
    allocated_at: str | None = None  # the line that fills it: "train.py:41"
    source_line: str = ""
    whose: str = "user"  # or "library"
    cure: str | None = None  # what to do about this kind of leak
    count: Amount | None = field(default=None, metadata=ADDED)  # items that it holds
    bytes: Amount | None = field(default=None, metadata=ADDED)  # their size
    kind: str | None = field(default=None, metadata=ADDED)
    each: str = field(default="", metadata=ADDED)  # one new item in words
    line_is: LineIs = field(default="made", metadata=ADDED)  # where it is made, or where it is added to its holder
    # Equal in any two runs in which the same code keeps the same kind of thing in the same place, whatever its size
    signature: str = field(default="", metadata=ADDED)

    @property
    def holder(self) -> str:
        """Who holds it, in words; the kind "native" is given only where all that Python made was looked at."""
        return self.held_by or ("C or C++ code" if self.kind == "native" else "holder not found")


# For each `where` but a device's
_GROWS = {
    "python": "Python's objects grow",
    "tensors": "tensors on the host grow",
    "native": "native memory grows",
    "host": "host memory grows",
    "shared": "shared memory (/dev/shm) grows",
    "workers": "the data workers grow",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LeakReport(ReportPart):
    """The verdict on leaks."""

    verdict: Verdict = "not enough data"
    where: str | None = None  # what grows: "python", "tensors", "native", "host", "shared", "workers", "device"
    bytes_per_step: float = 0.0
    bytes_per_step_low: float = 0.0
    bytes_per_step_high: float = 0.0
    since_step: int = 0
    full_at_step: int | None = None  # when memory will be full
    suspects: tuple[LeakSuspect, ...] = ()  # most likely first
    sure: Sure = "not yet"
    judged: bool = field(default=False, metadata=ADDED)  # whether anybody has looked for leaks
    why: str | None = field(default=None, metadata=RARE)  # why there is no verdict; beside "no leak" what
    # stays free, beside a leak what else grows
    # Why there is none although enough steps were seen: "slowing", "uneven", "bounded", "unexplained" by what was
    # judged, or "copied pages"
    undecided: str | None = field(default=None, metadata=RARE)
    judged_steps: int = field(default=80, metadata=RARE)  # of this run, about: fewer are too few for a verdict
    unexplained_bytes: int = field(default=0, metadata=RARE)
    taken_back: tuple[str, ...] = field(default=(), metadata=RARE)  # what was said while it ran and is no longer so
    rank: Rank | None = field(default=None, metadata=RARE)
    # What it grows with, where that is not each step: "an evaluation", and so many steps apart these are
    per: Unit = field(default="a step", metadata=RARE)
    per_steps: Amount = field(default=1.0, metadata=RARE)

    @property
    def grows(self) -> str:
        """What grows, in words with their verb; empty of a device, or where nobody knows it."""
        return _GROWS.get(self.where or "", "")


NOT_JUDGED = LeakReport()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LedgerRow(ReportPart):
    """All our own collections, clears or trims."""

    what: Action
    calls: int = 0
    time_s: Amount = 0.0  # inside the calls
    next_step_excess_s: Amount = 0.0  # by how much the steps right after them took longer than usual
    freed_bytes: int = 0
    retaken_bytes: int = 0  # of these, allocated again soon after
    objects: int = field(default=0, metadata=ADDED)  # unreachable objects that collections found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OomReport(ReportPart):
    """An out-of-memory error."""

    where: Memory
    step: int
    phase: str  # one of `metrics.PHASES`
    rank: Rank
    layer: str | None = None  # the module whose forward pass was running
    requested_bytes: int | None = None
    free_bytes: int | None = None  # what could still be allocated
    limit_bytes: int | None = field(default=None, metadata=ADDED)
    limit: str | None = field(default=None, metadata=ADDED)  # its source: "container", "GPU 0"
    reserved_unused_bytes: int | None = None  # by the device's allocator, not used by any tensor
    others_bytes: int | None = field(default=None, metadata=ADDED)  # in use by other processes
    in_use: Mapping[str, int] = field(default_factory=dict)  # what this process had in memory, by category
    batch: Mapping[str, int | None] | None = field(default=None, metadata=ADDED)  # "rows" and "length"
    why_now: str | None = None  # why memory did not run out earlier
    not_because: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()  # the texts of the report's `advice`
    kind: str = field(default="", metadata=ADDED)  # the source of the error
    error_type: str = field(default="", metadata=ADDED)
    message: str = field(default="", metadata=ADDED)
    fit: str | None = field(default=None, metadata=ADDED)  # what the predicted sizes are based on
    no_help: str | None = field(default=None, metadata=ADDED)
    snapshot: str | None = field(default=None, metadata=ADDED)  # the file of the allocator's history
    callback: str | None = field(default=None, metadata=RARE)  # whose event failed by itself: "KeepsCopies.on_save"
    line: str | None = field(default=None, metadata=RARE)  # of it: "train.py:41"
    copied_bytes: int | None = field(default=None, metadata=RARE)  # the tensors that it was copying


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class KilledReport(ReportPart):
    """A process that ended without saying so, with its last sign of life."""

    signal: int | None = None  # which only its parent knows
    oom_kill_before: int | None = None  # the kernel's count of out-of-memory kills
    oom_kill_after: int | None = None
    step: int
    phase: str
    used_bytes: int | None = None  # under the limit that applies
    process_bytes: int | None = None
    file_bytes: int = field(default=0, metadata=RARE)  # of these, in pages of files, as of libraries
    workers_bytes: int | None = None  # pages that they share counted once
    others_bytes: int | None = field(default=None, metadata=RARE)  # the same of children that are not data workers
    ahead_bytes: int | None = field(default=None, metadata=RARE)  # of these, in shared memory: batches that wait
    num_workers: int | None = None
    process_bytes_per_step: float | None = None
    workers_bytes_per_step: float | None = None
    since_step: int | None = None
    # From its last sign of life to its end, which only its parent knows
    silent_s: Amount | None = field(default=None, metadata=RARE)
    has_trained: bool = field(default=False, metadata=RARE)  # its training had ended before
    why_now: str | None = field(default=None, metadata=RARE)
    in_use: Mapping[str, int] = field(default_factory=dict, metadata=RARE)  # when the limit was reached, by category
    fit: str | None = field(default=None, metadata=RARE)  # why nothing was planned


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Change(ReportPart):
    """One thing to change after memory ran out."""

    text: str  # what to do, as the user would type it
    set: Mapping[str, object] = field(default_factory=dict)  # the same as values of `TrainingArguments`, ready to apply
    predicted_bytes: int | None = None  # peak use with this change
    # The same for what the script itself decides: "max_length" of its samples, "dtype" of the weights, "rows" per
    # generation, "resume_from_checkpoint", "preprocess_logits_for_metrics", or an environment variable
    in_script: Mapping[str, object] = field(default_factory=dict, metadata=RARE)
    # The likely range of the largest value that fits; the text names a safe one
    interval: tuple[int, int] | None = field(default=None, metadata=RARE)
    binds: str | None = field(default=None, metadata=RARE)  # the phase that limits it
    note: str | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LastError(ReportPart):
    """What a process leaves for the report that its parent writes; `pid` if its training has told of the error."""

    oom: OomReport
    advice: tuple[Change, ...]
    pid: int | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BackedOff(ReportPart):
    """A reading that was taken less often than asked, to stay within the budget."""

    what: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Overhead(ReportPart):
    """What watching cost; of a step in steady state, without what is done once.

    Processor time, and waits for a disk or a device; not the waits for a processor that others keep busy.
    """

    seconds: Amount = 0.0
    share_of_run: Amount = 0.0
    share_of_step: Amount = field(default=0.0, metadata=ADDED)
    step_s: Amount = field(default=0.0, metadata=ADDED)  # in each step
    once_s: Amount = field(default=0.0, metadata=ADDED)  # before the first step, between steps, and at the end
    once_bytes: int = field(default=0, metadata=ADDED)  # by so much resident memory rose, looks included
    backed_off: tuple[BackedOff, ...] = field(default=(), metadata=ADDED)
    rank: Rank | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RankRow(ReportPart):
    """One rank of a merged report; `leak` is its verdict."""

    rank: Rank
    end: str | None
    exit_code: Signed | None
    steps: int
    host_peak_bytes: int
    device_peak_bytes: int
    device_reserved_bytes: int
    leak: str
    bytes_per_step: float
    signal: int | None = field(default=None, metadata=RARE)  # that ended it, if its launcher has told
    error: str | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FirstFailure(ReportPart):
    """The rank that failed before the others, or was behind them when all were asked to end."""

    rank: Rank
    how: str  # "exception", "oom", "killed", "exited" with a code, "no end", "behind"
    step: int  # that was being made, or after which an exception came
    phase: str
    signal: int | None = None
    exit_code: Signed | None = None
    error: str | None = None
    or_ranks: tuple[Rank, ...] = ()  # which may as well have been it
    sure: bool = True  # its launcher has seen it, or no other can have been it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Extremes(ReportPart):
    """The lowest and the highest of the ranks' peaks, and the rank of the highest."""

    min: int
    max: int
    argmax: Rank
    argmin: Rank | None = field(default=None, metadata=RARE)  # these three of three ranks or more
    median: int | None = field(default=None, metadata=RARE)
    argmedian: Rank | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Spread(ReportPart):
    """How far the ranks are apart."""

    host_peak_bytes: Extremes
    device_peak_bytes: Extremes
    device_reserved_bytes: Extremes
    # The peaks of all ranks on one machine, where that is most; they share its limits, and need not meet
    host_sum_bytes: int | None = field(default=None, metadata=RARE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PlannedPart(ReportPart):
    """A part of memory at its own peak: what the plan said, and what it was."""

    name: str = ""
    planned_bytes: int = 0
    measured_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PlannedPhase(ReportPart):
    """The planned peak of a phase, in the one of both planned steps in which it is higher."""

    phase: str
    bytes: int
    parts: Mapping[str, int]  # what it consists of: "activations", "optimizer", "temporaries", ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Planned(ReportPart):
    """What a plan said before the training began, and what was measured."""

    planned_bytes: int = 0  # the most that all tensors take at once
    measured_bytes: int | None = None  # of a device's tensors; on the host nothing measures them
    phase: str = ""  # of the planned peak
    parts: tuple[PlannedPart, ...] = ()
    phases: tuple[PlannedPhase, ...] = field(default=(), metadata=RARE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunReport(ReportPart):
    """The report of a run, or of a running one up to now."""

    schema: Literal[1] = 1
    steps: int = 0  # optimizer steps done in this run; a resumed run counts its own
    run: Training = Training()
    host: HostMemory = HostMemory()
    device: tuple[DeviceMemory, ...] = ()
    peaks: tuple[Peak, ...] = ()  # for each place that of the run, then those of the phases
    breakdown: Breakdown = Breakdown()
    gc: Collector = Collector()
    cache: CacheClears = CacheClears()
    cleanup_calls: tuple[CleanupCall, ...] = ()
    leak: LeakReport = NOT_JUDGED
    ledger: tuple[LedgerRow, ...] = ()
    oom: OomReport | None = None
    killed: KilledReport | None = field(default=None, metadata=ADDED)
    advice: tuple[Change, ...] = ()
    overhead: Overhead = Overhead()
    switched_off: tuple[str, ...] = ()  # what failed and was switched off; what could not be written
    ranks: tuple[RankRow, ...] | None = field(default=None, metadata=RARE)  # these three in a merged report
    spread: Spread | None = field(default=None, metadata=RARE)
    missing_ranks: tuple[Rank, ...] | None = field(default=None, metadata=RARE)  # those that left no files
    foretold: tuple[str, ...] = field(default=(), metadata=RARE)  # what would fail late, told early
    hints: tuple[str, ...] = field(default=(), metadata=RARE)  # what is not known, and the line to add for it
    planned: Planned | None = field(default=None, metadata=RARE)
    first_failure: FirstFailure | None = field(default=None, metadata=RARE)  # of several ranks
    left_out: tuple[str, ...] = field(default=(), metadata=RARE)  # what in the run's folder could not be used
