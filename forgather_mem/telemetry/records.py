"""The values passed between engine, probes, actions and sinks: samples, findings, moments.

`Sample` and `Finding` are plain data: safe to keep, to queue, to write, to pickle. A `Moment` holds live objects (the
trainer's) and is valid during the call only: never keep one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from forgather_mem.telemetry.protocols import RunInfo

FORETOLD = "foretold"  # `what` of the findings that tell early what would fail late
# A peak deserves its own step's record if it is this many times the last.
RISEN = 1.01
# Fraction of a run's time for our readings; above it the expensive ones are taken less often, as the report says.
OWN_BUDGET_FRAC = 0.005

JsonData = Mapping[str, Any]
Objects = Mapping[str, Any]  # the keyword arguments of an event: model, optimizer, logs, ...


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
