"""What one process of a run has read, as columns with a row for each record: from its log or its TensorBoard files."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forgather_mem.formats.jsonl import Header, LogReader, Record, log_files
from forgather_mem.reporting.from_events import samples_of
from forgather_mem.reporting.table import MAX_DEVICES
from forgather_mem.telemetry.bounds import MOST
from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.metrics import other_device
from forgather_mem.telemetry.records import Finding, Sample
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.report_schema import from_dict

Column = NDArray[np.float64]
Flags = NDArray[np.bool_]

BETWEEN = "between"  # the event of a row without readings of its own
_MAX_FINDINGS = 10_000
_WANTED = frozenset((
    "host/rss_bytes", "host/rss_peak_bytes", "host/anon_bytes", "host/shmem_bytes", "workers/pss_bytes",
    "host/other_children_pss_bytes", "device/allocated_bytes", "device/reserved_bytes", "device/step_peak_bytes",
    *(f"tensors/{part}_bytes" for part in ("parameters", "gradients", "optimizer", "buffers", "activations")),
    *(f"{action}/{what}" for action in ("collect", "cache", "trim") for what in ("time_s", "freed_bytes")),
    *(f"phase/{place}/{phase}_peak_bytes" for place in ("host", "device") for phase in PHASES),
    *(f"ranks/{what}_{end}_bytes" for what in ("allocated", "rss") for end in ("min", "max")),
    "ranks/argmax", "gc/pause_s",
))  # fmt: skip


class Readings:
    """The readings of one process so far, one row for each record.

    Attributes:
        steps, times_s, events: Of each row; the time is the wall clock's.
        findings: Alerts that were told while it ran.
        started_s: When the process began; 0 if that is not known.
        startup: What was seen of it before its training: pairs (seconds since its start, resident bytes).
    """

    def __init__(self) -> None:
        self._pid: object = None
        self._clear()

    def _clear(self) -> None:
        self.steps, self.times_s = array("q"), array("d")
        self.events: list[str] = []
        self.findings: list[Finding] = []
        self.started_s = 0.0
        self.startup: tuple[tuple[float, float], ...] = ()
        self._columns: dict[str, array[float]] = {}

    def take(self, record: Record) -> None:
        """Add one record of a log; another process's header starts over, as in the report."""
        if isinstance(record, Sample):
            self.add(record.event, record.step, record.time_s, record.values.items())
        elif isinstance(record, Finding) and record.kind == "alert" and len(self.findings) < _MAX_FINDINGS:
            self.findings.append(record)
        elif isinstance(record, Header) and (record.data.get("pid") != self._pid or not self.steps):
            self._clear()
            header = from_dict(RunHeader, dict(record.data))
            self._pid, self.started_s = record.data.get("pid"), header.process_started_s
            self.startup = tuple((abs(age_s), abs(size)) for age_s, size in header.startup)

    def add(self, event: str, step: int, time_s: float, values: Iterable[tuple[str, float]]) -> None:
        """Add a row with what the page shows of these values.

        An evaluation or a checkpoint stands between two rows as it was before and after it, so that it keeps to its
        time whenever the next reading was.
        """
        is_between = event != "step_end" and len(self.steps) > 0
        if is_between and (self.events[-1] != BETWEEN or self.steps[-1] != step):
            self.add_row(BETWEEN, step, time_s)
        self.add_row(event, step, time_s, values)
        if is_between:
            self.add_row(BETWEEN, step, time_s)

    def add_row(self, event: str, step: int, time_s: float, values: Iterable[tuple[str, float]] = ()) -> None:
        """Add one row only."""
        row = len(self.steps)
        self.steps.append(step)
        self.times_s.append(time_s)
        self.events.append(event)
        for name, value in values:
            column = self._columns.get(name)
            if column is None:
                if not self.wants(name):
                    continue
                column = self._columns[name] = array("d")
            if abs(value) <= MOST:
                column.extend(repeat(math.nan, row - len(column)))
                column.append(value)

    def column(self, name: str) -> Column | None:
        """The values of a name, NaN where it was not read; None if it never was."""
        found = self._columns.get(name)
        if not found:
            return None
        values = np.full(len(self.steps), np.nan)
        values[: len(found)] = found
        return values

    def held(self, name: str) -> Column | None:
        """The same, each value until the next reading; before the first one, the first."""
        values = self.column(name)
        return None if values is None else filled(values)

    def inside_steps(self) -> Flags:
        """Which rows are of the training's steps, not of an evaluation, a checkpoint or a failure."""
        return np.array([event in ("step_end", BETWEEN) for event in self.events], dtype=bool)

    def wants(self, name: str) -> bool:
        """Whether the page shows this name's numbers."""
        other = other_device(name)
        if other is None or name in _WANTED:
            return name in _WANTED
        return other[1] in _WANTED and (other[0] < MAX_DEVICES or len(self._columns) < 2 * len(_WANTED))


def filled(values: Column) -> Column:
    """Each value until the next reading; before the first one, the first. One at least is known.

    >>> filled(np.array([np.nan, 1.0, np.nan, 2.0])).tolist()
    [1.0, 1.0, 1.0, 2.0]
    """
    known = ~np.isnan(values)
    latest = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return values[np.where(latest < 0, known.argmax(), latest)]


def read_readings(folder: str | Path, rank: int = 0) -> Readings:
    """The readings of one process of a run.

    Args:
        folder: A run's folder or a TensorBoard folder.
        rank: The rank whose log is read; if it left none, the first rank's.
    """
    logs = log_files(folder)
    files = logs.get(rank) or next(iter(logs.values()), [])
    return readings_of(LogReader(*files) if files else samples_of(folder))


def readings_of(records: Iterable[Record]) -> Readings:
    """Those of records, from wherever they are read."""
    readings = Readings()
    with contextlib.suppress(OSError):  # `run_report` has said of a file that it can't be read
        for record in records:
            readings.take(record)
    return readings
