"""What memory consisted of at each row of the readings: parts that add up to what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from forgather_mem.page.readings import BETWEEN, Column, Flags, Readings, filled
from forgather_mem.reporting.problems import what_grows
from forgather_mem.reporting.table import MAX_DEVICES, OTHER, RISE, format_phase, format_place
from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.report import PYTHON, THERE_BEFORE, DeviceMemory, LeakReport, Peak, RunReport
from forgather_mem.units import format_bytes

OOM = "oom"  # the event of the row that stands for the failure itself
_LABELS = {
    "python": THERE_BEFORE, "mapped": "mapped files", "shared": "shared memory", "parameters": "weights",
    "optimizer": "optimizer", "other": "other", "workers": "data workers", "children": "other children",
    "gradients": "gradients", "activations": "activations", "cached": "cached", "wanted": "wanted, not there",
}  # fmt: skip
_VARIABLE = re.compile(r"(?:local ')?(?:__main__\.)?([\w.]*).*", re.S)

Part = tuple[str, str, Column]  # key, label, sizes


@dataclass(frozen=True, slots=True)
class StackThresholds:
    """How what was read becomes a picture.

    Attributes:
        most_holders: Of a leak, each with a part of its own.
        most_others: Of what is only known when memory ran out, each with a colour of its own, the largest first.
        higher_times: Of the lowest phase's peak: the others are told apart above it.
    """

    most_holders: int = 3
    most_others: int = 6
    higher_times: float = 1.02


_STACKS = StackThresholds()


@dataclass(slots=True)
class Stack:
    """One kind of memory over the rows.

    Attributes:
        place: "host" or "gpu{i}", as in `Peak.where`.
        parts: From the lowest to the highest: key, which decides about the colour; label; bytes.
        limit, planned: A size and what it is.
        peak: The highest of the run.
        reason: What the peak was made of, compared with the first row.
        phases, labels: The peaks of each phase, and what it is called where that is not its name.
    """

    place: str
    parts: list[Part]
    limit: tuple[int, str] | None = None
    planned: tuple[float, str] | None = None
    peak: Peak | None = None
    reason: str = ""
    phases: dict[str, Column] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> Column:
        whole: Column = np.sum([size for _, _, size in self.parts], axis=0)
        return whole


def stacks(report: RunReport, readings: Readings, rank: int) -> Iterator[Stack]:
    """Each device of this rank on which it held memory, then the host; what was not read is left out."""
    devices = [row for row in report.device if row.rank in (None, rank)][:MAX_DEVICES]
    for device in devices:
        family = f"device{device.index}"
        if readings.column(f"{family}/allocated_bytes") is None:  # the current one
            family = "device"
        held = readings.held(f"{family}/allocated_bytes")
        if held is not None:
            whole, grows = len(devices) == 1, device is devices[0]
            yield _finished(_of_device(report, readings, device, family, held, whole, grows), report, readings, rank)
    resident = readings.held("host/rss_bytes")
    if resident is not None:
        yield _finished(_of_host(report, readings, resident, bool(devices), rank), report, readings, rank)


def _of_device(
    report: RunReport, readings: Readings, device: DeviceMemory, family: str, held: Column, whole: bool, grows: bool
) -> Stack:
    """The stack of a device.

    Args:
        held: What tensors take.
        whole: Whether all of the model is on it: its parts are counted over all devices.
        grows: Whether it has what leaks.
    """
    reserved = readings.held(f"{family}/reserved_bytes")
    high, rest = readings.held(f"{family}/step_peak_bytes"), held.copy()
    parts: list[Part] = []
    if whole:
        parts += _of_the_model(readings, rest)
    if grows:
        parts += _leaking(report, readings, rest, ("device",))
    passing = _passing(readings, family, held, high)
    parts += [("other", "other tensors", rest), *_passes(readings, passing, whole, _LABELS["activations"])]
    if reserved is not None:
        parts.append(("cached", "cached", np.maximum(0, reserved - held - passing.rises)))
    limit = (device.total_bytes, f"all of {format_place(device.where)}") if device.total_bytes else None
    made = Stack(device.where, parts, limit, phases=passing.phases)
    if whole and report.planned is not None and report.planned.planned_bytes:
        made.planned = report.planned.planned_bytes, "planned peak"
    return made


def _of_host(report: RunReport, readings: Readings, resident: Column, has_device: bool, rank: int) -> Stack:
    high, nothing = readings.held("host/rss_peak_bytes"), np.zeros(len(resident))
    shared = np.minimum(_or(readings.held("host/shmem_bytes"), nothing), resident)
    anonymous = np.minimum(_or(readings.held("host/anon_bytes"), resident - shared), resident - shared)
    rest = anonymous.copy()
    model = [] if has_device else list(_of_the_model(readings, rest))
    before = anonymous[:1].max(initial=0.0)
    if report.host.rss_start_bytes and report.host.rank in (None, rank):
        before = max(0.0, report.host.rss_start_bytes - float((resident - anonymous)[:1].max(initial=0.0)))
    before -= sum(float(size[:1].max(initial=0.0)) for key, _, size in model if key == "parameters")
    python = np.minimum(rest, max(0.0, before))
    rest -= python
    leaking = _leaking(report, readings, rest, ("python", "tensors", "native", "host"))
    mapped = resident - anonymous - shared
    shared_leak = _leaking(report, readings, shared, ("shared",))
    passing = _passing(readings, "host", resident, high)
    passes = list(_passes(readings, passing, not has_device, RISE))
    counted = None if has_device else readings.held("tensors/activations_bytes")
    if counted is not None:  # as in the report's parts: freed memory stays resident, and is no rise
        rest += sum(size for key, _, size in passes if key == "activations")
        passes = [part for part in passes if part[0] != "activations"]
        passes.append(("activations", _LABELS["activations"], _take(counted, rest)))
    parts = [("python", _LABELS["python"], python), ("mapped", _LABELS["mapped"], mapped)]
    parts += [*model, ("other", OTHER, rest), ("shared", _LABELS["shared"], shared)]
    parts += [*shared_leak, *leaking, *passes]
    workers = readings.held("workers/pss_bytes")
    if workers is None and report.leak.where == "workers":  # not read, but judged
        parts += _leaking(report, readings, np.full(len(resident), np.inf), ("workers",))
    elif workers is not None:
        parts += [*_leaking(report, readings, workers, ("workers",)), ("workers", _LABELS["workers"], workers)]
    children = readings.held("host/other_children_pss_bytes")
    if children is not None:
        parts.append(("children", _LABELS["children"], children))
    whose = {"cgroup": "container's limit", "host": "machine's memory"}.get(report.host.limit_kind)
    limit = (report.host.limit_bytes, whose) if report.host.limit_bytes and whose else None  # others count addresses
    made = Stack("host", parts, limit, phases=passing.phases)
    if not has_device and report.planned is not None and report.planned.planned_bytes:
        below = float(python[0] + mapped[0])
        made.planned = below + report.planned.planned_bytes, f"planned peak, above what was {THERE_BEFORE}"
    return made


def _of_the_model(readings: Readings, rest: Column) -> Iterator[Part]:
    """Weights and the optimizer's state, taken out of the rest."""
    buffers = _or(readings.held("tensors/buffers_bytes"), np.zeros(len(rest)))
    for key, more in (("parameters", buffers), ("optimizer", 0.0)):
        size = readings.held(f"tensors/{key}_bytes")
        if size is not None:
            yield key, _LABELS[key], _take(size + more, rest)


def _leaking(report: RunReport, readings: Readings, rest: Column, where: tuple[str, ...]) -> list[Part]:
    """What each holder of a leak, or of what may be one, keeps, taken out of the rest: by its growth, as judged."""
    leak = report.leak
    if not (leak.verdict == "leak" or (leak.undecided and leak.suspects)) or (leak.where or "device") not in where:
        return []
    steps = np.array(readings.steps, dtype=np.float64)
    found = []
    for number, holder in enumerate(leak.suspects[: _STACKS.most_holders]):
        label = holder.held_by or f"{holder.type or 'memory'} of no known holder"
        label += ", in the data workers" if leak.where == "workers" else ""
        grown = _grown(leak, steps, holder.bytes_per_step, holder.bytes)
        found.append((f"leak{number + 1}", label, _take(grown, rest)))
    if not found:
        found = [("leak1", f"what grows: {what_grows(report)}", _take(_grown(leak, steps, 0.0, None), rest))]
    return [row for row in found if row[2].any()]


def _grown(leak: LeakReport, steps: Column, bytes_per_step: float, at_end: float | None) -> Column:
    """What a holder keeps at each row: a straight line that ends at its size, if that is known."""
    slope = bytes_per_step or leak.bytes_per_step
    if not at_end or slope <= 0:
        return np.maximum(0.0, slope * (steps - leak.since_step))
    begins = max(float(steps[-1]) - at_end / slope, 0.0)
    return np.maximum(0.0, steps - begins) * at_end / max(1.0, float(steps[-1]) - begins)


class _Passing(NamedTuple):
    """By how much rows rose above what was held after them, which rows are of steps, and the peaks of phases."""

    rises: Column
    of_steps: Flags
    phases: dict[str, Column]


def _passing(readings: Readings, family: str, held: Column, high: Column | None) -> _Passing:
    """What steps, evaluations and checkpoints took for a while.

    A phase tells its peak where the running maximum rose. Between such steps the last rise is taken, as far as the
    maximum leaves room for it.
    """
    place, phases = "host" if family == "host" else "device", {}
    for phase in PHASES if family in ("host", "device") else ():
        column = readings.column(f"phase/{place}/{phase}_peak_bytes")
        if column is not None and phase != "startup":
            phases[phase] = column
    known = np.full(len(held), np.nan)
    if high is not None and len(high):
        after = np.array([event == BETWEEN for event in readings.events[:-1]], dtype=bool)
        # After an evaluation the maximum may be that of the evaluation
        known[1:] = np.where((np.diff(high) != 0) & ~after, high[1:], np.nan)
    for column in phases.values():
        known = np.fmax(known, column)
    rises, inside = np.maximum(0.0, known - held), readings.inside_steps()
    of_steps = np.where(inside, rises, np.nan)
    between = np.zeros(len(held))
    if not np.isnan(of_steps).all():
        highest = np.fmax.accumulate(known) if high is None else high
        between = np.minimum(filled(of_steps), np.fmax(0.0, highest - held))
    return _Passing(np.where(np.isnan(rises), between, rises), inside | np.isnan(rises), phases)


def _passes(readings: Readings, passing: _Passing, has_model: bool, label: str) -> Iterator[Part]:
    """Gradients, as far as they were read, and all else that a step or an evaluation takes for a while."""
    rest = passing.rises.copy()
    gradients = readings.held("tensors/gradients_bytes") if has_model else None
    if gradients is not None:
        yield "gradients", _LABELS["gradients"], _take(np.where(passing.of_steps, gradients, 0.0), rest)
    if rest.any():
        yield "activations", label, rest


def _finished(made: Stack, report: RunReport, readings: Readings, rank: int) -> Stack:
    """With its peak and the reason for it, without parts that never held anything."""
    _ran_out(made, report, readings)
    highest = [float(np.nanmax(size)) for size in made.phases.values()]
    if highest and max(highest) < _STACKS.higher_times * min(highest):  # they don't differ
        made.phases = {}
    made.parts = [part for part in made.parts if part[2].any()] or made.parts[:1]
    if made.peak is not None:  # it ran out here
        return made
    ours = [peak for peak in report.peaks if peak.where == made.place and peak.rank in (None, rank)]
    made.labels = {peak.phase: format_phase(peak) for peak in ours}
    if not ours:
        return made
    made.peak = ours[0]
    at = np.abs(np.array(readings.steps) - made.peak.step)
    row = int(np.where(at == at.min(), made.total, -1.0).argmax())
    grown = sorted(((float(size[row] - size[0]), label) for _, label, size in made.parts), reverse=True)
    told = [f"{label} +{format_bytes(size)}" for size, label in grown[:2] if size > 0.05 * max(1.0, grown[0][0])]
    made.reason = ", ".join(told) if grown[0][0] > 0.01 * made.peak.bytes else ""
    return made


def _ran_out(made: Stack, report: RunReport, readings: Readings) -> None:
    """In the rows of the failure: what was in use then, what was wanted on top of it, and the limit."""
    oom, failed = report.oom, np.array([event == OOM for event in readings.events])
    if oom is None or not failed.any() or (oom.where == "host") != (made.place == "host"):
        return
    in_use, parts = dict(oom.in_use), {key: size for key, _, size in made.parts}
    in_use["python"] = in_use.pop(THERE_BEFORE, 0) + in_use.pop(PYTHON, 0)
    for key, label, size in made.parts:
        names = [name for name in in_use if key.startswith("leak") and _bare(name) == _bare(label)]  # the holder's
        size[failed] = sum(in_use.pop(name, 0) for name in (key, *names))
    left, wanted = sorted(in_use.items(), key=lambda part: -part[1]), oom.requested_bytes or 0
    colours = [f"more{number}" for number in range(_STACKS.most_others, 0, -1)]
    for name, amount in (*left, ("wanted", wanted)):
        key = name if name in _LABELS else colours.pop() if colours else "other"
        if key != "other":
            made.parts.append((key, _LABELS.get(key, name), np.where(failed, amount, 0.0)))
        else:
            parts[key][failed] += amount
    if oom.limit_bytes:
        made.limit = oom.limit_bytes, oom.limit or "limit"
        if "RLIMIT_DATA" in made.limit[1]:  # which counts no files
            made.parts = [part for part in made.parts if part[0] != "mapped"]
    whole = sum(oom.in_use.values())
    made.reason = f"{format_bytes(wanted)} more wanted, " if wanted else ""
    made.reason += f"{format_bytes(oom.free_bytes)} free" if oom.free_bytes is not None else "not there"
    made.peak = Peak(where=made.place, bytes=whole + wanted, step=oom.step, phase=oom.phase)


def _bare(holder: str) -> str:
    """The variable or attribute, which a leak's holder and a part of what was in use have in common.

    >>> _bare("__main__.stats['hidden']"), _bare("local 'kept' of main (fit.py)"), _bare("graphs in `kept` of main()")
    ('stats', 'kept', 'kept')
    """
    return _VARIABLE.sub(r"\1", holder.partition("`")[2] or holder)


def _take(size: Column, rest: Column) -> Column:
    """As much of it as the rest holds, which shrinks by that."""
    taken = np.minimum(np.maximum(0.0, size), rest)
    rest -= taken
    return taken


def _or(found: Column | None, otherwise: Column) -> Column:
    return otherwise if found is None else found
