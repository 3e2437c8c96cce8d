"""Reads a run from its TensorBoard page: the curves, and what a report says of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from forgather_mem.engine.summary import GaugeRange, RunFacts, RunSummary
from forgather_mem.formats.event_file import ScalarSeries, read_scalars
from forgather_mem.reporting.build import build_report
from forgather_mem.reporting.peaks import devices_by_shares
from forgather_mem.sinks.tags import tag_of
from forgather_mem.telemetry.bounds import MOST
from forgather_mem.telemetry.metrics import Metric, every_metric
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.report_schema import checked_report, to_dict
from forgather_mem.units import GIB

_CURVES_ALONE = (
    "These are TensorBoard's curves alone, which don't tell how the run ended or what leaked: give the run's own "
    "folder, <output_dir>/forgather_mem."
)


def event_series(folder: str | Path) -> dict[str, ScalarSeries]:
    """Our curves on a TensorBoard page, under sample names and in their units."""
    return series_of_tags(_scalars(folder))


def series_of_tags(scalars: Mapping[str, ScalarSeries]) -> dict[str, ScalarSeries]:
    """Our curves among scalars by tag, under sample names and in their units."""
    return _curves(scalars)[0]


def report_of_events(folder: str | Path) -> RunReport:
    """The report as far as a TensorBoard page contains it: sizes and times, not the end of the run or the ledger."""
    return replace(report_of_tags(_scalars(folder), str(folder)), hints=(_CURVES_ALONE,))


def report_of_tags(scalars: Mapping[str, ScalarSeries], folder: str | None = None) -> RunReport:
    """The same of scalars by tag, from wherever they were read."""
    curves, device = _curves(scalars)
    summary = RunSummary(RunFacts(RunHeader(event_folder=folder)))
    summary.device = device
    everything = curves.values()
    summary.begin(min((_first_step(series) for series in everything), default=0))
    summary.last_step = max((int(series.steps.max()) for series in everything), default=0)
    if curves:
        began_s = min(float(series.wall_times_s.min()) for series in everything)
        summary.facts.header = replace(summary.facts.header, started_s=began_s)
        summary.facts.wall_s = max(float(series.wall_times_s.max()) for series in everything) - began_s
    for name, series in curves.items():
        at, values = int(series.values.argmax()), series.values
        summary.spans[name] = GaugeRange(float(values[0]), float(values[-1]), float(values[at]), int(series.steps[at]))
        summary.latest[name] = float(values[-1])
    if "step/self_s" in curves:
        summary.self_s = float(curves["step/self_s"].values.sum())
    summary.facts.devices = dict(devices_by_shares(summary))
    checked = checked_report(to_dict(build_report(summary)))
    assert checked is not None, "it is of this version"
    return checked[0]


def _curves(scalars: Mapping[str, ScalarSeries]) -> tuple[dict[str, ScalarSeries], int | None]:
    """Our curves on a TensorBoard page, under sample names and in their units, and the index of the current device.

    Of several devices it is the one with phases, else the first; None without curves of any.
    """
    found = [
        (*place, whole)
        for tag, series in scalars.items()
        if (place := _row_of(tag)) is not None and len((whole := _sound(series)).steps)
    ]
    indices = sorted((not row.name.startswith("phase/"), index) for row, index, _ in found if index is not None)
    device = indices[0][1] if indices else None
    curves = {}
    for row, index, whole in found:
        is_other = index is not None and index != device
        name = f"device{index}{row.name.removeprefix('device')}" if is_other else row.name
        curves[name] = replace(whole, values=whole.values / row.factor)
    return curves, device


def _scalars(folder: str | Path) -> Mapping[str, ScalarSeries]:
    return read_scalars(folder, wanted=lambda tag: _row_of(tag) is not None)


@functools.cache
def _rows() -> dict[str, Metric]:
    return {tag_of(row, device=0): row for row in every_metric()}


def _row_of(tag: str) -> tuple[Metric, int | None] | None:
    """The row that a tag stands for, and the index of its device; None for somebody else's tag."""
    of_a_device = re.match(r"mem_(?:phase_)?gpu(\d{1,4})/", tag)
    row = _rows().get(re.sub(r"gpu\d+/", "gpu0/", tag, count=1) if of_a_device else tag)
    return None if row is None else (row, int(of_a_device[1]) if of_a_device else None)


def _sound(series: ScalarSeries) -> ScalarSeries:
    """Without the points that can't be sizes, times or steps: the file may be anybody's."""
    import numpy as np

    good = np.abs(series.values) < MOST / GIB  # which NaN is not; a value may be in GiB
    for numbers in (series.steps.astype(float), series.wall_times_s):
        good &= np.abs(numbers) < MOST
    return ScalarSeries(steps=series.steps[good], wall_times_s=series.wall_times_s[good], values=series.values[good])


def _first_step(series: ScalarSeries) -> int:
    """The step at which the run began: one record period before the first record."""
    steps = series.steps
    spacing = int(steps[1] - steps[0]) if len(steps) > 1 else 1
    return max(0, int(steps[0]) - max(1, spacing))
