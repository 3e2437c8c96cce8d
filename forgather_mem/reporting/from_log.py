"""The report of one process of a run, rebuilt from its log and its black box.

A closed run left its complete report in its log. One that was not closed, because it is still running or was killed, is
rebuilt from its records one at a time, in constant memory.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from forgather_mem.engine.ledger import BOOKED, booked
from forgather_mem.engine.summary import REPORTED, RunFacts, RunSummary
from forgather_mem.formats.jsonl import Header, LogReader, last_record
from forgather_mem.formats.like_lines import Rows
from forgather_mem.formats.ring import Ring
from forgather_mem.formats.ring_writer import ERROR
from forgather_mem.reporting.build import build_report
from forgather_mem.reporting.growth import Growth
from forgather_mem.system.cgroups import kills_since
from forgather_mem.system.process_start import is_process_running
from forgather_mem.telemetry.bounds import MOST
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.metrics import every_metric, name_on_current, other_device
from forgather_mem.telemetry.records import Finding, Sample
from forgather_mem.telemetry.report import (
    ADDED,
    Action,
    KilledReport,
    LeakReport,
    LedgerRow,
    Rank,
    ReportPart,
    RunReport,
)
from forgather_mem.telemetry.report_schema import checked_report, from_dict, to_dict

_KNOWN = frozenset(row.name for row in every_metric())
# What a report tells of besides: our actions, our own time, what was left at the end, workers, Python's collector
_REPORTED = REPORTED.union(
    *BOOKED.values(),
    ("collect/objects", "step/self_s", "step/startup_s", "host/limit_used_frac", "host/available_bytes"),
    ("device/reserved_frac", "host/children_pss_bytes", "workers/count"),
    ("gc/collections", "gc/pause_total_s", "gc/pause_max_s"),
)
_MAX_SHAPES = 1000
Number = TypeVar("Number", int, float)
_FEW_ROWS = 4  # to take them one by one costs less


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kills(ReportPart):
    """The kernel's counter of out-of-memory kills when the run began."""

    file: str
    inode: int
    count: int
    whose: str
    boot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process(ReportPart):
    """What a process said of itself, in its log or its black box."""

    rank: Rank = field(default=0, metadata=ADDED)
    world_size: Rank = field(default=1, metadata=ADDED)
    pid: int | None = field(default=None, metadata=ADDED)
    host: str = field(default="", metadata=ADDED)
    process: str = field(default="", metadata=ADDED)
    script: str = field(default="", metadata=ADDED)
    argv: tuple[str, ...] = field(default=(), metadata=ADDED)
    started_s: float = field(default=0.0, metadata=ADDED)
    time_s: float = field(default=0.0, metadata=ADDED)
    versions: Mapping[str, str] = field(default_factory=dict, metadata=ADDED)
    limit_bytes: int = field(default=0, metadata=ADDED)
    limit_kind: str = field(default="", metadata=ADDED)
    step: int = field(default=0, metadata=ADDED)
    kills: _Kills | None = field(default=None, metadata=ADDED)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the names of a record tell: most records of a log have the same ones.

    Attributes:
        is_known: Whether all of them are ours; others are a user's own.
        shares: Those of devices' shares.
        booked: The actions that they tell of.
    """

    is_known: bool
    shares: tuple[str, ...]
    booked: tuple[Action, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> _Shape:
        shares = [name for name in names if name.endswith("/reserved_frac")]
        return cls(
            is_known=all(map(_is_known, names)),
            shares=tuple(name for name in shares if name_on_current(name) == "device/reserved_frac"),
            booked=tuple(what for what, (time_name, _) in BOOKED.items() if time_name in names),
        )


class LogListener(Protocol):
    """Who wants the records of a log, too, while it is read for its report."""

    def wants(self, name: str) -> bool:
        """Whether it asks for this name's numbers."""

    def take(self, record: Header | Sample | Finding | Rows) -> None:
        """One record, or samples of one shape."""


def report_of_log(files: Iterable[Path], ring: Ring | None = None, listener: LogListener | None = None) -> RunReport:
    """The report of one process from its log (which may have no file) and its black box.

    For a log that was not closed, some values are unknown and stay 0: what our own actions cost the next steps, and how
    much of the freed memory was reallocated.

    Args:
        files: The log's files, oldest first.
        ring: What the black box holds.
        listener: Gets each record of a log that has to be read as a whole, which one that was closed has not.

    Raises:
        OSError: if a file can't be read.
    """
    paths, told = list(files), LogReplay()
    closing = _report_in(last_record(paths[-1])) if paths else None
    if closing is not None:
        return closing
    log = LogReader(*paths)
    for record in log.runs(is_reported if listener is None else lambda name: is_reported(name) or listener.wants(name)):
        told.take(record)
        if listener is not None:
            listener.take(record)
    wrong = ["most of it is no record"] if log.given_up else []
    return finished_report(told, ring, paths[-1].name if paths else "black box", wrong)


def finished_report(told: LogReplay, ring: Ring | None, name: str, wrong: Sequence[str] = ()) -> RunReport:
    """The report of the records so far and a black box, which `told` takes in, too.

    Args:
        told: The records.
        ring: What the black box holds.
        name: What to call the source where something was left out.
        wrong: What was left out already.
    """
    if told.report is not None:
        return told.report
    if ring is not None and told.process.pid in (None, ring.header.get("pid")):
        told.take_ring(ring)
    checked = checked_report(to_dict(told.build()))
    assert checked is not None, "it is of this version"
    report, left_out = checked
    return replace(report, left_out=tuple(f"{name}: {sentence}" for sentence in (*left_out, *wrong)))


def _grown_on(leak: LeakReport, steps: int) -> LeakReport:
    """A leak that was told so many steps ago: what its holders have, if they have grown on as they did."""
    if leak.verdict != "leak" or steps <= 0:
        return leak
    return replace(leak, suspects=tuple(
        replace(
            one,
            count=None if one.count is None else round(one.count + one.count_per_step * steps),
            bytes=None if one.bytes is None else round(one.bytes + one.bytes_per_step * steps),
        )
        for one in leak.suspects
    ))  # fmt: skip


class LogReplay:
    """The state built from the records of one process so far.

    Attributes:
        process: What the process said of itself.
        report: The complete report, if the run was closed.
    """

    def __init__(self) -> None:
        self._begin({})

    def _begin(self, header: Mapping[str, object]) -> None:
        self._header = header
        self.process = from_dict(_Process, dict(header))
        self.report: RunReport | None = None
        self._summary = RunSummary()
        self._growth = Growth()
        self._ledger: dict[Action, LedgerRow] = {}
        self._ring: Ring | None = None
        self._last_s, self._last_step, self._spacing = 0.0, -1, 0
        self._leak_step = 0  # at which it was told
        self._limit_bytes = 0
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._devices: dict[int, tuple[str, int]] = {}

    def take(self, record: Header | Sample | Finding | Rows) -> None:
        """Take one record of the log, or samples of one shape; another process's header starts over."""
        if isinstance(record, Rows):
            self._take_rows(record)
        elif isinstance(record, Sample):
            self._take_sample(record)
        elif isinstance(record, Finding):
            self._take_finding(record)
        elif record.data.get("pid") != self.process.pid:  # equal in a file that was rotated for its size
            self._begin(record.data)

    def take_ring(self, ring: Ring) -> None:
        """Take what the black box knows but the log does not."""
        self._ring, process = ring, from_dict(_Process, ring.header)
        self.process = from_dict(_Process, {**ring.header, "time_s": process.started_s, **self._header})
        if self._last_step < 0:
            self._summary.begin(process.step)
            for finding in ring.findings:
                self._take_finding(finding)
        for sample in ring.samples:
            if sample.time_s > self._last_s:
                self._take_sample(sample)
        self._last_s = max(self._last_s, ring.state.time_s)
        self._summary.last_step = max(self._summary.last_step, ring.state.step)

    def build(self) -> RunReport:
        """The report so far."""
        summary, ring = self._summary, self._ring
        if ring is None and self._spacing and summary.first_step is not None:
            summary.first_step = max(0, summary.first_step + 1 - self._spacing)
        summary.facts = self._facts()
        summary.told = replace(summary.told, ledger=tuple(self._ledger.values()))
        report = build_report(summary)
        report = replace(report, leak=_grown_on(report.leak, summary.last_step - self._leak_step))
        return replace(report, killed=self._killed()) if report.run.end == "killed" else report

    def _take_finding(self, finding: Finding) -> None:
        self.report = _report_in(finding)
        self._leak_step = finding.step if finding.kind == "leak" else self._leak_step
        self._summary.tell(finding)

    def _take_sample(self, sample: Sample) -> None:
        values = sample.values
        shape = self._shapes.get(names := tuple(values)) or self._meet(names)
        if not shape.is_known or sum(map(abs, values.values())) > MOST:
            # A user's own, of which a report tells nothing; and what no machine has
            values = {name: value for name, value in values.items() if _is_known(name) and abs(value) <= MOST}
            sample = sample._replace(values=values)
        if self._last_step < 0 and sample.event == "step_end":
            self._last_step = sample.step
        elif self._last_step >= 0 and not self._spacing and sample.event == "step_end":
            self._spacing = max(1, sample.step - self._last_step)
        steps = max(0, sample.step - self._summary.last_step)
        self._summary.add(sample)
        self._growth.add(sample)
        own_s = values.get("step/self_s", 0.0)
        self._summary.self_s += own_s
        self._summary.add_step_cost(own_s, max(0.0, sample.time_s - self._last_s), steps)
        self._last_s = sample.time_s
        for what in shape.booked:
            self._ledger[what] = booked(self._ledger.get(what) or LedgerRow(what=what), values)
        used_frac, available = values.get("host/limit_used_frac"), values.get("host/available_bytes")
        if used_frac is not None and available is not None and used_frac < 1:
            self._limit_bytes = round(available / (1 - used_frac))
        for name in shape.shares:
            frac = values.get(name)
            if frac:
                other, family = other_device(name), name.partition("/")[0]
                index = (sample.device or 0) if other is None else other[0]
                self._devices[index] = "", round(values.get(f"{family}/reserved_bytes", 0.0) / frac)

    def _take_rows(self, rows: Rows) -> None:
        """The same as to take them one by one."""
        shape = self._shapes.get(rows.shape.names) or self._meet(rows.shape.names)
        is_plain = not (shape.shares or shape.booked or "host/limit_used_frac" in rows.shape.names)
        has_begun = self._spacing and self._summary.latest.keys() >= set(rows.shape.names)
        if not is_plain or not has_begun or len(rows.steps) < _FEW_ROWS:
            for sample in rows.samples():
                self._take_sample(sample)
            return
        summary, last_s, last_step = self._summary, self._last_s, self._summary.last_step
        summary.add_rows(rows)
        self._growth.add_rows(rows)
        own_times_s = rows.column("step/self_s") or [0.0] * len(rows.steps)
        gaps_s = map(operator.sub, rows.times_s, (last_s, *rows.times_s))
        gaps = map(operator.sub, rows.steps, itertools.accumulate((last_step, *rows.steps), max))
        summary.add_step_costs(own_times_s, _forward(gaps_s), _forward(gaps))
        summary.self_s = sum(own_times_s, summary.self_s)
        self._last_s = rows.times_s[-1]

    def _meet(self, names: tuple[str, ...]) -> _Shape:
        if len(self._shapes) >= _MAX_SHAPES:  # they are made up
            self._shapes.clear()
        shape = self._shapes[names] = _Shape.of(names)
        return shape

    def _facts(self) -> RunFacts:
        process, ring = self.process, self._ring
        end = ring.state.end if ring is not None and ring.state.end != "running" else None
        if end is None and process.pid and is_process_running(process.pid, process.host, process.process) is False:
            end = "killed"
        return RunFacts(
            script=process.script,
            argv=list(process.argv),
            rank=process.rank,
            world_size=process.world_size,
            host_name=process.host or None if process.world_size > 1 else None,
            versions=dict(process.versions),
            settings=self._summary.facts.settings,
            started_s=process.time_s,
            wall_s=max(0.0, self._last_s - process.time_s) if process.time_s else 0.0,
            end=end,
            error=next((one.text or None for one in ring.findings if one.kind == ERROR), None) if ring else None,
            host_limit_bytes=process.limit_bytes or self._limit_bytes,
            host_limit_kind=process.limit_kind or "host",
            devices=self._devices,
        )

    def _is_own_limit(self) -> bool:
        """Whether the limit that left the least at the end counts no more than the one that the report names."""
        named = self.process.limit_bytes
        return not named or self._limit_bytes <= 1.001 * named

    def _killed(self) -> KilledReport:
        """What is known about the end of a process that recorded none."""
        latest, ring, growth = self._summary.latest, self._ring, self._growth
        counter = self.process.kills if ring is not None else None
        kills = None if counter is None else kills_since(to_dict(counter))
        used_frac = latest.get("host/limit_used_frac")
        phase = ring.state.phase if ring is not None else "other"
        children = latest.get("host/children_pss_bytes")  # in an older log all of them are taken for workers
        others = max(0.0, children - latest.get("workers/pss_bytes", children)) if children is not None else None
        return KilledReport(
            oom_kill_before=None if counter is None else counter.count,
            oom_kill_after=None if counter is None or kills is None else counter.count + kills,
            step=self._summary.last_step + (phase in STEP_PHASES),  # the one that was being made
            phase=phase,
            used_bytes=int(used_frac * self._limit_bytes) if used_frac is not None and self._is_own_limit() else None,
            process_bytes=_whole(latest.get("host/rss_bytes")),
            workers_bytes=_whole(latest.get("workers/pss_bytes", children)),
            others_bytes=_whole(others),
            num_workers=_whole(latest.get("workers/count")),
            process_bytes_per_step=growth.of("process"),
            workers_bytes_per_step=growth.of("workers"),
            since_step=growth.since_step,
        )


def _is_known(name: str) -> bool:
    return name in _KNOWN or name_on_current(name) in _KNOWN


def _forward(gaps: Iterable[Number]) -> list[Number]:
    """These, where a clock that was set back, and a step that is told again, count for nothing."""
    found = list(gaps)
    return found if min(found) >= 0 else [gap if gap > 0 else 0 for gap in found]


def is_reported(name: str) -> bool:
    """Whether a report tells anything of this name's numbers."""
    return name in _REPORTED or name.startswith("phase/") or name_on_current(name) in _REPORTED


def _report_in(record: object) -> RunReport | None:
    """The complete report, if this is the finding that closes a run."""
    if not isinstance(record, Finding) or record.kind != "verdict":
        return None
    checked = checked_report(record.data.get("report"))
    return None if checked is None else replace(checked[0], left_out=tuple(checked[1]))


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
