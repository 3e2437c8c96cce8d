"""One side of a comparison: a run, or several of the same kind, as sizes by name."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forgather_mem.telemetry.report import TENSORS, LeakReport, Planned, RunReport

PEAK, STARTUP, WORKERS, LEAK = "peak", "in startup", "data workers", "leak"
PLANNED = "planned"  # all tensors of a plan
HELD = "held"  # what the training leaves allocated beside its model, the optimizer's state and other models
OTHERS = "other models"  # the parameters of models beside the one that is trained
# Within which fraction and how many bytes sizes are equal. What is counted tensor by tensor is exact, but for
# TensorBoard, which keeps 24 bits of a number
_COUNTED = 2**-23, 0
_ALLOCATED = 0.01, 2**20  # counted by the C library's allocator
_ON_DEVICE = 0.01, 2**21  # the allocator's own numbers
# Resident memory: what the C library keeps, and threads and imports that come and go, differ from run to run
_RESIDENT = 0.04, 2**24
_STARTUP = 0.02, 2**23  # before the first step nothing has been freed
# Student's t for 99 % on both sides by degrees of freedom, at least; rounded up
_STUDENT = ((20, 2.85), (10, 3.17), (8, 3.36), (6, 3.71), (5, 4.04), (4, 4.61), (3, 5.85), (2, 9.93))
MODEL_PARTS = (*TENSORS, "activations")


@dataclass(frozen=True, slots=True)
class Side:
    """Runs of one kind.

    Attributes:
        name: As the user has called it.
        reports: Of these runs, at least one.
    """

    name: str
    reports: Sequence[RunReport]

    @property
    def first(self) -> RunReport:
        return self.reports[0]

    @property
    def planned(self) -> Planned | None:
        """The first run's plan, if it is known by phases."""
        plan = self.first.planned
        return plan if plan is not None and plan.phases else None

    @property
    def is_plan(self) -> bool:
        """Whether there is only a plan, of a training that has not been run."""
        return self.planned is not None and not self.first.host.rss_peak_bytes

    @property
    def place(self) -> str:
        """The memory that is compared: "device" if there is one, else "host"."""
        return "device" if all(report.device for report in self.reports) else "host"

    @property
    def steps(self) -> int:
        """The least number of steps of these runs."""
        return min(report.steps for report in self.reports)

    @property
    def leak(self) -> LeakReport | None:
        """The verdict of the first run that found one."""
        return next((report.leak for report in self.reports if report.leak.verdict == "leak"), None)

    @property
    def is_judged(self) -> bool:
        """Whether it is known of each of these runs, or of one that leaks, if there is a leak."""
        return self.leak is not None or all(one.leak.verdict in ("no leak", "copied pages") for one in self.reports)

    @property
    def knows_model(self) -> bool:
        """Whether the sizes of the model and the optimizer's state were read: not in a run of less than 10 steps."""
        return all(report.breakdown.parameters for report in self.reports)

    def sizes(self, place: str, counted: bool = False) -> dict[str, list[int]]:
        """Bytes by name, a number for each run: the peak, the parts, and the peak before the first step."""
        found: dict[str, list[int]] = {}
        for report in self.reports:
            for name, size in _sizes(report, place, counted):
                found.setdefault(name, []).append(size)
        return {name: sizes for name, sizes in found.items() if len(sizes) == len(self.reports)}


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much one size of two sides differs.

    Attributes:
        name: "peak", a part, or "in startup".
        before, after: Bytes: of several runs the mean.
        low, high: The interval in which the difference lies.
        phase: Of what is known by phases.
        counted: Whether it was counted, and not read as resident memory.
    """

    name: str
    before: float
    after: float
    low: float
    high: float
    phase: str = ""
    counted: bool = False

    @property
    def bytes(self) -> float:
        return self.after - self.before

    @property
    def is_of_model(self) -> bool:
        """Whether it is that of a part of the model."""
        return self.name in MODEL_PARTS

    @property
    def is_sure(self) -> bool:
        """Whether it is more than runs of the same kind differ by."""
        return self.low > 0 or self.high < 0


def differences(before: Side, after: Side, place: str) -> list[Difference]:
    """Each measured size that both sides have."""
    if before.is_plan or after.is_plan:
        return []
    # Activations were counted, not only read as a rise of resident memory
    counted = place == "host" and all(one.host.activations_bytes for one in (*before.reports, *after.reports))
    olds, news = before.sizes(place, counted), after.sizes(place, counted)
    # Of a side that does not know its model it is in what is held, and in the rest
    without = () if before.knows_model == after.knows_model else (*TENSORS, HELD, "other")
    found = [_difference(name, olds[name], news[name], place) for name in olds if name in news and name not in without]
    gradients = next((abs(one.bytes) for one in found if one.name == "gradients"), 0.0)
    for number, one in enumerate(found):
        if one.name == "other":  # what is left of the peak is no surer than the peak
            unsure = max(found[0].high - found[0].bytes, one.high - one.bytes)
            found[number] = replace(one, low=one.bytes - unsure, high=one.bytes + unsure)
        elif one.name == HELD:  # some loops keep the gradients
            found[number] = replace(one, low=one.low - gradients, high=one.high + gradients)
    return found


def _sizes(report: RunReport, place: str, counted: bool) -> Iterator[tuple[str, int]]:
    peak = report.host.rss_peak_bytes or (sum(report.oom.in_use.values()) if report.oom is not None else 0)
    if place == "device":
        peak = max(device.peak_allocated_bytes for device in report.device)
    yield PEAK, peak
    others = report.run.settings.get("other_models.bytes", "")
    parts = report.breakdown.sizes() if counted or report.breakdown.parameters else {}
    if parts and place == "host":
        known = {name: parts[name] for name in TENSORS}
        if counted:  # a rise of resident memory is no size of activations
            known["activations"] = report.host.activations_bytes
        parts = {**known, "other": peak - sum(known.values())}
    # TensorBoard's tags don't tell activations: they are in the rest
    unknown = () if parts.get("activations") or place == "host" else ("activations", "other")
    yield from ((name, size) for name, size in parts.items() if name not in unknown)
    if others.isdecimal():
        yield OTHERS, int(others)
    held = held_bytes(report)
    if counted and held is not None:
        yield HELD, held - int(others or 0)
    if place == "host":
        yield WORKERS, report.host.workers_peak_bytes
    # Peaks of other phases are those by which the run's peak rose: of two runs not the same
    begun = [one.bytes for one in report.peaks if one.phase == "startup" and (one.where == "host") == (place == "host")]
    if begun:
        yield STARTUP, max(begun)


def held_bytes(report: RunReport) -> int | None:
    """What is held beside the model and the optimizer's state, of a training that has come to its end."""
    if report.run.end != "finished" or not report.host.allocated_end_bytes:
        return None
    return report.host.allocated_end_bytes - report.breakdown.parameters - report.breakdown.optimizer


def _difference(name: str, before: Sequence[int], after: Sequence[int], place: str) -> Difference:
    old, new = statistics.fmean(before), statistics.fmean(after)
    frac, least = _tolerance(name, place)
    unsure = max(least, frac * max(old, new))
    if len(before) > 1 and len(after) > 1:
        spread = math.sqrt(statistics.variance(before) / len(before) + statistics.variance(after) / len(after))
        # A few runs tell little of their own spread
        student = next(value for freedom, value in _STUDENT if freedom <= len(before) + len(after) - 2)
        unsure = max(student * spread, unsure / 4)
    is_counted = name in (*MODEL_PARTS, HELD, OTHERS)
    return Difference(name, old, new, new - old - unsure, new - old + unsure, counted=is_counted)


def _tolerance(name: str, place: str) -> tuple[float, int]:
    if name in (*TENSORS, OTHERS):
        return _COUNTED
    if place == "device":
        return _ON_DEVICE
    return {"activations": _ALLOCATED, HELD: _ALLOCATED, STARTUP: _STARTUP, WORKERS: _STARTUP}.get(name, _RESIDENT)
