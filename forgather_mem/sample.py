"""What passes between engine, probes, actions and sinks: samples, findings, moments.

`Sample` and `Finding` are plain data: safe to keep, to queue, to write, to pickle. A `Moment` is alive
(it carries the trainer's objects) and dies with the call: never keep one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

EVENTS = (
    "init_end", "train_begin", "train_end", "epoch_begin", "epoch_end", "step_begin", "substep_end",
    "pre_optimizer_step", "optimizer_step", "step_end", "evaluate", "predict", "save", "log",
    "prediction_step", "push_begin",
)  # fmt: skip
# The phases that each step has.
STEP_PHASES = frozenset({"data", "forward", "backward", "optimizer"})
# A peak is worth a record of its own step when it is so many times the last.
RISEN = 1.01
# The share of a run's time that our readings may take; over it the dear ones become rarer, and the report says so.
OWN_BUDGET_FRAC = 0.005


class Sample(NamedTuple):
    """What was read at one step: bytes, seconds, fractions and counts by name (see `forgather_mem.metrics`).

    Attributes:
        event: The event in whose record this stands, without "on_"; "step_end" for a step's record.
        step: Optimizer steps done (`state.global_step`).
        epoch: Fractional epoch, None where the trainer has none.
        time_s: Wall clock, seconds since 1970.
        values: Name to number. A reading that does not exist is absent; never 0, -1 or NaN for it.
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
    """Something worth telling a person.

    Attributes:
        kind: What it is about, e.g. "leak", "oom", "switched_off", "clear".
        step: Optimizer steps done when it was found.
        text: One or more lines for a person.
        data: The same for programs: JSON-able values only.
    """

    kind: str
    step: int
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one collection, clear or trim came to, once the steps after it have shown.

    Attributes:
        step: The optimizer step it belongs to.
        time_s: Seconds inside the call.
        next_step_excess_s: Seconds that the next step took longer than usual; negative when it was quicker.
        freed_bytes: Given back by the call.
        retaken_bytes: Of these, allocated again within three steps.
    """

    step: int
    time_s: float
    next_step_excess_s: float
    freed_bytes: float
    retaken_bytes: float


class RunInfo(Protocol):
    """What a probe, an action or a sink gets to know of the training it serves."""

    @property
    def folder(self) -> Path | None:
        """Where files of this run go (`<output_dir>/forgather_mem/<time>`), None when there is no place.
        It is not created until somebody writes."""

    @property
    def output_dir(self) -> Path | None:
        """The trainer's `args.output_dir`."""

    @property
    def rank(self) -> int:
        """This process's number among `world_size` processes."""

    @property
    def world_size(self) -> int:
        """How many processes train together."""

    @property
    def device(self) -> int | None:
        """Index of this process's accelerator, None without one."""

    @property
    def phase(self) -> str:
        """The phase the training is in now, one of `metrics.PHASES`; "other" when no link tells."""

    @property
    def step(self) -> int:
        """Optimizer steps done."""

    def watch_phases(self, watcher: PhaseWatcher) -> None:
        """From now on call `watcher` at every change of phase, until the run ends."""

    def outcome(self, what: str) -> Outcome | None:
        """What the last "collect", "clear" or "trim" came to; None before one is known."""

    def tell(self, finding: Finding) -> None:
        """Hand a finding to the sinks and the report."""

    def say(self, text: str) -> None:
        """Print a line for a person, through the console sink: rank 0 only, beside the progress bar."""


class PhaseWatcher(Protocol):
    """Somebody who measures phases: `begin` and `end` come in pairs and nest like the phases do.

    Each step has four phases, `STEP_PHASES`. A watcher is not told of them while its attribute `listens` is False, and
    of their ends where `hears_ends` is False.
    """

    def phase_begin(self, phase: str) -> None: ...

    def phase_end(self, phase: str) -> None: ...


@dataclass(slots=True)
class Moment:
    """One event of a training as it happens; alive, never kept.

    Attributes:
        event: Name without "on_".
        step: Optimizer steps done.
        epoch: Fractional epoch.
        args, state, control: The trainer's own.
        objects: The event's keyword arguments: model, optimizer, train_dataloader, logs, metrics, ...
        run: The training this event belongs to.
    """

    event: str
    step: int
    epoch: float | None
    args: Any
    state: Any
    control: Any
    objects: Mapping[str, Any]
    run: RunInfo


@runtime_checkable
class Work(Protocol):
    """A probe or an action: called when its rule is due, returns what it read or did, by name.

    `sample` holds what this step has read so far, so that an action can look at what a probe before it in
    the list saw. Optional members, looked up once when a run begins:

    - `begin(run: RunInfo)` and `end(run: RunInfo)`: make and drop state, so that one object serves
      several trainings. `end` is called on every way out, also after an exception.
    - `reading: Hashable`: two works with an equal `reading` give the same numbers, so that one moment
      calls only the first.
    - `books: str`: "collect", "clear" or "trim"; what it returns is then booked in the ledger.
    - `is_urgent() -> bool`: whether this step must be read, found cheaply: asked in the steps that a rule's budget
      leaves out, so that a peak stands in its own step's record.
    - `names: Sequence[str]`: names (or prefixes ending in "/") of what it can give.
    """

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]: ...


class Sink(Protocol):
    """Somewhere samples go. A sink handles its own I/O errors: it drops, counts and tries again later.

    Optional members: `begin(run)`, `end(run)` as for `Work`; `tell(finding)`; `problems() -> str | None`, a
    sentence for the report ("12 records dropped: disk full") or None.
    """

    def write(self, sample: Sample) -> None:
        """Write one step's record. Called at most a few times a step, from the training thread."""
