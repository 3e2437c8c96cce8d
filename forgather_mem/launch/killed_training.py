"""Why a training was killed for memory, and what was in it: what it has told until then, held against its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from forgather_mem.telemetry.report import KilledReport, RunReport
from forgather_mem.telemetry.report_part import ReportPart
from forgather_mem.units import MIB, format_bytes

_RARE_EVENTS = {"a checkpoint": "save", "an evaluation": "eval"}  # as in the names of a Trainer's arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class KillInPlan(ReportPart):
    """Where a plan has a training that was killed.

    Attributes:
        phase: In which the plan has it.
        num_bytes: Of the tensors of this phase at its highest moment.
        room_bytes: What was left for them.
        parts: What they are for.
    """

    phase: str
    num_bytes: int
    room_bytes: int
    parts: Mapping[str, int]


def explained_kill(report: RunReport, killed: KilledReport, planned: KillInPlan | None) -> KilledReport:
    """The same with `why_now`, and with what was `in_use` when the limit was reached."""
    is_between = report.steps > 0 and killed.phase == "other"
    between = f"killed {_between(report)}: in a callback, or in code between steps"
    if planned is None:
        return replace(killed, in_use=_told(report, killed), why_now=f"{between}." if is_between else None)
    beside = report.host.limit_bytes - planned.room_bytes
    others = min(beside, others_bytes_of(killed))
    needed, room = format_bytes(planned.num_bytes), format_bytes(planned.room_bytes)
    if planned.num_bytes > planned.room_bytes:
        largest = sorted(planned.parts.items(), key=lambda part: -part[1])
        parts = ", ".join(f"{part} {format_bytes(size)}" for part, size in largest if size >= MIB)
        why = f"{planned.phase} needs {needed} (planned: {parts}), and {room} were left."
        return replace(killed, why_now=why)
    here = between if is_between else f"killed in {killed.phase}"
    rest = planned.room_bytes - planned.num_bytes
    why = f"{here}. The training's own tensors take {needed} there (planned); {format_bytes(rest)} more came."
    known = {**planned.parts, "Python and libraries": beside - others, "other processes": others}
    return replace(killed, why_now=why, in_use=_with_size({**known, "not in the plan": rest}))


def others_bytes_of(killed: KilledReport) -> int:
    """What others of its group had: data workers, other children, and processes that only the limit tells of."""
    children = (killed.workers_bytes or 0) + (killed.others_bytes or 0)
    return max(children, (killed.used_bytes or 0) - (killed.process_bytes or 0))


def _told(report: RunReport, killed: KilledReport) -> dict[str, int]:
    """By what was measured: the training's own, what there was before it, and what has come since."""
    host, of = report.host, report.breakdown
    limit_bytes = host.limit_bytes - others_bytes_of(killed)
    known = {"parameters": of.parameters, "gradients": of.gradients, "optimizer": of.optimizer}
    known["there before the first step"] = max(0, (host.allocated_start_bytes or 0) - of.parameters)
    left = max(0, limit_bytes - sum(known.values()))
    steps = report.steps - (killed.since_step or report.steps)
    grown = min(left, max(0, round((killed.process_bytes_per_step or 0) * steps)))
    return _with_size({**known, "grown step by step": grown, "other": left - grown}) if report.steps else {}


def _between(report: RunReport) -> str:
    settings, now = report.run.settings, report.steps
    due = [
        event
        for event, name in _RARE_EVENTS.items()
        if settings.get(f"arguments.{name}_strategy") == "steps"
        and (every := settings.get(f"arguments.{name}_steps", "")).isdecimal()
        and int(every) > 0 == now % int(every)
    ]
    return f"after step {now:,}" + (f", with {' and '.join(due)}" if due else "")


def _with_size(parts: Mapping[str, int]) -> dict[str, int]:
    return {part: size for part, size in parts.items() if size > 0}
