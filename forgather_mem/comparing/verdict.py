"""What a comparison says: the part that explains the difference, its phase, and the settings that may be the cause."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from forgather_mem.comparing.causes import Changed, causes_of, changed, decides, settings_of_sides
from forgather_mem.comparing.planned import planned_differences, planned_growth
from forgather_mem.comparing.side import (
    HELD,
    HELD_AT_START,
    JOINED,
    LEAK,
    MODEL_PARTS,
    OTHERS,
    PEAK,
    STARTUP,
    WORKERS,
    Difference,
    Side,
    differences,
)  # fmt: skip
from forgather_mem.comparing.since import curves_of, has_own_curve, step_apart
from forgather_mem.errors import ForgatherMemError
from forgather_mem.telemetry.report import LeakReport

_OUTSIDE = ("evaluate", "save")
_OUTSIDE_OF_PARTS = ("other", HELD)
# A part explains the difference alone from this fraction of it on
_NEARLY_ALL = 0.8
# What freed tensors leave resident is up to so many times as large as a part
_GOES_ALONG = 4.0
# From this on a rise is not made of what the rest has lost
_MOSTLY = 1.5


class NotComparable(ForgatherMemError):
    """Two sides have nothing in common that could be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What explains a difference, most first.

    Attributes:
        part: "activations", "optimizer", "data workers", "leak", ...; a phase outside of the steps by its own name.
        phase: Where it shows; "" where it is in all of them.
        bytes: Its difference.
        causes: The settings that differ and decide about it, most likely first.
        since_step: The step from which on the two are apart; None if it is not known, or from the beginning.
    """

    part: str
    phase: str
    bytes: float
    causes: Sequence[Changed]
    since_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides, and what is known of the difference.

    Attributes:
        place: The memory that is compared: "host", "device", or "plan" where both sides have one.
        planned: Of both plans: the peak, then by phase all tensors and each part; to the byte.
        differences: Of the measured peak and parts.
        grown: The explanations that are sure; empty where nothing is.
        settings, versions: All that differ.
        new_leaks, gone_leaks: Leaks that only one side has.
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
    def joined(self) -> Difference | None:
        """Activations and the rest as one size, where they can't be told apart."""
        return _joined({one.name: one for one in self.differences}, self.settings)

    @property
    def growths(self) -> dict[str, float]:
        """By which fraction of itself each has surely grown: the peaks, the model's parts, and these with what is held.

        Negative for what has surely shrunk; without what can't be told. On the host most of a peak, and much of what is
        held, are libraries, so it can't be the measure of the parts.
        """
        parts = [self._unless_noise(one) for one in self.differences if one.name in MODEL_PARTS]
        held = [one for one in self.differences if one.name == HELD]
        groups = {"planned peak": self.planned[:1], "peak": self.differences[:1], "parts": parts}
        if held:
            groups["parts and held"] = [*parts, *held]
        return {name: _grown_frac(rows) for name, rows in groups.items() if any(one.is_sure for one in rows)}

    @property
    def growth(self) -> float:
        """The largest of `growths`."""
        return max(self.growths.values(), default=0.0)

    @property
    def untold(self) -> list[str]:
        """Why memory of the later side may have grown by more than `growths` say."""
        sides = (self.before, self.after)
        found = [f"{side.name}: {sentence}" for side in sides for run in side.reports for sentence in run.left_out]
        sizes = [size for one in self.differences if one.name in MODEL_PARTS for size in (one.before, one.after)]
        checks = {
            "a peak or a part was not measured": min(self.peak.before, self.peak.after) > 0 <= min(sizes, default=0),
            "only one of them has used a device": self.planned or self.before.place == self.after.place,
            "the later one has no sizes of its model": self.planned
            or self.before.knows_model <= self.after.knows_model,
        }
        return found + [why for why, is_well in checks.items() if not is_well]

    def _unless_noise(self, one: Difference) -> Difference:
        """The same, not sure where it is a rise of resident memory that explains nothing."""
        is_told = not self.planned and any(grown.part == one.name for grown in self.grown)
        return one if one.counted or is_told else replace(one, low=-math.inf, high=math.inf)


def comparison_of(before: Side, after: Side) -> Comparison:
    """The comparison of two sides, on the device if both have used one.

    Raises:
        NotComparable: if one is a plan and the other has none.
    """
    for plan, run in ((before, after), (after, before)):
        if plan.is_plan and run.planned is None:
            raise NotComparable(
                f"{plan.name} is a plan, and {run.name} has none\n  `forgather-mem run --plan` makes one"
            )
    place = before.place if before.place == after.place else "host"
    planned, found = planned_differences(before, after), differences(before, after, place)
    settings = changed(*settings_of_sides(before, after))
    grown = _known_first(list(_grown(before, after, place, found, settings))) if found else []
    if planned:
        grown = _beside_plan(planned, found, grown, settings)
    if grown and found and before.folder is not None and after.folder is not None:
        olds, news = curves_of(before.folder), curves_of(after.folder)
        in_peak = found[0].is_sure
        no_step = {one.name for one in found if one.name == "activations" and one.counted}  # in the first steps only
        grown = [
            replace(one, since_step=step_apart(olds, news, one.part, place, one.bytes))
            if one.part not in no_step and (in_peak or has_own_curve(one.part))
            else one
            for one in grown
        ]
    old, new = before.leak, after.leak
    is_same = old is not None and new is not None and _signature(old) == _signature(new)
    return Comparison(
        before=before,
        after=after,
        place="plan" if planned else place,
        planned=planned,
        differences=found,
        grown=grown,
        settings=settings,
        versions=changed(before.first.run.versions, after.first.run.versions),
        new_leaks=[] if new is None or is_same else [new],
        gone_leaks=[] if old is None or is_same else [old],
    )


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
        "settings": [asdict(one) for one in comparison.settings],
        "versions": [asdict(one) for one in comparison.versions],
        "new_leaks": [asdict(one) for one in comparison.new_leaks],
        "gone_leaks": [asdict(one) for one in comparison.gone_leaks],
    }


def _whole(told: dict[str, object]) -> dict[str, object]:
    """The same with whole bytes."""
    return {name: round(value) if isinstance(value, float) else value for name, value in told.items()}


def _beside_plan(
    planned: Sequence[Difference], found: Sequence[Difference], measured: Sequence[Grown], settings: Sequence[Changed]
) -> list[Grown]:
    """What both plans explain, and of what was measured that which is in no plan."""
    parts = [
        Grown(part=one.name, phase=phase, bytes=one.bytes, causes=causes_of(one.name, settings))
        for one, phase in planned_growth(planned)
    ]
    by_name = {one.name: one for one in found}
    beside = [one for one in measured if one.part in (WORKERS, LEAK, OTHERS)]
    leaked = sum(one.bytes for one in beside if one.part == LEAK)
    beside += (held := list(_held(by_name, leaked, settings)))
    peak = by_name.get(PEAK)
    if peak is not None:
        rest = peak.bytes - planned[0].bytes - leaked - _of_others(by_name) - sum(one.bytes for one in held)
        # What has been freed may stay resident or not
        unsure = peak.high - peak.bytes + sum(abs(one.bytes) for one in parts) / 2
        if abs(rest) > unsure:
            part = next((one.part for one in measured if one.part in _OUTSIDE), "other")
            phase = part if part in _OUTSIDE else _since_startup(by_name, rest)
            beside.append(Grown(part=part, phase=phase, bytes=rest, causes=causes_of(part, settings)))
    larger = [one for one in beside if abs(one.bytes) > abs(planned[0].bytes)]
    return [*larger, *parts, *(one for one in beside if one not in larger)]


def _held(by_name: Mapping[str, Difference], leaked: float, settings: Sequence[Changed]) -> Iterator[Grown]:
    """What stays allocated beside model and optimizer, and is no leak: a second model, copies, caches."""
    one, others = by_name.get(HELD), _of_others(by_name)
    if one is not None and abs(one.bytes - leaked - others) > one.high - one.bytes + abs(leaked) / 4:
        rest, at_start = one.bytes - leaked - others, by_name[HELD_AT_START]
        is_old = at_start.is_sure and (at_start.bytes - others) / rest > _NEARLY_ALL
        yield Grown(part=HELD, phase="startup" if is_old else "", bytes=rest, causes=causes_of("other", settings))


def _of_others(by_name: Mapping[str, Difference]) -> float:
    """By how much the parameters of other models differ, which are in what is held and in the rest."""
    return by_name[OTHERS].bytes if OTHERS in by_name else 0.0


def _grown_frac(rows: Sequence[Difference]) -> float:
    """By which fraction of them together they have surely grown, or shrunk."""
    grown = sum(_surely(one) for one in rows if one.is_sure)
    return grown / (sum(one.before for one in rows) or math.inf)


def _surely(one: Difference) -> float:
    return one.low if one.bytes > 0 else one.high


def _grown(
    before: Side, after: Side, place: str, found: Sequence[Difference], settings: Sequence[Changed]
) -> Iterator[Grown]:
    """The parts that surely differ, and what is left: of evaluations or checkpoints, if the peak is in one."""
    by_name, leaked = {one.name: one for one in found}, _leaked(after) - _leaked(before)
    larger = after if by_name[PEAK].bytes > 0 else before
    peak_phase = larger.peak_phase(place)
    joined, is_outside = _joined(by_name, settings), peak_phase in _OUTSIDE
    for part, size in _parts(by_name, settings):
        if joined is not None and part in ("activations", "other"):
            part, size = peak_phase if is_outside else part, size - leaked
            if abs(size) < joined.high - joined.bytes:
                continue
        phase = _since_startup(by_name, size) if part == "other" else _phase_of(part, peak_phase)
        yield Grown(part=part, phase=phase, bytes=size, causes=causes_of(part, settings))
    if leaked:
        yield Grown(part=LEAK, phase="", bytes=leaked, causes=causes_of(LEAK, settings))
    yield from (held := list(_held(by_name, leaked, settings)))
    name = next((name for name in ("other", JOINED) if name in by_name), PEAK)
    other = by_name[name]
    others = _of_others(by_name)
    rest = other.bytes - leaked - others - sum(one.bytes for one in held)
    is_more = other.is_sure and by_name[PEAK].is_sure and abs(other.bytes) > abs(leaked)
    if is_more and joined is None and (not (held or others) or abs(rest) > other.high - other.bytes):
        phase = peak_phase if is_outside else _since_startup(by_name, rest)
        part = peak_phase if is_outside else name if name == JOINED and not phase else "other"
        if phase or name != PEAK:  # else nothing is known of what the peak consists of
            yield Grown(part=part, phase=phase, bytes=rest, causes=causes_of(part, settings))


def _parts(by_name: Mapping[str, Difference], settings: Sequence[Changed]) -> Iterator[tuple[str, float]]:
    """The parts that surely differ, and by how much, without "other"."""
    joined = _joined(by_name, settings)
    for name, one in by_name.items():
        if name in (PEAK, STARTUP, JOINED, HELD, HELD_AT_START, "other") or not one.is_sure:
            continue
        if name == "activations" and joined is not None:
            is_known = not by_name["other"].is_sure or any(decides(name, setting) for setting in settings)
            yield name if is_known else "other", joined.bytes
        else:
            yield name, one.bytes


def _joined(by_name: Mapping[str, Difference], settings: Sequence[Changed]) -> Difference | None:
    """Activations and the rest as one size, if one gains what the other loses: on the host, where what tensors have
    freed stays resident, the two can't be told apart once another part differs, nor in equal runs."""
    rest, rise = by_name.get("other"), by_name.get("activations")
    # Less than a MiB is not what activations have lost
    if (
        rest is None
        or rise is None
        or rise.counted
        or not rise.is_sure
        or rest.bytes * math.copysign(1, rise.bytes) > -(2**20)
    ):
        return None
    old, new = rise.before + rest.before, rise.after + rest.after
    unsure = max(rise.high - rise.bytes, rest.high - rest.bytes, abs(rise.bytes) / 2)
    if abs(rise.bytes) > _MOSTLY * abs(rest.bytes) and any(decides("activations", setting) for setting in settings):
        unsure = rise.high - rise.bytes  # a setting says the same
    return Difference(JOINED, old, new, new - old - unsure, new - old + unsure)


def _known_first(grown: list[Grown]) -> list[Grown]:
    """The largest first; what is outside of all parts follows parts that are not small beside it: it goes along.

    So it does with parts that one setting has made differ, which are taken together.
    """
    sizes = [(one, abs(one.bytes)) for one in grown if one.part not in _OUTSIDE_OF_PARTS]
    known = sum(size for one, size in sizes if any(decides(one.part, cause) for cause in one.causes))
    most = max((size for _, size in sizes), default=0.0)

    def size(one: Grown) -> float:
        goes_along = one.part in _OUTSIDE_OF_PARTS and abs(one.bytes) < _GOES_ALONG * max(most, known)
        return 0.0 if goes_along else abs(one.bytes)

    return sorted(grown, key=size, reverse=True)


def _leaked(side: Side) -> float:
    leak = side.leak
    return 0.0 if leak is None else leak.bytes_per_step * max(0, side.steps - leak.since_step)


def _phase_of(part: str, peak_phase: str) -> str:
    """The phase in which a part is largest."""
    if part == "activations":
        return "forward" if peak_phase == "forward" else "backward"
    known = {"gradients": "backward", "optimizer": "optimizer", OTHERS: "startup", peak_phase: peak_phase}
    return known.get(part, "")


def _since_startup(by_name: Mapping[str, Difference], wanted: float) -> str:
    """Startup, if most of that is there already before the first step."""
    one = by_name.get(STARTUP)
    return "startup" if one is not None and one.is_sure and one.bytes / wanted > 1 - _NEARLY_ALL / 2 else ""


def _signature(leak: LeakReport) -> tuple[str | None, ...]:
    return tuple(suspect.signature or suspect.held_by for suspect in leak.suspects[:1]) or (leak.where,)
