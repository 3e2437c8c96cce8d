"""Writes samples to the TensorBoard page of a run."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from forgather_mem.formats.event_file import EventFile, StockWriter
from forgather_mem.formats.summaries import Chart, ScalarRecord, layout_payload, report_payload
from forgather_mem.sinks.event_page import EventPage, check_target, find_event_folder
from forgather_mem.sinks.tags import Columns, tag_of
from forgather_mem.telemetry.metrics import FLOW, GAUGE, Metric, metric_of
from forgather_mem.telemetry.records import Finding, RunInfo, Sample

# One a line: section, title, tags drawn as lines, or a value with the tags of its band; all tags without their "mem_".
# A {i} stands for a device index; lines are regular expressions. The tags of a band must have points at the same steps,
# otherwise TensorBoard shows an error: those here come from one reading.
_CHARTS = r"""
Host memory | resident, GiB (band: anonymous to highest so far) | host/rss_gib host/anon_gib host/rss_peak_gib
Host memory | free below the limit, GiB | host/available_gib
Host memory | children, shared memory, swap, GiB | host/(children|shm|swap)_gib workers/.*_gib
GPU {i} | allocated, GiB (band: up to reserved) | gpu{i}/allocated_gib gpu{i}/allocated_gib gpu{i}/reserved_gib
GPU {i} | peak of each step and of the run, GiB | gpu{i}/(step_peak|peak)_gib
GPU {i} | headroom, GiB | gpu{i}/(headroom|others)_gib
Phases | host peak in the phases of a step, GiB | phase_host/(data|forward|backward|optimizer)_gib
Phases | host peak between steps, GiB | phase_host/(?!(data|forward|backward|optimizer|other)_)\w+_gib
Phases | GPU {i} peak in the phases of a step, GiB | phase_gpu{i}/(data|forward|backward|optimizer)_gib
Phases | GPU {i} peak between steps, GiB | phase_gpu{i}/(?!(data|forward|backward|optimizer|other)_)\w+_gib
Breakdown | what the tensors hold, GiB | tensors/.*
Collector and clean-up | pauses and clears in each step, ms | (gc/pause|cache/time|trim/time)_ms
Collector and clean-up | freed by our actions, GiB | (cache|collect|trim)/freed_gib
Ranks | lowest and highest, GiB | ranks/.*_(min|max)_gib
"""


def charts_for(tags: Collection[str]) -> list[Chart]:
    """The charts that have data if these tags exist.

    >>> [chart.title for chart in charts_for(["mem_gpu0/headroom_gib"])]
    ['headroom, GiB']
    """
    devices = sorted({int(match[1]) for tag in tags if (match := re.match(r"mem_(?:phase_)?gpu(\d+)/", tag))})
    charts = []
    for row in _CHARTS.strip().split("\n"):
        for i in devices if "{i}" in row else [0]:
            category, title, wanted = row.replace("{i}", str(i)).split(" | ")
            charts += _shown(category, title, [f"mem_{one}" for one in wanted.split()], tags)
    return charts


def _shown(category: str, title: str, wanted: Sequence[str], tags: Collection[str]) -> list[Chart]:
    if "(band" in title:
        value, lower, upper = wanted
        if {value, lower, upper} <= set(tags):
            return [Chart(category, title, margin=(value, lower, upper))]
        title, wanted = title.split(" (")[0], [*map(re.escape, wanted)]
    lines = tuple(f"{line}$" for line in wanted if any(re.match(f"{line}$", tag) for tag in tags))
    return [Chart(category, title, lines)] if lines else []


# Findings shown in the Text tab; the others are lines for a console.
_SHOWN_KINDS = ("verdict", "leak", "oom")
# Maximum number of name sets of samples; beyond it, something is generating names.
_MAX_ROWS = 256


class TensorBoardSink:
    """Writes each sample as one TensorBoard record, under the tags of `metrics.METRICS`; rank 0 only.

    A curve begins when it has something to tell, see `QuietCurves`. A tag has one point at a step, the first; what a
    flow (a collection, a clear) adds to it later, in the evaluation, the checkpoint or the epoch's end behind the step,
    is part of the next step's point, and of the report. Numbers are float32 in GiB, ms, per cent and counts. A tag's
    description is in its first record; gauges that spike also get a running maximum. The record goes into a new file
    of our own with one `write(2)`, so a killed run keeps every point; see `AppendFile` for full and slow disks. A
    record of 20 numbers costs 6 us in a loop and, with cold caches, 80 us in a real step. Remote folders (`s3://...`)
    are written by TensorBoard's own writer, as is everything if google-crc32c has no C implementation.

    Args:
        summary_writer: A `torch.utils.tensorboard.SummaryWriter` to write through. It is not configured or closed.
            Default: a file of our own.
        logging_dir: The folder. Default: `TENSORBOARD_LOGGING_DIR`, else the folder below `output_dir` with the event
            file of this process's trainer, else `output_dir/runs/<time>_<host>`; looked up at the first record.
        layout: Write a layout for the Custom Scalars tab.
        hparams: Hyperparameters to show in the HParams tab for this run; its metrics are the peaks.

    Raises:
        ValueError: for both a writer and a folder.
    """

    def __init__(
        self,
        summary_writer: object = None,
        *,
        logging_dir: str | Path | None = None,
        layout: bool = True,
        hparams: Mapping[str, object] | None = None,
    ) -> None:
        check_target("TensorBoardSink", summary_writer, logging_dir)
        self.summary_writer = summary_writer
        self.logging_dir = logging_dir
        self.layout = layout
        plain = str | bool | int | float
        self.hparams = {name: one if isinstance(one, plain) else str(one) for name, one in (hparams or {}).items()}
        self._page: _Page | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two sinks that would write the same tags to the same place."""
        return "tensorboard", id(self.summary_writer) if self.summary_writer is not None else str(self.logging_dir)

    @property
    def folder(self) -> str | None:
        """The folder of this run's records: None before the first of them, and with a given writer."""
        return self._page.folder if self._page is not None else None

    def begin(self, run: RunInfo) -> None:
        """A training begins: a new page."""
        self.end(run)
        self._page = None if run.rank else _Page(self, run.output_dir)

    def write(self, sample: Sample) -> None:
        """Write one record, or count it as dropped. Nothing is written outside of a training."""
        page = self._page
        if page is None or page.is_over:
            return
        with page.lock:
            out = page.ready()
            if out is None:
                return
            values, points = sample.values, page.points
            if points.rest or points.step == sample.step:
                values = points.left_of(sample)
            values = page.quiet.without(values)
            key = (sample.event, sample.device, *values)
            columns, record = page.rows.get(key) or page.new_row(key, values, sample, out)
            so_far = columns.numbers_so_far(values, page.extremes) if columns.spiking else ()
            if not columns.tags:
                return
            written = values.values() if columns.names is None else [values[name] for name in columns.names]
            payload = record.payload(sample.step, sample.time_s, written, columns.factors, so_far)
            if out.add(payload):
                points.wrote(sample.step, columns)
                record.descriptive = False

    def tell(self, finding: Finding) -> None:
        """Write a verdict, a leak or an out-of-memory finding to the Text tab.

        `data["tables"]`, if present, maps a title to rows, the first of which is the header.
        """
        page = self._page
        if finding.kind in _SHOWN_KINDS and page is not None and not page.is_over:
            with page.lock:
                page.write_text(finding)

    def end(self, run: RunInfo) -> None:
        """The training is over: close our file."""
        if self._page is not None:
            self._page.close()

    def problems(self) -> str | None:
        """What could not be written, for the report; None if everything was."""
        problem = self._page.problem() if self._page is not None else None
        return f"TensorBoard: {problem}" if problem else None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_page": None}  # a page belongs to this process


class _Page(EventPage):
    """One run's page and its state while it is being written.

    Attributes:
        rows: Converts samples with one event and one set of names to records.
        extremes: The run's highest and lowest numbers by tag.
        folder: The folder of our own file.
        points: Which tags have a point at the current step.
        quiet: Which curves have told nothing yet.
        lock: Held while something is written: a record may come from any thread.
    """

    def __init__(self, sink: TensorBoardSink, output_dir: Path | None) -> None:
        super().__init__(sink.summary_writer, "")
        self.lock = threading.RLock()  # a signal's handler may close the run in the middle of a write
        self._sink = sink
        self._output_dir = output_dir
        self._began_s = time.time()
        self._tags: dict[str, Metric] = {}  # tags whose description has been written
        self._charts: Sequence[Chart] = ()
        self.rows: dict[tuple[object, ...], tuple[Columns, ScalarRecord]] = {}
        self.extremes: dict[str, float] = {}
        self.folder: str | None = None
        self.points = StepPoints()
        self.quiet = QuietCurves()
        self.is_over = False

    def write_text(self, finding: Finding) -> None:
        self.text(f"mem_report/{finding.kind}", _markdown(finding), finding.step)
        if "report" in finding.data:
            report = json.dumps(finding.data["report"], separators=(",", ":"))
            self.add(report_payload(report.encode(), finding.step, time.time()))

    def close(self) -> None:
        if not self.is_over:
            self.finished()
            super().close()
        self.is_over = True

    def find_folder(self) -> str:
        self.folder = find_event_folder(self._sink.logging_dir, self._output_dir, self._began_s)
        return self.folder

    def begin_file(self) -> None:
        """A new file begins: it has no descriptions and no layout yet."""
        self.rows.clear()
        self._tags.clear()
        self._charts = ()

    def new_row(
        self, key: tuple[object, ...], values: Mapping[str, float], sample: Sample, out: EventFile | StockWriter
    ) -> tuple[Columns, ScalarRecord]:
        """The first sample with this event and these names to write; also writes what is written only once."""
        if len(self.rows) >= _MAX_ROWS:
            self.rows.clear()
        columns = Columns(sample.event, sample.device, values)
        new = {tag: row for tag, row in zip(columns.tags, columns.metrics, strict=True) if tag not in self._tags}
        record = ScalarRecord(columns.tags, {tag: f"{row.unit}. {row.meaning}" for tag, row in new.items()})
        if self._sink.hparams and not self._tags:
            self.hparams(self._sink.hparams, columns.extremes or columns.tags)
        self._tags.update(new)
        charts = charts_for(self._tags) if self._sink.layout and new else self._charts
        if charts != self._charts and out.add(layout_payload(charts, sample.step, sample.time_s)):
            self._charts = charts
        self.rows[key] = columns, record
        return columns, record


def _markdown(finding: Finding) -> str:
    """The finding's lines unchanged, and its tables."""
    parts = ["\n".join(f"    {line}" for line in finding.text.splitlines())]
    for title, rows in finding.data.get("tables", {}).items():
        header, *body = ([str(cell).replace("|", "\\|") for cell in row] for row in rows)
        lines = [header, ["---"] * len(header), *body]
        parts.append(f"### {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


# Shorter collections are nobody's problem; a full one of a large heap takes ten times as long.
_SHORT_PAUSE_S = 0.005
_PAUSE, _ABOUT_PAUSES = "gc/pause_s", ("gc/pause_total_s", "gc/pause_max_s", "gc/tracked")


class QuietCurves:
    """What is left out of a run's page so far.

    Totals, flows and what is read only now and then are left out until they are not zero; more about Python's
    collector than its pauses, until one has taken 5 ms. From then on every value is written. Sizes that are read at
    each step are always written: TensorBoard draws a band only between curves with the same steps.
    """

    def __init__(self) -> None:
        self._telling: set[str] = set()
        self._paused: bool | None = None  # None where pauses are not read

    def without(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """The values to write."""
        quiet = [name for name in values if name not in self._telling]
        if not quiet:
            return values
        if not self._paused and _PAUSE in values:
            self._paused = values[_PAUSE] >= _SHORT_PAUSE_S
        for name in quiet:
            if self._is_worth_a_point(name, values[name]):
                self._telling.add(name)
        return {name: values[name] for name in values if name in self._telling}

    def _is_worth_a_point(self, name: str, value: float) -> bool:
        if name in _ABOUT_PAUSES and self._paused is False:
            return False
        return value != 0 or ((metric := metric_of(name)).kind == GAUGE and metric.cadence == "")


class StepPoints:
    """What is still to be written of a sample: an evaluation, a checkpoint, an epoch's end follow a step's own record.

    The first point of a tag at a step stays. What a flow adds to it later in that step is part of the next record; a
    total has caught up there by itself.

    Attributes:
        step: The step whose points are known; None before the first.
        rest: What flows have added since their point was written, by name.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.rest: dict[str, float] = {}
        self._written: tuple[Columns, ...] = ()

    def wrote(self, step: int, columns: Columns) -> None:
        """These tags have their point now."""
        if step == self.step:
            self._written += (columns,)
        else:
            self.step, self._written = step, (columns,)
            self.rest.clear()

    def left_of(self, sample: Sample) -> Mapping[str, float]:
        """The values to write now."""
        if sample.step != self.step:
            return {**sample.values, **{name: sample.values.get(name, 0.0) + rest for name, rest in self.rest.items()}}
        tags = {tag for columns in self._written for tag in columns.tags}
        left = {}
        for name, value in sample.values.items():
            metric = metric_of(name)
            if tag_of(metric, sample.event, sample.device) not in tags:
                left[name] = value
            elif metric.kind == FLOW:
                self.rest[name] = self.rest.get(name, 0.0) + value
        return left
