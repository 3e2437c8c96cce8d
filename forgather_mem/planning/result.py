"""The plan of a training: its peak in bytes, by phase and part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from forgather_mem.planning.batches import PlannedShape
from forgather_mem.planning.card import reserved_by_allocator
from forgather_mem.planning.loop.notes import Bound, Note, bound_of_notes
from forgather_mem.planning.model import KEPT, OTHER_MODELS, OTHER_TENSORS
from forgather_mem.planning.storage_log import COPIES, EVALUATED, OTHER_GRAPHS, StorageLog, Trace
from forgather_mem.telemetry.beside import Beside
from forgather_mem.units import format_bytes

PARTS = (
    "parameters", "gradients", "optimizer", "activations", OTHER_GRAPHS, EVALUATED, "batch", OTHER_MODELS,
    OTHER_TENSORS, KEPT, COPIES, "results", "callbacks", "temporaries",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """The peak of one phase of one step.

    Attributes:
        step: 1 or 2: the first has no state of the optimizer until its end.
        phase: "data", "forward", "backward", "optimizer"; after the second step "evaluate", where it will.
        bytes: Size of all tensors at that moment.
        parts: The same by what they are for; those of `PARTS` with a size.
    """

    step: int
    phase: str
    bytes: int
    parts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan:
    """What two steps of a training take. `print` it to read it.

    Attributes:
        peak_bytes: The most that tensors take at once.
        phase: When.
        step: In which step, 1 or 2.
        rows: Of a batch, if it has rows.
        length: Of its rows, if they have one.
        joined: How many rows of the data set a collator joins into one; 0 if it does not.
        accumulation: Batches in a step.
        passes: Backward passes in a step.
        reserved_bytes: What torch's allocator would have reserved of a device in the end, by a simulation.
        host_bytes: In a plan for a device, the most that is on the host: data, and what an evaluation gathers.
        phases: The peaks of all phases, in order.
        notes: What was planned otherwise than it will be.
        evaluation: The batch of an evaluation in which the peak is.
        trace: What the plan was made of.
        all_rows: Of the data set, as far as a loop's loader knows it.
        untrained: The models whose graphs no optimizer needs, as people write them.
    """

    peak_bytes: int
    phase: str
    step: int
    rows: int | None = None
    length: int | None = None
    joined: int = 0
    accumulation: int = 1
    passes: int = 1
    reserved_bytes: int
    host_bytes: int = 0
    phases: tuple[PhasePlan, ...]
    notes: tuple[str, ...] = ()
    evaluation: PlannedShape = field(default=PlannedShape(), compare=False)
    trace: Trace = field(default=Trace(), compare=False)
    all_rows: int = field(default=0, compare=False)
    untrained: tuple[str, ...] = field(default=(), compare=False)

    @property
    def bound(self) -> Bound:
        """Whether the peak is exact; "at least" where something is not planned, "at most" where less may be enough."""
        return bound_of_notes(self.notes)

    @property
    def lengths_differ(self) -> bool:
        """Whether other batches take less than those that were planned."""
        return any(isinstance(note, Note) and note.lengths_differ for note in self.notes)

    @property
    def parts(self) -> dict[str, int]:
        """What the peak consists of."""
        return next(row.parts for row in self.phases if (row.step, row.phase) == (self.step, self.phase))

    def highest_parts(self) -> dict[str, int]:
        """Each part at its own peak."""
        return {part: max(row.parts.get(part, 0) for row in self.phases) for part in PARTS}

    def with_notes(self, notes: Iterable[str]) -> Plan:
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def text(self) -> str:
        """The plan for people."""
        bound = "" if self.bound == "exact" else f"{self.bound} "
        batch = f", batch {self.shape()}" if self.shape() else ""
        at = "the first step" if self.step == 1 else "a later step"
        first = f"Peak {bound}{format_bytes(self.peak_bytes)} of tensors, {self.phase}, {at}{batch}."
        rows, width = sorted(self.parts.items(), key=lambda row: -row[1]), max([12, *map(len, self.parts)])
        bars = ["#" * round(40 * size / max(1, self.peak_bytes)) for _, size in rows]
        told = zip(rows, bars, strict=True)
        parts = [f"  {name:<{width}} {format_bytes(size):>11}  {bar}".rstrip() for (name, size), bar in told]
        host = [f"On the host there are {format_bytes(self.host_bytes)}."] * (2 * self.host_bytes > self.peak_bytes)
        return "\n".join([first, *parts, *self.notes, *host])

    def shape(self) -> str:
        """The batch in words: "8 x 512, 2 batches a step"; empty if it is not known."""
        of, each = (self.evaluation, 1) if self.evaluation.rows else (self, self.accumulation)
        size = " x ".join(f"{number:,}" for number in (of.rows, of.length) if number is not None)
        size += f" of {of.joined:,} rows" if of.joined > 1 else ""
        return size + (f", {each} batches a step" if size and each > 1 else "")

    def to_dict(self) -> dict[str, object]:
        """The same as plain values, for JSON."""
        plain = asdict(replace(self, trace=Trace()))
        del plain["trace"], plain["all_rows"], plain["untrained"], plain["evaluation"]
        lists = {name: list(plain[name]) for name in ("phases", "notes")}
        return {**plain, "bound": self.bound, "lengths_differ": self.lengths_differ, **lists}

    __repr__ = text  # also as the value of a notebook's cell


# The last plan of each trainer alive, of its own arguments: a report is made far from where somebody has planned
PLANS = Beside[Plan]()


def plan_of_log(log: StorageLog, shapes: Sequence[PlannedShape], notes: Iterable[str], host: StorageLog | None) -> Plan:
    """The plan that two logged steps come to, with the first of these batches where the log has none.

    `host` has what goes to the host.
    """
    log.close()
    found = list(_phase_peaks(log))
    highest, batch = max(found, key=lambda row: row[0].bytes)
    batch, evaluation = (PlannedShape(), batch) if highest.phase == "evaluate" else (batch, PlannedShape())
    return Plan(
        peak_bytes=highest.bytes, phase=highest.phase, step=highest.step,
        **next((one for one in (batch, *(shapes if highest.phase != "data" else ())) if one.rows), batch)._asdict(),
        reserved_bytes=reserved_by_allocator(log.events, log.sizes) or 0,
        host_bytes=max((row.bytes for row, _ in _phase_peaks(host)), default=0) if host is not None else 0,
        phases=tuple(row for row, _ in found), notes=tuple(notes), evaluation=evaluation, trace=log.trace.lasting(),
    )  # fmt: skip


def _phase_peaks(log: StorageLog) -> Iterator[tuple[PhasePlan, PlannedShape]]:
    """For each phase of each step its highest moment, and its batch; one that comes again counts once."""
    part_of = [PARTS.index(log.name_of(number)) for number in range(len(log.sizes))]
    now, total = [0] * len(PARTS), 0
    found: dict[tuple[int, str], tuple[int, list[int], PlannedShape]] = {}
    for (_, step, phase, batch), events in log.trace.by_stretch():
        most = found.get((step, phase), (-1,))[0]
        for event in (None, *events):  # as it begins, and after each
            if event is not None:
                number = max(event, ~event)
                size = log.sizes[number] if event >= 0 else -log.sizes[number]
                now[part_of[number]] += size
                total += size
            if total > most:
                most = total
                found[step, phase] = most, now[:], batch
    for (step, phase), (most, best, of) in found.items():
        if step:  # else it is not planned
            parts = {name: size for name, size in zip(PARTS, best, strict=True) if size}
            yield PhasePlan(step=step, phase=phase, bytes=most, parts=parts), of
