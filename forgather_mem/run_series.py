"""Which curves did a run leave, in its log or on its TensorBoard page?"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forgather_mem.formats.jsonl import LogReader, log_files
from forgather_mem.formats.scalars import Series, read_scalars
from forgather_mem.metrics import METRICS, PHASES, Metric, metric_of
from forgather_mem.report import build_report
from forgather_mem.sample import Sample
from forgather_mem.sinks.tags import tag_of
from forgather_mem.summary import RunFacts, RunSummary, Span


@dataclass(slots=True)
class Curve:
    """The points of one sample name, in the order they were read: bytes, seconds, counts."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float) -> None:
        """One more point."""
        self.steps.append(step)
        self.values.append(value)


def read_curves(folder: str | Path, names: Iterable[str], rank: int = 0) -> dict[str, Curve]:
    """The curves of these names; one that ends in "/" stands for all that begin so, and what is missing is left out.

    Args:
        folder: A run's folder or a TensorBoard folder.
        names: Names of samples.
        rank: Whose log; where that rank left none, the first rank's.
    """
    wanted = tuple(names)
    whole, families = frozenset(wanted), tuple(name for name in wanted if name.endswith("/"))
    logs = log_files(folder)
    curves: dict[str, Curve] = {}
    if not logs:
        for name, series in _Page(folder).series.items():
            if name in whole or name.startswith(families):
                curves[name] = Curve(array("q", series.steps.tolist()), array("d", series.values.tolist()))
        return curves
    for record in LogReader(*(logs.get(rank) or next(iter(logs.values())))):
        if isinstance(record, Sample):
            for name, value in record.values.items():
                if name in whole or name.startswith(families):
                    curves.setdefault(name, Curve()).add(record.step, value)
    return curves


def has_memory_tags(folder: str | Path) -> bool:
    """Whether the event files of a folder have curves of ours."""
    return bool(_Page(folder).series)


def report_of_events(folder: str | Path) -> dict[str, Any]:
    """The report as far as a TensorBoard page knows it: sizes and times, not how the run ended or what we booked."""
    page = _Page(folder)
    summary = RunSummary(RunFacts(event_folder=str(folder)))
    summary.device = page.device
    everything = page.series.values()
    summary.begin(min((_first_step(series) for series in everything), default=0))
    summary.last_step = max((int(series.steps.max()) for series in everything), default=0)
    if page.series:
        began_s = min(float(series.wall_times_s.min()) for series in everything)
        summary.facts.started_s = began_s
        summary.facts.wall_s = max(float(series.wall_times_s.max()) for series in everything) - began_s
    for name, series in page.series.items():
        at, values = int(series.values.argmax()), series.values
        summary.spans[name] = Span(float(values[0]), float(values[-1]), float(values[at]), int(series.steps[at]))
        summary.latest[name] = float(values[-1])
    if "step/self_s" in page.series:
        summary.self_s = float(page.series["step/self_s"].values.sum())
    _add_limits(summary, page.series)
    return build_report(summary)


class _Page:
    """Our curves on a TensorBoard page, under the names of samples and in their units.

    Attributes:
        series: By name.
        device: The device's index, None without curves of one.
    """

    def __init__(self, folder: str | Path) -> None:
        self.series: dict[str, Series] = {}
        self.device: int | None = None
        rows = {tag_of(row, device=0): row for row in _rows()}
        for tag, series in read_scalars(folder).series.items():
            of_a_device = re.match(r"mem_(?:phase_)?gpu(\d+)/", tag)
            row = rows.get(re.sub(r"gpu\d+/", "gpu0/", tag, count=1) if of_a_device else tag)
            if row is None:
                continue
            if of_a_device:
                self.device = int(of_a_device[1])
            self.series[row.name] = Series(
                steps=series.steps, wall_times_s=series.wall_times_s, values=series.values / row.factor
            )


def _rows() -> Iterable[Metric]:
    for row in METRICS:
        if "{}" in row.name:
            yield from (metric_of(row.name.format(phase)) for phase in PHASES)
        else:
            yield row


def _first_step(series: Series) -> int:
    """Where the run began: a period of the records before the first of them."""
    steps = series.steps
    spacing = int(steps[1] - steps[0]) if len(steps) > 1 else 1
    return max(0, int(steps[0]) - max(1, spacing))


def _add_limits(summary: RunSummary, series: dict[str, Series]) -> None:
    """The limits that the shares are shares of."""
    used_frac, available = series.get("host/limit_used_frac"), series.get("host/available_bytes")
    if used_frac is not None and available is not None and used_frac.values[0] < 1:
        summary.facts.host_limit_bytes = round(float(available.values[0]) / (1 - float(used_frac.values[0])))
    reserved_frac, reserved = series.get("device/reserved_frac"), series.get("device/reserved_bytes")
    if reserved_frac is not None and reserved is not None and reserved_frac.values[-1] > 0:
        summary.facts.device_total_bytes = round(float(reserved.values[-1]) / float(reserved_frac.values[-1]))
