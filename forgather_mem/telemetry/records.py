"""The values passed between engine, probes, actions and sinks: samples, findings, moments.

`Sample` and `Finding` are plain data: safe to keep, to queue, to write, to pickle. A `Moment` holds live objects (the
trainer's) and is valid during the call only: never keep one.
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
# The phases of every step.
STEP_PHASES = frozenset({"data", "forward", "backward", "optimizer"})
# A peak deserves its own step's record if it is this many times the last.
RISEN = 1.01
# Fraction of a run's time for our readings; above it the expensive ones are taken less often, as the report says.
OWN_BUDGET_FRAC = 0.005


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
    data: Mapping[str, Any] = field(default_factory=dict)


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


class RunInfo(Protocol):
    """What a probe, an action or a sink can learn about its training."""

    @property
    def folder(self) -> Path | None:
        """The folder for this run's files (`<output_dir>/forgather_mem/<time>`); None if there is none. It is created
        at the first write."""

    @property
    def output_dir(self) -> Path | None:
        """The trainer's `args.output_dir`."""

    @property
    def rank(self) -> int:
        """This process's rank among `world_size` processes."""

    @property
    def world_size(self) -> int:
        """The number of processes in the training."""

    @property
    def device(self) -> int | None:
        """Index of this process's accelerator, None without one."""

    @property
    def phase(self) -> str:
        """The current phase, one of `metrics.PHASES`; "other" without a link."""

    @property
    def step(self) -> int:
        """Optimizer steps done."""

    def watch_phases(self, watcher: PhaseWatcher) -> None:
        """From now until the run ends, call `watcher` at every change of phase."""

    def outcome(self, what: str) -> Outcome | None:
        """The outcome of the last "collect", "clear" or "trim"; None before one is known."""

    def tell(self, finding: Finding) -> None:
        """Pass a finding to the sinks and the report."""

    def say(self, text: str) -> None:
        """Print a line for people, through the console sink: rank 0 only, without disturbing the progress bar."""


class PhaseWatcher(Protocol):
    """A watcher of phases: `begin` and `end` come in pairs and nest like the phases.

    Each step has four phases, `STEP_PHASES`. A watcher is not notified of them while its attribute `listens` is False,
    nor of their ends if `hears_ends` is False.
    """

    def phase_begin(self, phase: str) -> None: ...

    def phase_end(self, phase: str) -> None: ...


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
    objects: Mapping[str, Any]
    run: RunInfo


@runtime_checkable
class Work(Protocol):
    """A probe or an action: called when its rule is due, returns what it read or did, by name.

    `sample` holds the readings of this step so far, so that an action can use what a probe before it in the list has
    read. Optional members, looked up once when a run begins:

    - `begin(run: RunInfo)` and `end(run: RunInfo)`: create and drop state, so that one object serves
      several trainings. `end` is called on every way out, also after an exception.
    - `give_back()`: puts back what `begin` or a call has changed in the process, and lets go of what was opened. Called
      after `end`, also when that has failed; idempotent.
    - `reading: Hashable`: two works with an equal `reading` return the same numbers, so that one moment
      calls only the first.
    - `books: str`: "collect", "clear" or "trim"; what it returns is then recorded in the ledger.
    - `is_urgent() -> bool`: whether this step must be read, found cheaply: called in steps that a rule's budget
      skips, so that a peak is in its own step's record.
    """

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]: ...


class Sink(Protocol):
    """A destination of samples. A sink handles its own I/O errors: it drops, counts and retries later.

    Optional members: `begin(run)`, `end(run)` as for `Work`; `tell(finding)`; `problems() -> str | None`, a
    sentence for the report ("12 records dropped: disk full") or None; `log_values(step)`, numbers by name for the
    trainer's own log line. What fails in any of them is logged once and ends no training.
    """

    def write(self, sample: Sample) -> None:
        """Write one step's record. Called at most a few times per step, from the training thread."""
