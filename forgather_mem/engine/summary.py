"""The summary of a run: samples and findings go in one by one, the report's numbers come out.

It is fed by the engine during a training, or by a reader of our files afterwards. It holds only numbers, a few hundred
bytes however long the run is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from forgather_mem.errors import first_line
from forgather_mem.telemetry.bounds import bounded_text
from forgather_mem.telemetry.events import BETWEEN_STEPS
from forgather_mem.telemetry.metrics import name_on_current
from forgather_mem.telemetry.records import Finding, Sample
from forgather_mem.telemetry.redaction import redacted
from forgather_mem.telemetry.report_part import RunHeader

if TYPE_CHECKING:
    from forgather_mem.growth.trend import Series
    from forgather_mem.telemetry.report import RunReport

# ---- growth per step of this process and its workers, for the report of a run that was killed ----

# Less than this, over the whole run, counts as flat.
_FLAT_FRAC = 0.02
GAUGES = {"process": ("host/anon_bytes", "host/rss_bytes"), "workers": ("workers/pss_bytes", "host/children_pss_bytes")}


class Growth:
    """The sizes of the steps, judged as for a leak, in constant memory.

    Attributes:
        since_step: The first step seen; None before it.
        series: The sizes of each; empty before it.

    >>> growth = Growth()
    >>> for step in range(1, 101):
    ...     growth.add(Sample("step_end", step, None, 0.0, {"host/anon_bytes": 2**30 + step * 2**20}))
    >>> growth.of("process")
    1048576.0
    """

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}
        self.since_step: int | None = None

    def add(self, sample: Sample) -> None:
        """Add one record."""
        if sample.event != "step_end":
            return
        if self.since_step is None:
            # Where memory is short when a process without a step ends, half a MiB counts
            from forgather_mem.growth.trend import Series

            self.since_step = sample.step
            self.series = {who: Series() for who in GAUGES}
        values = sample.values
        for who, (first, second) in GAUGES.items():
            if (value := values.get(first, values.get(second))) is not None:
                self.series[who].add(sample.step, value)

    def of(self, who: Literal["process", "workers"]) -> float | None:
        """Bytes per step, 0.0 if flat and None if it was not read often enough, or has grown too unevenly to say.

        What grew ever more slowly counts with the rate that was measured.
        """
        from forgather_mem.growth.trend import GROWTH, judge, rate_throughout

        series = self.series.get(who)
        if series is None or len(series.points) < GROWTH.fewest_in_all:
            return None
        trend, points, least = judge(series.points), series.points, _FLAT_FRAC * series.points[0][1]
        is_sure = trend.kind != "not enough data" or rate_throughout(points) is not None
        if is_sure and trend.per_step * trend.steps >= least:
            return trend.per_step
        risen = points[-1][1] - points[len(points) // 4][1]  # past what comes once
        return 0.0 if risen <= max(least, GROWTH.floor_bytes * trend.steps) else None


MAX_FINDINGS = 200
# Gauges whose first, last and highest value are kept for the report, which asks for no others; on each device.
REPORTED = (
    "host/rss_bytes",
    "host/rss_peak_bytes",
    "host/anon_bytes",
    "device/allocated_bytes",
    "device/reserved_bytes",
    "device/step_peak_bytes",
    "tensors/parameters_bytes",
    "tensors/gradients_bytes",
    "tensors/optimizer_bytes",
    "tensors/activations_bytes",
    "workers/pss_bytes",
)
# The baseline of a phase's peak: what is held between the steps.
_GROUND = {"host": "host/rss_bytes", "device": "device/allocated_bytes"}
_PARTS = frozenset({"cleanup_calls", "advice", "leak", "oom"})  # kinds of findings that are a part of the report
_PHASE_HEADS = (("phase/host/", "host"), ("phase/device/", "device"))


@dataclass(slots=True)
class GaugeRange:
    """A gauge over a run: first, last and highest value, and the step and phase of the highest.

    The step is that of the first record with it. `read` is the last step with a value.
    """

    first: float
    last: float
    highest: float
    step: int
    phase: str | None = None
    read: int = 0


# The last line of a traceback's text
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)+(\S.*)")


@dataclass(slots=True)
class RunFacts:
    """What is known about a run apart from its samples.

    Attributes:
        header: What was known before it ended.
        end: How it ended; None while unknown.
        error: Type and first line of the exception that ended it.
        error_line: The innermost line of the user's own in its traceback; None without one.
        allocated_end_bytes: What the C library's allocator has given out and not got back when it ended; 0 if unknown.
        devices: Name and size in bytes of the devices in use, by index; an empty name if it is not known.
        settings: Those that decide what memory it takes, as texts, by names such as "arguments.optim".
    """

    header: RunHeader = field(default_factory=RunHeader)
    wall_s: float = 0.0
    end: str | None = None
    error: str | None = None
    error_line: str | None = None
    allocated_end_bytes: int = 0
    devices: dict[int, tuple[str, int]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def failed_by(self, error: BaseException) -> None:
        """Keep the error's type, the first line of its message, and the user's line that it came through."""
        from forgather_mem.source.source_lines import failed_line  # where a run is only read nothing fails

        of_worker = _RAISED.findall(str(error))  # as it was raised there
        told = of_worker[-1] if of_worker else f"{type(error).__name__}: {first_line(str(error)[:1000])}"
        self.error = redacted(told[:1000])[:200].removesuffix(": ")
        self.error_line = failed_line(error)


class RunSummary:
    """The running totals of one training.

    Attributes:
        facts: Names, versions, limits, and how the run ended.
        steps: Optimizer steps done in this run (a resumed run counts from where it resumed).
        last_step: The trainer's step number at the last record.
        device: Index of this process's accelerator, None without one.
        spans: First, last and highest value by sample name, for the gauges and phases in a report.
        started_with: Sizes before the first step.
        rises: Maximum by which a phase's peak in a step exceeded the memory held at the end of that step, by the peak's
            name.
        least_anon_bytes: The least anonymous memory at a step's end; None before the first reading.
        latest: The last value of every name seen.
        latest_s: When the last record was.
        growth: That of this process and its workers, for the report of a run that is killed.
        self_s: Our own time so far.
        steady_self_s, steady_s, steady_steps: Our own time in the steps after the first record, the duration of these
            steps, and their number: one-off work at the start is in none.
        findings: The first `MAX_FINDINGS` findings that are no part of the report.
        told: What findings and the ledger have told: the report's `leak`, `oom`, `advice`, `cleanup_calls`, `ledger`.
        leak_step: The step at which the leak was told.
        readings: Those of works that take part, while it goes on: `reading` of `FullWork`.
        of_settings: The step and the text of the last settings, or of the last holder of much, that were told.
        switched_off: Rules switched off by the failure guard, one sentence each; also what sinks had to drop.
    """

    def __init__(self, facts: RunFacts | None = None, switched_off: Sequence[str] = ()) -> None:
        self.facts = facts or RunFacts()
        self.first_step: int | None = None
        self.last_step = 0
        self.device: int | None = None
        self.spans: dict[str, GaugeRange] = {}
        self.started_with: dict[str, float] = {}
        self.least_anon_bytes: float | None = None
        self.rises: dict[str, float] = {}
        self._rising: list[tuple[str, str]] = []  # names of peak and baseline
        self.latest: dict[str, float] = {}
        self.latest_s = 0.0
        self.growth = Growth()
        self.self_s = 0.0
        self.steady_self_s = self.steady_s = 0.0
        self.steady_steps = 0
        self.num_costs = 0  # records whose steps' cost was added
        self.findings: list[Finding] = []
        self.leak_step = 0
        self.readings: Collection[Hashable] = ()
        self.of_settings = 0, "settings"
        self.switched_off = [*switched_off]

    @cached_property
    def told(self) -> RunReport:
        # The report's classes take half a MiB: most trainings need them when they end
        from forgather_mem.telemetry.report import RunReport

        return RunReport()

    @property
    def oom(self) -> Mapping[str, object] | None:
        """The report's `oom` as users see it."""
        from forgather_mem.telemetry.report_schema import to_dict

        return None if self.told.oom is None else to_dict(self.told.oom)

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """The report's `ledger` as users see it."""
        from forgather_mem.telemetry.report_schema import to_dict

        return [to_dict(row) for row in self.told.ledger]

    @property
    def steps(self) -> int:
        return self.last_step - self.first_step if self.first_step is not None else 0

    def reach(self, step: int) -> None:
        """So many steps are done."""
        self.last_step = max(self.last_step, step)

    def begin(self, step: int, started_with: dict[str, float] | None = None) -> None:
        """The run starts (or resumes) after `step` optimizer steps, with these sizes."""
        self.started_with = started_with or {}
        self.first_step = self.last_step = step

    def add(self, sample: Sample) -> None:
        """Add one record."""
        values, step = sample.values, sample.step
        if self.first_step is None:
            self.begin(step - 1)
        self.last_step = max(self.last_step, step)
        if sample.device is not None:
            self.device = sample.device
        num_known = len(self.latest)
        self.latest.update(values)
        if len(self.latest) != num_known:
            for name, first in values.items():
                if name not in self.spans and is_spanned(name):
                    self.add_span(name, GaugeRange(first, first, first, step, None, step))
        for name, span in self.spans.items():
            value = values.get(name)
            if value is not None:
                span.last, span.read = value, step
                if value > span.highest:
                    is_next = sample.event in BETWEEN_STEPS and name.endswith("/data_peak_bytes")  # what comes after it
                    span.highest, span.step = value, step + is_next
        anon_bytes = values.get("host/anon_bytes") if sample.event == "step_end" else None
        if anon_bytes is not None and (self.least_anon_bytes is None or anon_bytes < self.least_anon_bytes):
            self.least_anon_bytes = anon_bytes
        for peak, ground in self._rising:
            if peak in values and ground in values:
                risen = values[peak] - values[ground]
                if risen > self.rises.get(peak, -math.inf):
                    self.rises[peak] = max(0.0, risen)
        self.growth.add(sample)
        self.latest_s = sample.time_s

    def add_step_cost(self, own_s: float, all_s: float, steps: int) -> None:
        """Add the steps of one record: our own time in them, their duration, and how many they are."""
        self.num_costs += 1
        if self.num_costs > 2:  # what the first cost, and what it cost to write it, comes once
            self.steady_self_s += own_s
            self.steady_s += all_s
            self.steady_steps += steps

    def add_span(self, name: str, span: GaugeRange) -> None:
        """Begin with a gauge or a phase's peak."""
        self.spans[name] = span
        self._rising += [(name, _GROUND[where]) for head, where in _PHASE_HEADS if name.startswith(head)]

    def tell(self, finding: Finding) -> None:
        """Keep a finding for the report."""
        self.leak_step = finding.step if finding.kind == "leak" else self.leak_step
        if finding.kind in _PARTS and self._keep_part(finding.kind, dict(finding.data)):
            return
        if finding.kind in ("settings", "held"):
            self.of_settings = finding.step, finding.text
        if finding.kind == "settings" and all(isinstance(value, str) for value in finding.data.values()):
            self.facts.settings.update((name, bounded_text(text)) for name, text in finding.data.items())
        elif len(self.findings) < MAX_FINDINGS:
            # Of its data a report needs this at most
            what = finding.data.get("what")
            self.findings.append(replace(finding, data={"what": bounded_text(what) if isinstance(what, str) else ""}))

    def _keep_part(self, kind: str, data: dict[str, object]) -> bool:
        """Keep what a finding says of a part of the report; False if it is not as the part should be."""
        from forgather_mem.telemetry.report import Change, CleanupCall, LeakReport, OomReport
        from forgather_mem.telemetry.report_schema import checked

        kinds: dict[str, tuple[type[object], object]] = {
            "cleanup_calls": (tuple[CleanupCall, ...], data.get("calls")),
            "advice": (tuple[Change, ...], data.get("advice")),
            "leak": (LeakReport, data),
            "oom": (OomReport, data),
        }
        part = checked(*kinds[kind])
        if part is not None:
            self.told = replace(self.told, **{kind: part})  # type: ignore[arg-type]  # it is of this kind
        return part is not None

    def highest(self, name: str) -> float | None:
        """The highest value of a gauge so far; None if it was never read."""
        return self.spans[name].highest if name in self.spans else None

    @property
    def phases(self) -> dict[tuple[str, str], GaugeRange]:
        """The peaks of phases by ("host" | "device", phase)."""
        return {
            (where, name.removeprefix(head).removesuffix("_peak_bytes")): span
            for name, span in self.spans.items()
            for head, where in _PHASE_HEADS
            if name.startswith(head)
        }


def is_spanned(name: str) -> bool:
    """Whether first, last and highest value of this name are kept."""
    return name_on_current(name) in REPORTED or name.startswith("phase/")
