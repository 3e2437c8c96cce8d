"""The data of the page: plain JSON of one run, the same for a file, a server and TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from forgather_mem.errors import shown
from forgather_mem.page.readings import BETWEEN, Column, Readings, read_readings
from forgather_mem.page.stacks import OOM, Stack, stacks
from forgather_mem.page.tables import BADGES, headline, tables
from forgather_mem.reporting.problems import script_name
from forgather_mem.reporting.table import format_place, format_time
from forgather_mem.reporting.text import report_text, with_texts
from forgather_mem.telemetry.report import NOT_JUDGED, OomReport, Peak, RunReport
from forgather_mem.units import KIB, format_bytes, format_duration

VERSION = 1
_MAX_MARKS = 300  # of a kind
_ACTIONS = (("collect", "our collections"), ("cache", "cache clears"), ("trim", "trims"))
_MARKED_EVENTS = {"evaluate": "evaluation", "save": "checkpoint"}

Json = dict[str, object]
Rows = NDArray[np.int64]
T = TypeVar("T")


def run_data(report: RunReport, folder: str | Path | None, name: str = "") -> Json:
    """The data of the run in a folder, with how far its ranks are apart as rank 0 has told.

    Args:
        report: Its report, see `run_report`.
        folder: The run's folder or a TensorBoard folder; None of a plan, which has no curves.
        name: What to call it where several runs are shown.
    """
    if folder is None:
        return page_data(report, Readings(), name=name)
    rank = shown_rank(report)
    return page_data(report, read_readings(folder, rank), read_readings(folder) if rank else None, name)


def shown_rank(report: RunReport) -> int:
    """The rank whose parts are shown: the one that leaks, ran out of memory, or held most."""
    if report.oom is not None:
        return report.oom.rank
    devices = [row.rank for row in report.device]
    found = [report.leak.rank if report.leak.verdict == "leak" else None, *devices[:1], report.host.rank]
    return next((rank for rank in found if rank is not None), report.run.rank)


def page_data(report: RunReport, readings: Readings, first: Readings | None = None, name: str = "") -> Json:
    """The data of a run: texts, and numbers over the rows that are kept of its readings.

    Numbers are whole: bytes in KiB, times in microseconds.

    Args:
        report: The report.
        readings: What the shown rank has read; a row is added for a failure.
        first: What rank 0 has read, if another one is shown: it tells how far the ranks are apart.
        name: What to call the run.
    """
    rank = shown_rank(report)
    if report.oom is not None and OOM not in readings.events[-1:]:
        _add_failure(readings, report, report.oom)
    ours = report if report.leak.rank in (None, rank) else replace(report, leak=NOT_JUDGED)
    found = list(stacks(ours, readings, rank))
    pauses = list(_pauses(readings))
    columns = [size for made in found for _, _, size in made.parts]
    columns += [size for made in found for size in (made.total, *made.phases.values())]
    columns += [size for _, _, size in pauses]
    rows = kept_rows(columns, len(readings.steps))
    kind, verdict, more = headline(report)
    data: Json = {
        "version": VERSION,
        "name": name or script_name(report),
        "script": script_name(report),
        "ended": report.run.end,
        "kind": kind,
        "badge": BADGES[kind],
        "verdict": verdict,
        "more": more,
        "text": report_text(report),
        "rank": rank if report.run.world_size > 1 else None,
        "steps": packed(np.maximum.accumulate(np.array(readings.steps, dtype=np.float64))[rows], 1.0),
        "times_ms": packed(_ages_s(readings)[rows], 1e-3),
        "startup": [[round(age_s * 1e3), round(size / KIB)] for age_s, size in readings.startup],
        "stacks": [_stack(made, rows) for made in found],
        "pauses": [_series(key, label, np.nan_to_num(size), rows, 1e-6) for key, label, size in pauses],
        "band": _band(report, readings, first or readings, rows),
        "marks": list(_marks(ours, readings)),
        "tables": [{"title": title, "header": header, "rows": lines} for title, header, lines in tables(report)],
    }
    return with_texts(data, shown)  # so that no text turns another around


def _add_failure(readings: Readings, report: RunReport, oom: OomReport) -> None:
    """Rows for what was in memory at the failure: a block, as wide as the page makes it; alone if it was in step 1."""
    if readings.steps:
        for event in (BETWEEN, OOM, OOM):
            readings.add_row(event, max(oom.step, readings.steps[-1]), readings.times_s[-1])
        return
    name = "host/rss_bytes" if oom.where == "host" else "device/allocated_bytes"
    for second in (0.0, 1.0):
        readings.add_row(OOM, oom.step, second, [(name, float(sum(oom.in_use.values())))])


def _ages_s(readings: Readings) -> Column:
    times = np.array(readings.times_s)
    begun = readings.started_s or (times[0] if len(times) else 0.0)
    return np.maximum.accumulate(np.clip(times - begun, 0.0, 1e9)) if len(times) else times


def _series(key: str, label: str, values: Column, rows: Rows, unit: float) -> Json:
    return {"key": key, "label": label, "values": packed(values[rows], unit)}


def _stack(made: Stack, rows: Rows) -> Json:
    peak, label = made.peak, "out of memory:" if any(key == "wanted" for key, _, _ in made.parts) else "peak"
    return {
        "place": made.place,
        "title": f"Memory of {'the host' if made.place == 'host' else format_place(made.place)}",
        "parts": [_series(key, label, size, rows, KIB) for key, label, size in made.parts],
        "limit": None if made.limit is None else {"bytes": made.limit[0], "label": made.limit[1]},
        "planned": None if made.planned is None else {"bytes": round(made.planned[0]), "label": made.planned[1]},
        "peak": None if peak is None else _peak(peak, label, made.reason),
        "phases": [_series(name, made.labels.get(name, name), size, rows, KIB) for name, size in made.phases.items()],
    }


def _peak(peak: Peak, label: str, reason: str) -> Json:
    text = f"{label} {format_bytes(peak.bytes)}, {format_time(peak.step, peak.phase)}"
    is_before = peak.phase == "startup" and not peak.step
    return {"bytes": peak.bytes, "step": peak.step, "text": text, "reason": reason, "startup": is_before}


def _pauses(readings: Readings) -> Iterator[tuple[str, str, Column]]:
    actions = ((key, f"{key}/time_s", label) for key, label in _ACTIONS)
    for key, name, label in (("gc", "gc/pause_s", "Python's collector"), *actions):
        column = readings.column(name)
        if column is not None and np.nan_to_num(column).any():
            yield key, label, column


def _band(report: RunReport, readings: Readings, first: Readings, rows: Rows) -> dict[str, list[int | None]] | None:
    """Lowest and highest memory of the ranks and which has most, as rank 0 has told, at each of these rows."""
    short = "allocated" if report.device else "rss"
    names = {"low": f"ranks/{short}_min_bytes", "high": f"ranks/{short}_max_bytes", "most": "ranks/argmax"}
    told = {key: column for key, name in names.items() if (column := first.held(name)) is not None}
    if len(told) < len(names):
        return None
    at = np.clip(np.searchsorted(first.steps, readings.steps, "right") - 1, 0, None)[rows]
    return {key: packed(column[at], 1.0 if key == "most" else KIB) for key, column in told.items()}


def _marks(report: RunReport, readings: Readings) -> Iterator[Json]:
    """What happened when: the kinds of which there are few first."""
    leak, oom, killed = report.leak, report.oom, report.killed
    if leak.verdict == "leak":
        yield _mark("leak", leak.since_step, f"the leak begins, step {leak.since_step:,}")
    elif leak.undecided and leak.suspects and leak.since_step:
        yield _mark("leak", leak.since_step, f"the growth begins, step {leak.since_step:,}")
    for finding in _some([finding for finding in readings.findings if finding.kind == "alert"]):
        yield _mark("alert", finding.step, finding.text)
    if oom is not None:
        yield _mark("oom", oom.step, f"out of memory, {format_time(oom.step, oom.phase)}")
    if killed is not None:
        yield _mark("killed", killed.step, f"last sign of life, {format_time(killed.step, killed.phase)}")
    told = [pair for pair in zip(readings.events, readings.steps, strict=True) if pair[0] in _MARKED_EVENTS]
    for event, label in _MARKED_EVENTS.items():
        for step in _some(sorted({step for name, step in told if name == event})):
            yield _mark(label, step, f"{label}, step {step:,}")
    for key, label in _ACTIONS:
        times, freed = readings.column(f"{key}/time_s"), readings.column(f"{key}/freed_bytes")
        if times is None:
            continue
        sizes = np.zeros(len(times)) if freed is None else np.nan_to_num(freed)
        for row in _some(np.flatnonzero(~np.isnan(times)).tolist()):
            said = f"{format_duration(times[row])}, freed {format_bytes(sizes[row])}"
            yield _mark(key, readings.steps[row], f"{label}, step {readings.steps[row]:,}: {said}")


def _mark(kind: str, step: int, text: str) -> Json:
    return {"kind": kind, "step": step, "text": text}


def _some(found: Sequence[T]) -> Sequence[T]:
    """An even selection, if there are too many to be told apart."""
    return found[:: max(1, -(-len(found) // _MAX_MARKS))]


MAX_ROWS = 12_000


def kept_rows(columns: Sequence[NDArray[np.float64]], num_rows: int, most: int = MAX_ROWS) -> NDArray[np.int64]:
    """Which rows to keep, in order: all if they are few, else of each stretch those with an extreme of any column.

    Whole rows are kept, so that what was read at one step stays together and a stack of columns keeps its true height.

    >>> spike = np.where(np.arange(10_000) == 1234, 5.0, 1.0)
    >>> rows = kept_rows([spike, np.ones(10_000)], 10_000, most=100)
    >>> len(rows) <= 100, 1234 in rows, int(rows[0]), int(rows[-1])
    (True, True, 0, 9999)
    """
    if num_rows <= most:
        return np.arange(num_rows)
    length = -(-num_rows // max(1, most // 4))
    while True:
        rows = _extremes(columns, num_rows, length)
        if len(rows) <= most or length >= num_rows:
            return rows
        length *= 2


def _extremes(columns: Sequence[NDArray[np.float64]], num_rows: int, length: int) -> NDArray[np.int64]:
    starts = np.arange(0, num_rows, length)
    kept = [starts[:1], np.array([num_rows - 1])]
    padded = np.full(len(starts) * length, np.nan)
    for column in columns:
        padded[:num_rows] = column
        blocks = padded.reshape(-1, length)
        known = ~np.isnan(blocks).all(axis=1)
        if known.any():
            kept += [starts[known] + np.nanargmax(blocks[known], axis=1)]
            kept += [starts[known] + np.nanargmin(blocks[known], axis=1)]
    return np.unique(np.concatenate(kept))


def packed(values: NDArray[np.float64], unit: float) -> list[int | None]:
    """Numbers in whole units; None where there is none.

    >>> packed(np.array([10.0, 30.0, np.nan, 20.0]), 10.0)
    [1, 3, None, 2]
    """
    return [None if math.isnan(value) else int(value) for value in np.round(values / unit).tolist()]
