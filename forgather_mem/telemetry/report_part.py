"""What the parts of a report have in common, and the header that says whose report it will be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated

from forgather_mem.telemetry.bounds import MOST

# A key that came later: a file may lack it. A rare one is written only where it is not its default.
ADDED = {"added": True}
RARE = {"added": True, "rare": True}

# A number with its least and most: an int without them is a size or a count, so not below 0; a float may be any rate
Rank = Annotated[int, 0, 2**17]
Signed = Annotated[int, -MOST, MOST]
Amount = Annotated[float, 0, MOST]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReportPart:
    """A class that `report_schema` reads and writes: its fields are the keys.

    What each would have of its own, made when it is imported, is here for all: 9 ms of each process.
    """

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, one.name) for one in fields(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReportPart) and type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        told = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))
        return f"{type(self).__qualname__}({told})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunHeader(ReportPart):
    """What is known of a process and its training before it ends: in its log, its black box, and its report.

    Attributes:
        host: The machine's name.
        worker: What tells it from other workers of one script that are no ranks; "" in a process that is none.
        process: The start of the process, see `system.process_start`.
        started_s: When the training began.
        limit_bytes, limit_kind: The limit of host memory that applied when it began.
        step: Optimizer steps done when it began.
        started_with: Sizes before the first step, by sample names.
        kills: The kernel's counter of out-of-memory kills then, see `system.cgroups.kill_counter`.
        process_started_s: When the process began.
        startup: What was seen of it before its training: pairs (seconds since its start, resident bytes).
        folder, event_folder: Of its files, and of its TensorBoard files.
        micro_batches: Number of micro-batches per step, whose gradients are summed.
        is_observed: Whether its loop knows nothing of us: its first step is heard from the optimizer on.
        counts_passes: Whether its steps are backward passes, because no optimizer was heard.
        tick_s: What counts as a step in a process that tells of none, in seconds; 0 in all others.
        setup_s, setup_bytes: What preparing to watch has taken, see `system.time_budget.Preparation`.
        plan: What a plan said of this training, as plain values; None without one.
    """

    rank: Rank = field(default=0, metadata=ADDED)
    world_size: Rank = field(default=1, metadata=ADDED)
    pid: int | None = field(default=None, metadata=ADDED)
    host: str = field(default="", metadata=ADDED)
    worker: str = field(default="", metadata=ADDED)
    process: str = field(default="", metadata=ADDED)
    script: str = field(default="", metadata=ADDED)
    argv: tuple[str, ...] = field(default=(), metadata=ADDED)
    versions: Mapping[str, str] = field(default_factory=dict, metadata=ADDED)
    started_s: Amount = field(default=0.0, metadata=ADDED)
    limit_bytes: int = field(default=0, metadata=ADDED)
    limit_kind: str = field(default="host", metadata=ADDED)
    step: int = field(default=0, metadata=ADDED)
    started_with: Mapping[str, float] = field(default_factory=dict, metadata=ADDED)
    kills: Mapping[str, object] | None = field(default=None, metadata=ADDED)
    process_started_s: Amount = field(default=0.0, metadata=ADDED)
    startup: tuple[tuple[float, float], ...] = field(default=(), metadata=ADDED)
    folder: str | None = field(default=None, metadata=ADDED)
    event_folder: str | None = field(default=None, metadata=ADDED)
    micro_batches: int = field(default=1, metadata=ADDED)
    is_observed: bool = field(default=False, metadata=ADDED)
    counts_passes: bool = field(default=False, metadata=ADDED)
    tick_s: Amount = field(default=0.0, metadata=ADDED)
    setup_s: Amount = field(default=0.0, metadata=ADDED)
    setup_bytes: int = field(default=0, metadata=ADDED)
    plan: Mapping[str, object] | None = field(default=None, metadata=ADDED)

    def plain(self) -> dict[str, object]:
        """What is known as values that JSON has."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in known.items() if value not in (None, ())}
