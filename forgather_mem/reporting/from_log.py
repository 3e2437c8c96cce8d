"""The report of one process of a run, rebuilt from its log and its black box.

A closed run left its complete report in its log. One that was not closed, because it is still running or was killed, is
rebuilt from its records one at a time, in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.formats.jsonl import Header, LogReader, last_record
from forgather_mem.formats.ring import Ring
from forgather_mem.reporting.build import build_report
from forgather_mem.reporting.growth import Growth
from forgather_mem.system.cgroups import kills_since
from forgather_mem.system.process_start import is_running
from forgather_mem.telemetry.metrics import every_metric
from forgather_mem.telemetry.records import STEP_PHASES, Finding, Sample
from forgather_mem.telemetry.report_schema import MOST, checked_finding, checked_header, checked_report

# The sample names of our own actions: time and size.
_BOOKED = {
    "collect": ("collect/time_s", "collect/freed_bytes"),
    "clear": ("cache/time_s", "cache/freed_bytes"),
    "trim": ("trim/time_s", "trim/freed_bytes"),
}
_KNOWN = frozenset(row.name for row in every_metric())


def report_of_log(files: Iterable[Path], ring: Ring | None = None) -> dict[str, Any]:
    """The report of one process from its log (which may have no file) and its black box.

    For a log that was not closed, some values are unknown and stay 0: what our own actions cost the next steps, and how
    much of the freed memory was reallocated.

    Raises:
        OSError: if a file can't be read.
    """
    paths, told = list(files), _LogReplay()
    closing = _report_in(last_record(paths[-1])) if paths else None
    if closing is not None:
        return closing
    log = LogReader(*paths)
    for record in log:
        told.take(record)
    if told.report is not None:
        return told.report
    if ring is not None and told.header.get("pid") in (None, ring.header.get("pid")):
        told.take_ring(ring)
    checked = checked_report(told.build())
    assert checked is not None, "it is of this version"
    report, wrong = checked
    if log.given_up:
        wrong.append("most of it is no record")
    name = paths[-1].name if paths else "black box"
    return {**report, "left_out": [f"{name}: {sentence}" for sentence in wrong]} if wrong else report


class _LogReplay:
    """The state built from the records of one process so far.

    Attributes:
        header: The process's description of itself.
        report: The complete report, if the run was closed.
    """

    def __init__(self) -> None:
        self._begin({})

    def _begin(self, header: Mapping[str, Any]) -> None:
        self.header = header
        self.report: dict[str, Any] | None = None
        self._summary = RunSummary()
        self._growth = Growth()
        self._ledger: dict[str, dict[str, Any]] = {}
        self._ring: Ring | None = None
        self._last_s, self._last_step, self._spacing = 0.0, -1, 0
        self._limit_bytes = self._device_total_bytes = 0

    def take(self, record: Header | Sample | Finding) -> None:
        """Take one record of the log; another process's header starts over."""
        if isinstance(record, Sample):
            self._take_sample(record)
        elif isinstance(record, Finding):
            self._take_finding(record)
        elif record.data.get("pid") != self.header.get("pid"):  # equal in a file that was rotated for its size
            self._begin(checked_header(record.data))

    def take_ring(self, ring: Ring) -> None:
        """Take what the black box knows but the log does not."""
        self._ring, header = ring, checked_header(ring.header)
        self.header = {**header, "time_s": header.get("started_s", 0.0), **self.header}
        if self._last_step < 0:
            self._summary.begin(header.get("step", 0))
            for finding in ring.findings:
                self._take_finding(finding)
        for sample in ring.samples:
            if sample.time_s > self._last_s:
                self._take_sample(sample)
        self._last_s = max(self._last_s, ring.state.time_s)
        self._summary.last_step = max(self._summary.last_step, ring.state.step)

    def build(self) -> dict[str, Any]:
        """The report so far."""
        summary, ring = self._summary, self._ring
        if ring is None and self._spacing and summary.first_step is not None:
            summary.first_step = max(0, summary.first_step + 1 - self._spacing)
        summary.facts = self._facts()
        summary.ledger = list(self._ledger.values())
        report = build_report(summary)
        if report["run"]["end"] == "killed":
            report["killed"] = self._killed()
        return report

    def _take_finding(self, finding: Finding) -> None:
        data = checked_finding(finding.kind, finding.data)
        if data is not None:
            self._summary.tell(replace(finding, data=data))
        self.report = _report_in(finding)

    def _take_sample(self, sample: Sample) -> None:
        values = sample.values
        if not _KNOWN.issuperset(values) or sum(map(abs, values.values())) > MOST:
            # A user's own, of which a report tells nothing; and what no machine has
            values = {name: value for name, value in values.items() if name in _KNOWN and abs(value) <= MOST}
            sample = sample._replace(values=values)
        if self._last_step < 0 and sample.event == "step_end":
            self._last_step = sample.step
        elif self._last_step >= 0 and not self._spacing and sample.event == "step_end":
            self._spacing = max(1, sample.step - self._last_step)
        self._summary.add(sample)
        self._growth.add(sample)
        own_s = values.get("step/self_s", 0.0)
        self._summary.self_s += own_s
        self._summary.steps_took(own_s, max(0.0, sample.time_s - self._last_s))
        self._last_s = sample.time_s
        self._book(sample)
        used_frac, available = values.get("host/limit_used_frac"), values.get("host/available_bytes")
        if used_frac is not None and available is not None and used_frac < 1:
            self._limit_bytes = round(available / (1 - used_frac))
        reserved_frac = values.get("device/reserved_frac")
        if reserved_frac:
            self._device_total_bytes = round(values.get("device/reserved_bytes", 0.0) / reserved_frac)

    def _book(self, sample: Sample) -> None:
        for what, (time_name, freed_name) in _BOOKED.items():
            time_s = sample.values.get(time_name)
            if time_s is None:
                continue
            row = self._ledger.setdefault(what, _row(what))
            row["calls"] += 1
            row["time_s"] += time_s
            row["freed_bytes"] += int(sample.values.get(freed_name, 0))
            row["objects"] += int(sample.values.get("collect/objects", 0))

    def _facts(self) -> RunFacts:
        header, ring = self.header, self._ring
        started_s = float(header.get("time_s") or 0.0)
        end = ring.state.end if ring is not None and ring.state.end != "running" else None
        pid = header.get("pid")
        if end is None and pid and is_running(pid, header.get("host", ""), header.get("process", "")) is False:
            end = "killed"
        return RunFacts(
            script=header.get("script", ""),
            argv=header.get("argv", []),
            rank=header.get("rank", 0),
            world_size=header.get("world_size", 1),
            versions=header.get("versions", {}),
            started_s=started_s,
            wall_s=max(0.0, self._last_s - started_s) if started_s else 0.0,
            end=end,
            host_limit_bytes=header.get("limit_bytes") or self._limit_bytes,
            host_limit_kind=header.get("limit_kind") or "host",
            device_total_bytes=self._device_total_bytes,
        )

    def _killed(self) -> dict[str, Any]:
        """What is known about the end of a process that recorded none."""
        latest, ring = self._summary.latest, self._ring
        workers = latest.get("host/children_pss_bytes")
        counter = self.header.get("kills") or {} if ring is not None else {}
        kills = kills_since(counter) if counter else None
        used_frac = latest.get("host/limit_used_frac")
        phase = ring.state.phase if ring is not None else "other"
        return {
            "signal": None,
            "oom_kill_before": counter.get("count"),
            "oom_kill_after": None if kills is None else counter["count"] + kills,
            "step": self._summary.last_step + (phase in STEP_PHASES),  # the one that was being made
            "phase": phase,
            "used_bytes": int(used_frac * self._limit_bytes) if used_frac is not None else None,
            "process_bytes": _whole(latest.get("host/rss_bytes")),
            "workers_bytes": _whole(workers),
            "num_workers": _whole(latest.get("workers/count")),
            **self._growth.as_dict(),
        }


def _report_in(record: object) -> dict[str, Any] | None:
    """The complete report, if this is the finding that closes a run."""
    if not isinstance(record, Finding) or record.kind != "verdict":
        return None
    checked = checked_report(record.data.get("report"))
    if checked is None:
        return None
    report, wrong = checked
    return {**report, "left_out": wrong} if wrong else report


def _row(what: str) -> dict[str, Any]:
    row = {"what": what, "calls": 0, "time_s": 0.0, "next_step_excess_s": 0.0, "freed_bytes": 0, "retaken_bytes": 0}
    return {**row, "objects": 0}


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
