"""What a comparison says: the parts that surely differ, and with plans their phases; nothing is guessed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from forgather_mem.comparing.causes import Changed, causes_of, changed, leading, settings_of_sides
from forgather_mem.comparing.side import HELD, LEAK, OTHERS, PLANNED, WORKERS, Difference, Side, differences
from forgather_mem.errors import ForgatherMemError
from forgather_mem.telemetry.report import LeakReport

# A part is told from this fraction of what differs most
_TOLD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What explains a difference, most first.

    Attributes:
        part: "activations", "optimizer", "data workers", "leak", ...
        holder: What holds a leak, or the line that makes it, as the run's verdict says; "" for none.
        phase: Where it shows; "" where it is in all of them, or there are no plans.
        bytes: Its difference.
        causes: The settings that differ and decide about it, most likely first.
    """

    part: str
    phase: str
    bytes: float
    causes: Sequence[Changed]
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides, and what is known of the difference.

    Attributes:
        place: The memory that is compared: "host", "device", or "plan" where both sides have one.
        planned: Of both plans: the peak, then by phase all tensors and each part; to the byte.
        differences: Of the measured peak and parts.
        grown: The explanations that are sure; empty where nothing is.
        settings, versions: All that differ.
        new_leaks, gone_leaks: Leaks that only one side has, where both were judged.
    """

    before: Side
    after: Side
    place: str
    planned: Sequence[Difference]
    differences: Sequence[Difference]
    grown: Sequence[Grown]
    settings: Sequence[Changed]
    versions: Sequence[Changed]
    new_leaks: Sequence[LeakReport]
    gone_leaks: Sequence[LeakReport]

    @property
    def peak(self) -> Difference:
        """The difference of the peaks: planned ones, if there are, since these are exact."""
        return self.planned[0] if self.planned else self.differences[0]

    @property
    def growths(self) -> dict[str, float]:
        """By which fraction of itself each has surely grown: the peaks, the model's parts, and these with what is held.

        Negative for what has surely shrunk; without what can't be told. On the host most of a peak, and much of what is
        held, are libraries, so it can't be the measure of the parts.
        """
        parts = [one for one in self.differences if one.is_of_model]
        held = [*parts, *(one for one in self.differences if one.name in (HELD, OTHERS))]
        peaks = {"planned peak": self.planned[:1], "peak": self.differences[:1]}
        groups = {**peaks, "parts": parts, "parts and held": held}
        return {name: _grown_frac(rows) for name, rows in groups.items() if any(one.is_sure for one in rows)}

    @property
    def growth(self) -> float:
        """The largest of `growths`."""
        return max(self.growths.values(), default=0.0)

    @property
    def not_compared(self) -> list[str]:
        """Why memory of the later side may have grown by more than `growths` say."""
        sides = (self.before, self.after)
        found = [f"{side.name}: {sentence}" for side in sides for run in side.reports for sentence in run.left_out]
        sizes = [size for one in self.differences if one.is_of_model for size in (one.before, one.after)]
        checks = {
            "a peak or a part was not measured": min(self.peak.before, self.peak.after) > 0 <= min(sizes, default=0),
            "only one of them has used a device": self.planned or self.before.place == self.after.place,
            "the later one has no sizes of its model": self.planned
            or self.before.knows_model <= self.after.knows_model,
        }
        return found + [why for why, is_well in checks.items() if not is_well]


def comparison_of(before: Side, after: Side) -> Comparison:
    """The comparison of two sides, on the device if both have used one.

    Raises:
        ForgatherMemError: if one is a plan and the other has none.
    """
    for plan, run in ((before, after), (after, before)):
        if plan.is_plan and run.planned is None:
            name = f"{run.name} ({run.first.run.script})" if run.first.run.script else run.name
            why = f"of {plan.name} the plan is compared, and {name} has none"
            raise ForgatherMemError(f"{why}\n  `forgather-mem run --plan` makes one of a Trainer's training")
    place = before.place if before.place == after.place else "host"
    planned, found = planned_differences(before, after), differences(before, after, place)
    settings = changed(*settings_of_sides(before, after))
    measured = _measured(before, after, found, settings)
    # A leak stands first, since it goes on; what is only resident last; of others the larger first
    grown = sorted(measured, key=lambda one: (one.part != LEAK, one.part == WORKERS, -abs(one.bytes)))
    if planned:
        grown = _with_plan(planned, grown, settings)
    old, new, is_same = before.leak, after.leak, _are_alike(before, after)
    return Comparison(
        before=before, after=after, place="plan" if planned else place, planned=planned, differences=found,
        grown=grown, settings=settings, versions=changed(before.first.run.versions, after.first.run.versions),
        new_leaks=[] if new is None or is_same else [new], gone_leaks=[] if old is None or is_same else [old],
    )  # fmt: skip


def to_json(comparison: Comparison) -> dict[str, object]:
    """All numbers of it, in bytes, for JSON."""
    return {
        "schema": 1,
        "before": comparison.before.name,
        "after": comparison.after.name,
        "place": comparison.place,
        "growth": comparison.growth,
        "growths": comparison.growths,
        "explained_by": [_whole(asdict(one)) for one in comparison.grown],
        "planned": [_whole(asdict(one)) for one in comparison.planned],
        "differences": [{**_whole(asdict(one)), "sure": one.is_sure} for one in comparison.differences],
        **{
            name: list(map(asdict, getattr(comparison, name)))
            for name in ("settings", "versions", "new_leaks", "gone_leaks")
        },
    }


def _whole(told: dict[str, object]) -> dict[str, object]:
    """The same with whole bytes."""
    return {name: round(value) if isinstance(value, float) else value for name, value in told.items()}


def _measured(before: Side, after: Side, found: Sequence[Difference], settings: Sequence[Changed]) -> Iterator[Grown]:
    """What was counted and surely differs. Of resident memory nobody can tell what it is."""
    sizes = {one.name: one.bytes for one in found if one.is_sure and (one.counted or one.name == WORKERS)}
    # A leak is in what is held, of which an estimate tells nothing beside it that is little
    held, leaked, leak = sizes.pop(HELD, 0.0), _leaked(after) - _leaked(before), after.leak or before.leak
    is_all = 0.8 <= held / (leaked or math.inf) <= 1.25  # nearly
    if leaked and before.is_judged and after.is_judged and (is_all or not _are_alike(before, after)):
        sizes[LEAK] = leaked
        held = 0.0 if is_all or abs(held) <= abs(leaked) else held - leaked
    if held:
        sizes[HELD] = held
    holder = next((one.held_by or one.allocated_at or "" for one in leak.suspects), "") if leak is not None else ""
    for part, size in sizes.items():
        causes = causes_of(part, settings, size)
        yield Grown(part=part, phase="", bytes=size, causes=causes, holder=holder if part == LEAK else "")


def _with_plan(planned: Sequence[Difference], measured: Sequence[Grown], settings: Sequence[Changed]) -> list[Grown]:
    """What both plans explain, and of what was measured that which is in no plan: the larger ones first.

    What nothing else explains the only setting that differs does, an argument of a Trainer, which tells its model, too.
    """
    differ = leading([one for one in settings if one.comparable])
    only = differ if len(differ) == 1 and differ[0].name.startswith("arguments.") else []
    parts = [
        Grown(part=one.name, phase=phase, bytes=one.bytes, causes=causes_of(one.name, settings, one.bytes) or only)
        for one, phase in planned_growth(planned)
    ]
    beside = [one for one in measured if one.part in (HELD, LEAK, OTHERS, WORKERS)]
    larger = [one for one in beside if abs(one.bytes) > abs(planned[0].bytes) and one.part != WORKERS]
    return [*larger, *parts, *(one for one in beside if one not in larger)]


def _grown_frac(rows: Sequence[Difference]) -> float:
    """By which fraction of them together they have surely grown, or shrunk."""
    grown = sum(one.low if one.bytes > 0 else one.high for one in rows if one.is_sure)
    return grown / (sum(one.before for one in rows) or math.inf)


def _leaked(side: Side) -> float:
    leak = side.leak
    return 0.0 if leak is None else leak.bytes_per_step * max(0, 1 + side.steps - leak.since_step)


def _are_alike(before: Side, after: Side) -> bool:
    """Whether both sides have a leak, and it is the same one; or one has no verdict, which is not "no leak"."""
    leaks = [leak for leak in (before.leak, after.leak) if leak is not None]
    keys = {next((one.signature or one.held_by for one in leak.suspects), leak.where) for leak in leaks}
    return not (before.is_judged and after.is_judged) or (len(leaks) == 2 and len(keys) == 1)


def planned_differences(before: Side, after: Side) -> list[Difference]:
    """The planned peak, then all tensors and each part of them by phase; nothing where one side has no plan."""
    old, new = before.planned, after.planned
    if old is None or new is None:
        return []
    higher = old if old.planned_bytes >= new.planned_bytes else new
    found = [_exact(PLANNED, old.planned_bytes, new.planned_bytes, higher.phase)]
    rows = [{row.phase: row for row in plan.phases} for plan in (old, new)]
    for phase in dict.fromkeys([*rows[0], *rows[1]]):
        sizes = [{} if phase not in side else {PLANNED: side[phase].bytes, **side[phase].parts} for side in rows]
        names = dict.fromkeys([*sizes[0], *sizes[1]])
        found += [_exact(name, sizes[0].get(name, 0), sizes[1].get(name, 0), phase) for name in names]
    return found


def planned_growth(found: Sequence[Difference]) -> Iterator[tuple[Difference, str]]:
    """The parts that differ, and the phase of each, "" where it is all of them.

    Those in the phase of the higher peak come first; then what differs in other phases alone.
    """
    peak, *rows = found
    at_peak = [row for row in rows if row.phase == peak.phase and row.name != PLANNED]
    most = {row.name: row for row in sorted(rows, key=_size)}
    first = [row for row in at_peak if _size(row) >= _TOLD * max(map(_size, at_peak)) > 0]
    told, least = {PLANNED, *(row.name for row in first)}, _TOLD * max(map(_size, rows))
    others = [row for row in most.values() if row.name not in told and row.is_sure and _size(row) >= least]
    phases = {row.phase for row in rows}
    for one in (*sorted(first, key=_size, reverse=True), *sorted(others, key=_size, reverse=True)):
        its = {row.phase for row in rows if row.name == one.name and row.bytes == one.bytes}
        yield one, "" if its == phases else one.phase


def _exact(name: str, before: int, after: int, phase: str) -> Difference:
    return Difference(name, before, after, after - before, after - before, phase, counted=True)


def _size(one: Difference) -> float:
    return abs(one.bytes)
