"""Reads a run from its TensorBoard page: the curves as records, and what a report says of these."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from forgather_mem.formats.event_file import ScalarSeries, read_scalars
from forgather_mem.reporting.from_log import LogReplay
from forgather_mem.sinks.tags import tag_of
from forgather_mem.telemetry.bounds import MOST
from forgather_mem.telemetry.metrics import Metric, every_metric
from forgather_mem.telemetry.records import Sample
from forgather_mem.telemetry.report import RunReport
from forgather_mem.units import GIB

_CURVES_ALONE = (
    "These are TensorBoard's curves alone, which don't tell how the run ended or what leaked: give the run's own "
    "folder, <output_dir>/forgather_mem."
)


def samples_of(folder: str | Path) -> Iterator[Sample]:
    """Our curves on a TensorBoard page as the records that they were written from, without other events."""
    return samples_of_tags(read_scalars(folder, wanted=lambda tag: _row_of(tag) is not None))


def samples_of_tags(scalars: Mapping[str, ScalarSeries]) -> Iterator[Sample]:
    """The same of scalars by tag, from wherever they were read."""
    import numpy as np

    curves, device = _curves(scalars)
    if not curves:
        return
    names, parts = list(curves), curves.values()
    whose = np.repeat(np.arange(len(names)), [len(series.steps) for series in parts])
    steps = np.concatenate([series.steps for series in parts])
    times_s, values = (np.concatenate([getattr(series, of) for series in parts]) for of in ("wall_times_s", "values"))
    in_order = np.argsort(steps, kind="stable")
    begins = np.flatnonzero(np.diff(steps[in_order])) + 1
    for begin, end in itertools.pairwise(itertools.chain([0], begins, [len(steps)])):
        rows = in_order[begin:end]
        read = {names[one]: value for one, value in zip(whose[rows].tolist(), values[rows].tolist(), strict=True)}
        yield Sample("step_end", int(steps[rows[0]]), None, float(times_s[rows[-1]]), read, device)


def report_of_events(folder: str | Path) -> RunReport:
    """The report as far as a TensorBoard page contains it: sizes and times, not the end of the run."""
    return replace(report_of_samples(samples_of(folder), str(folder)), hints=(_CURVES_ALONE,))


def report_of_samples(samples: Iterable[Sample], folder: str | None = None) -> RunReport:
    """The same of its records, in order."""
    samples = iter(samples)
    first = list(itertools.islice(samples, 2))
    header: dict[str, object] = {"event_folder": folder}
    if first:  # the run began one record period before the first record
        period = (first[-1].step - first[0].step) or 1
        header |= {"started_s": first[0].time_s, "step": max(0, first[0].step - period)}
    told = LogReplay(header)
    for sample in itertools.chain(first, samples):
        told.take(sample)
    return replace(told.build(), left_out=())


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
