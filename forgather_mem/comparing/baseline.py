"""The memory of a command's trainings as a small file that is kept beside the code, and what has grown since.

What is counted tensor by tensor is compared closely, resident memory loosely. The fractions stand in the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from forgather_mem.comparing.causes import changed, leading
from forgather_mem.comparing.side import HELD, held_bytes
from forgather_mem.errors import ForgatherMemError
from forgather_mem.files import read_regular, write_chosen_file
from forgather_mem.telemetry.report import TENSORS, Breakdown, HostMemory, Planned, PlannedPhase, RunReport, Training
from forgather_mem.telemetry.report_part import RARE, ReportPart
from forgather_mem.telemetry.report_schema import checked, from_dict, to_dict
from forgather_mem.units import MIB, format_bytes, format_share

# Less is no growth: on the host, of what the C library's allocator counts, and of what is counted tensor by tensor
_LEAST_RESIDENT, _LEAST_ALLOCATED = 2**25, 2**20
_PLANNED = "planned peak"
_OTHER = "name another file, or remove it: --update-baseline writes a new one; of a plan: forgather-mem compare"
_LEAST = {**dict.fromkeys((_PLANNED, *TENSORS), 0), **dict.fromkeys(("activations", HELD), _LEAST_ALLOCATED)}


class NoBaseline(ForgatherMemError):
    """A baseline can't be read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSizes(ReportPart):
    """One training of a command.

    Attributes:
        counted: By name the bytes of its planned peak, or without a plan of the model's parts and activations; and what
            is held beside the model and the optimizer's state when it ends.
        phases: Of the plan.
        resident: Peaks of resident memory, by "host" or "gpu0".
        settings: As in the report.
        steps: That it did.
    """

    counted: Mapping[str, int] = field(default_factory=dict)
    phases: tuple[PlannedPhase, ...] = field(default=(), metadata=RARE)
    resident: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    steps: int = field(default=0, metadata=RARE)

    def as_report(self) -> RunReport:
        """To compare it with a run: of what was planned the plan, else the sizes."""
        run = Training(settings=self.settings, end="finished")
        if self.phases:
            peak_bytes = self.counted.get(_PLANNED, 0)
            phase = max(self.phases, key=lambda one: one.bytes).phase
            return RunReport(run=run, planned=Planned(planned_bytes=peak_bytes, phase=phase, phases=self.phases))
        parts = from_dict(Breakdown, {part: self.counted.get(part, 0) for part in TENSORS})
        held_bytes = self.counted.get(HELD)
        host = HostMemory(
            rss_peak_bytes=self.resident.get("host", 0),
            activations_bytes=self.counted.get("activations", 0),
            allocated_end_bytes=0 if held_bytes is None else held_bytes + parts.parameters + parts.optimizer,
        )
        return RunReport(run=run, steps=self.steps, host=host, breakdown=parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedGrowth(ReportPart):
    """By which fractions of themselves sizes may grow: those that are counted, and peaks of resident memory."""

    counted: float = 0.01
    resident: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline(ReportPart):
    """What a command's trainings took, in their order, and by how much they may grow: what stands in the file."""

    schema: Literal[1] = 1
    trainings: tuple[TrainingSizes, ...] = ()
    allowed_growth: AllowedGrowth = AllowedGrowth()

    @classmethod
    def of(cls, reports: Sequence[RunReport], like: Baseline | None = None) -> Baseline:
        """The sizes of these trainings, with the fractions of another one."""
        return replace(like or cls(), trainings=tuple(map(_sizes, reports)))

    @classmethod
    def read(cls, path: str | Path) -> Baseline:
        """The baseline in a file.

        Raises:
            NoBaseline: if there is none.
        """
        try:
            found = checked(cls, json.loads(read_regular(path, 16 * MIB, follow=True)))
        except OSError as error:
            hint = "--update-baseline writes it" if isinstance(error, FileNotFoundError) else _OTHER
            raise NoBaseline(f"can't read {str(path)!r}: {error.strerror}\n  {hint}") from None
        except (ValueError, RecursionError):
            found = None
        if found is None:
            raise NoBaseline(f"{str(path)!r} is no baseline\n  {_OTHER}")
        if not (0 <= found.allowed_growth.counted < 1 and 0 <= found.allowed_growth.resident < 1):
            raise NoBaseline(f"allowed_growth in {str(path)!r} must be from 0 to below 1\n  0.05 allows 5 %")
        return found

    @classmethod
    def replaceable(cls, path: str | Path) -> Baseline | None:
        """The baseline that an update writes over; None of a file that is new, or empty as `mktemp` makes it.

        Raises:
            NoBaseline: if the file is another one, which no update may write over.
        """
        is_new = not os.path.exists(path) or (os.path.isfile(path) and not os.path.getsize(path))
        return None if is_new else cls.read(path)

    def write(self, path: str | Path) -> None:
        """Write it in a stable order, one number a line.

        Raises:
            NoBaseline: if the file can't be written.
        """
        try:
            write_chosen_file(path, (json.dumps(to_dict(self), indent=1, sort_keys=True) + "\n").encode())
        except OSError as error:
            raise NoBaseline(f"can't write {str(path)!r}: {error.strerror}") from None

    def grown(self, now: Baseline) -> Iterator[str]:
        """A sentence for each size that has grown by more than is allowed, with settings that may be the cause."""
        most = self.allowed_growth
        for number, (before, after) in enumerate(zip(self.trainings, now.trainings, strict=False), 1):
            which = f" of training {number}" if len(self.trainings) > 1 else ""
            found = list(_over(before.counted, after.counted, most.counted))
            found += [f"the peak of {told}" for told in _over(before.resident, after.resident, most.resident)]
            yield from (f"{sentence.replace(':', which + ':', 1)}" for sentence in found)
            for cause in leading(changed(before.settings, after.settings))[: 3 * bool(found)]:
                yield f"since then {cause.name} is {cause.after or 'not set'} instead of {cause.before or 'not set'}"

    def missing(self, now: Baseline) -> Iterator[str]:
        """A sentence for each size that can't be compared."""
        if len(self.trainings) != len(now.trainings):
            yield f"trainings: {len(self.trainings)} in the baseline, {len(now.trainings)} in this run"
        for before, after in zip(self.trainings, now.trainings, strict=False):
            old, new = (one.settings.get("model.class") for one in (before, after))
            other = f": it is of {old}, not of {new}" if old and new and old != new else ""
            for name in [*before.counted, *before.resident]:
                if name not in after.counted and name not in after.resident:
                    yield f"the baseline has {name!r}, which this run has not measured{other}"


def _over(before: Mapping[str, int], after: Mapping[str, int], frac: float) -> Iterator[str]:
    in_held = ("parameters" in before) != ("parameters" in after)  # one of them does not know its model
    for name, size in after.items():
        old = None if in_held and name == HELD else before.get(name)
        if old is not None and size > old + max(frac * old, _LEAST.get(name, _LEAST_RESIDENT)):
            by = f", {format_share((size - old) / old)} more" if old else ""
            yield f"{name}: {format_bytes(old)} in the baseline, {format_bytes(size)} now{by}"


def _sizes(report: RunReport) -> TrainingSizes:
    parts = report.breakdown
    counted: dict[str, int] = {}
    if report.planned is not None:
        counted[_PLANNED] = report.planned.planned_bytes
    elif parts.parameters:
        counted |= {part: getattr(parts, part) for part in TENSORS}
    if report.planned is None and report.host.activations_bytes:
        counted["activations"] = report.host.activations_bytes
    if (held := held_bytes(report)) is not None:
        counted[HELD] = held
    peaks = {"host": report.host.rss_peak_bytes, **{one.where: one.peak_allocated_bytes for one in report.device}}
    resident = {where: size for where, size in peaks.items() if size}
    phases = report.planned.phases if report.planned is not None else ()
    settings = dict(report.run.settings)
    return TrainingSizes(counted=counted, phases=phases, resident=resident, settings=settings, steps=report.steps)
