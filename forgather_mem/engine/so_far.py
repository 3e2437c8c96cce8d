"""The summary of a run so far as plain values, and back: a reader of a log goes on from the last one that stands in it.

What is read back is checked: whoever has written it, it holds no more than a summary of ours and only numbers that a
machine has.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from forgather_mem.engine.summary import GAUGES, MAX_FINDINGS, GaugeRange, RunSummary, is_spanned
from forgather_mem.growth.trend import Series
from forgather_mem.telemetry.metrics import every_metric, name_on_current
from forgather_mem.telemetry.records import FORETOLD, Finding
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_part import ADDED, ReportPart
from forgather_mem.telemetry.report_schema import checked, keys_of, to_dict

_KNOWN = frozenset(row.name for row in every_metric())
_MAX_NAMES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told(ReportPart):
    """A finding of which the report tells."""

    kind: str
    step: int
    text: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes(ReportPart):
    """A `Series`: how many readings it has seen, and its points."""

    seen: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SoFar(ReportPart):
    """A `RunSummary`; `spans` has the five numbers of each."""

    first_step: int
    last_step: int
    device: int | None
    started_with: Mapping[str, float]
    least_anon_bytes: float | None
    rises: Mapping[str, float]
    latest_s: float
    self_s: float
    steady_self_s: float
    steady_s: float
    steady_steps: int
    num_costs: int
    leak_step: int
    latest: Mapping[str, float]
    spans: Mapping[str, tuple[float, float, float, float, float]]
    since_step: int | None
    growth: Mapping[str, _Sizes]
    findings: tuple[_Told, ...]
    settings: Mapping[str, str]
    told: RunReport = field(default_factory=RunReport, metadata=ADDED)


# Attributes of a summary that are plain values as they are
_PLAIN = tuple(itertools.takewhile(lambda name: name != "latest", keys_of(_SoFar)))


def is_known(name: str) -> bool:
    """Whether a name is of our own metrics, on any device."""
    return name in _KNOWN or name_on_current(name) in _KNOWN


def plain_summary(summary: RunSummary) -> dict[str, object]:
    """The summary so far as values that JSON has, in at most some 40 KiB without its findings; takes 2 ms."""
    return {name: getattr(summary, name) for name in _PLAIN} | {
        "latest": {name: value for name, value in summary.latest.items() if is_known(name)},
        "spans": {name: (one.first, one.last, one.highest, one.step, one.read) for name, one in summary.spans.items()},
        "since_step": summary.growth.since_step,
        "growth": {who: {"seen": one.seen, "points": one.points} for who, one in summary.growth.series.items()},
        "findings": [
            {"kind": one.kind, "step": one.step, "text": one.text, "what": one.data["what"]}
            for one in summary.findings
            if one.kind == "backed_off" or one.data["what"] == FORETOLD
        ],
        "settings": summary.facts.settings,
        "told": to_dict(summary.told),
    }


def read_summary(value: object) -> RunSummary | None:
    """The summary that stands in these plain values; None if anything in them is not as we write it."""
    so_far = checked(_SoFar, value)
    if so_far is None or not _is_possible(so_far):
        return None
    summary = RunSummary()
    for name in (*_PLAIN, "latest", "told"):
        setattr(summary, name, getattr(so_far, name))
    for name, (first, last, highest, step, read) in so_far.spans.items():
        summary.add_span(name, GaugeRange(first, last, highest, int(step), None, int(read)))
    summary.growth.since_step = so_far.since_step
    for who, sizes in so_far.growth.items():
        summary.growth.series[who] = Series(((int(step), size) for step, size in sizes.points), sizes.seen)
    summary.findings = [
        Finding(kind=one.kind, step=one.step, text=one.text, data={"what": one.what}) for one in so_far.findings
    ]
    summary.facts.settings = dict(so_far.settings)
    return summary if all(one.is_possible for one in summary.growth.series.values()) else None


def _is_possible(so_far: _SoFar) -> bool:
    """Whether a summary of ours can be like this."""
    tables = (so_far.started_with, so_far.rises, so_far.latest, so_far.spans, so_far.settings)
    counts = (so_far.steady_steps, so_far.num_costs, so_far.last_step - so_far.first_step)
    return (
        min(counts) >= 0
        and max(map(len, tables)) <= _MAX_NAMES
        and len(so_far.findings) <= MAX_FINDINGS
        and all(map(is_known, so_far.latest))
        and all(map(is_spanned, so_far.spans))
        and so_far.rises.keys() <= so_far.spans.keys()
        and so_far.growth.keys() == (set() if so_far.since_step is None else GAUGES.keys())
    )
