"""What differs between the plans of two sides: each part in each phase, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forgather_mem.comparing.side import PLANNED, Difference, Side
from forgather_mem.telemetry.report import Planned

# A part is told from this fraction of what differs most
_TOLD = 0.02


def planned_differences(before: Side, after: Side) -> list[Difference]:
    """The planned peak, then all tensors and each part of them by phase; nothing where one side has no plan."""
    old, new = before.planned, after.planned
    if old is None or new is None:
        return []
    found = [_exact(PLANNED, old.planned_bytes, new.planned_bytes, max((old, new), key=_peak_bytes).phase)]
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
    if not found:
        return
    peak, *rows = found
    at_peak = [row for row in rows if row.phase == peak.phase and row.name != PLANNED]
    most = {row.name: row for row in sorted(rows, key=_size)}
    told = {row.name for row in at_peak if _size(row) >= _TOLD * max(map(_size, at_peak)) > 0}
    for row in sorted(at_peak, key=_size, reverse=True):
        if row.name in told:
            yield row, "" if _is_in_all(row, rows) else row.phase
    least = _TOLD * max(map(_size, rows))
    for row in sorted(most.values(), key=_size, reverse=True):
        if row.name not in (*told, PLANNED) and row.is_sure and _size(row) >= least:
            yield row, "" if _is_in_all(row, rows) else row.phase


def _is_in_all(one: Difference, rows: Sequence[Difference]) -> bool:
    phases = {row.phase for row in rows}
    return phases == {row.phase for row in rows if row.name == one.name and row.bytes == one.bytes}


def _exact(name: str, before: int, after: int, phase: str) -> Difference:
    return Difference(name, before, after, after - before, after - before, phase, counted=True)


def _peak_bytes(plan: Planned) -> int:
    return plan.planned_bytes


def _size(one: Difference) -> float:
    return abs(one.bytes)
