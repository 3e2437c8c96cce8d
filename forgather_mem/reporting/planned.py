"""A plan as part of a report, from its plain values: those of this process, or of the file of `plan --json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from forgather_mem.errors import ours
from forgather_mem.files import read_regular
from forgather_mem.telemetry.report import Planned, PlannedPhase, RunReport, Training
from forgather_mem.telemetry.report_schema import MAX_REPORT_BYTES, checked


def planned_of(plan: Mapping[str, object]) -> Planned | None:
    """What it said; None for what is no plan. The file may be anybody's.

    >>> row = {"step": 2, "phase": "backward", "bytes": 3, "parts": {"activations": 3}}
    >>> planned_of({"peak_bytes": 3, "phase": "backward", "phases": [row]}).phases[0].parts
    {'activations': 3}
    """
    rows = checked(tuple[PlannedPhase, ...], plan.get("phases"))
    peak_bytes, phase = checked(int, plan.get("peak_bytes")), checked(str, plan.get("phase"))
    if not rows or peak_bytes is None or phase is None:
        return None
    highest: dict[str, PlannedPhase] = {}
    for row in rows:
        if row.phase not in highest or row.bytes > highest[row.phase].bytes:
            highest[row.phase] = row
    return Planned(planned_bytes=peak_bytes, phase=phase, phases=tuple(highest.values()))


def report_of_plan(path: str | Path) -> RunReport | None:
    """The first plan in a file, as the report of a training that has not been run; None without one.

    The file, which a person has named, is that of `plan --json`, or has what `Plan.to_dict` gives.
    """
    try:
        answer = json.loads(read_regular(path, MAX_REPORT_BYTES, follow=True))
        plan = answer["plans"][0] if "plans" in answer else answer
        planned = planned_of(plan)
    except ours(OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None
    settings = checked(Mapping[str, str], answer.get("settings")) or {}  # type: ignore[type-abstract]
    batch = {f"batch.{name}": str(plan[name]) for name in ("rows", "length") if isinstance(plan.get(name), int)}
    return None if planned is None else RunReport(run=Training(settings={**settings, **batch}), planned=planned)
