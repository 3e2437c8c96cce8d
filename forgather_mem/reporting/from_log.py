"""The report of one process of a run, rebuilt from its log and its black box.

A closed run left its complete report in its log. One that was not closed, because it is still running or was killed, is
rebuilt from the last summary in its log and the records after it, one at a time, in constant memory; a log without one
from all of its records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from forgather_mem.engine.ledger import BOOKED, booked
from forgather_mem.engine.so_far import is_known, read_summary
from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.formats.jsonl import Header, LogReader, Record, RollUp, roll_ups
from forgather_mem.formats.ring import Ring
from forgather_mem.formats.ring_writer import ERROR
from forgather_mem.reporting.build import build_report
from forgather_mem.reporting.peaks import devices_by_shares
from forgather_mem.reporting.table import WHOSE
from forgather_mem.system.cgroups import kills_since
from forgather_mem.system.process_start import is_process_running
from forgather_mem.telemetry.bounds import MOST, bounded_text
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.records import Finding, Sample
from forgather_mem.telemetry.report import KilledReport, LeakReport, LedgerRow, RunReport
from forgather_mem.telemetry.report_part import ReportPart, RunHeader
from forgather_mem.telemetry.report_schema import checked, checked_report, from_dict, to_dict


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kills(ReportPart):
    """The kernel's counter of out-of-memory kills when the run began."""

    file: str
    inode: int
    count: int
    whose: str
    boot: str


def report_of_log(files: Iterable[Path], ring: Ring | None = None) -> RunReport:
    """The report of one process from its log (which may have no file) and its black box.

    For a log that was not closed, some values are unknown and stay 0: what our own actions cost the next steps, and how
    much of the freed memory was reallocated.

    Args:
        files: The log's files, oldest first.
        ring: What the black box holds.

    Raises:
        OSError: if a file can't be read.
    """
    paths, told = list(files), LogReplay()
    log = _log_after_roll_up(paths, told)
    for record in log:
        told.take(record)
    if told.report is not None:
        return told.report
    if ring is not None and told.process.pid in (None, ring.header.get("pid")):
        told.take_ring(ring)
    report = told.build()
    left_out = [*report.left_out, *["most of it is no record"] * log.given_up]
    name = paths[-1].name if paths else "black box"
    return replace(report, left_out=tuple(f"{name}: {sentence}" for sentence in left_out))


def _log_after_roll_up(paths: list[Path], told: LogReplay) -> LogReader:
    """What is still to be read when `told` has taken the last roll-up; all of a log without one."""
    for number in reversed(range(len(paths))):
        for rolled_up, end in roll_ups(paths[number]):
            if told.resume(rolled_up):
                return LogReader(*paths[number:], start=end)
    return LogReader(*paths)


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

    Args:
        header: What is known of the process before them.

    Attributes:
        process: The header of its log or its black box.
        report: The complete report, if the run was closed.
    """

    def __init__(self, header: Mapping[str, object] | None = None) -> None:
        self._begin(header or {})

    def _begin(self, header: Mapping[str, object], summary: RunSummary | None = None) -> None:
        self._take_header(header)
        self.report: RunReport | None = None
        self._summary = summary or RunSummary()
        self._ring: Ring | None = None
        if summary is None:
            self._summary.begin(self.process.step, dict(self.process.started_with))

    def _take_header(self, header: Mapping[str, object]) -> None:
        self._header = dict(header)
        self.process = from_dict(RunHeader, self._header)

    def resume(self, rolled_up: RollUp) -> bool:
        """Go on from what came of the records so far; False if it is none that we have written."""
        summary = read_summary(rolled_up.so_far)
        if summary is None:
            return False
        self._begin(rolled_up.header, summary)
        return True

    def take(self, record: Record) -> None:
        """Take one record of the log; another process's header starts over, a roll-up adds nothing."""
        if isinstance(record, Sample):
            self._take_sample(record)
        elif isinstance(record, Finding):
            self._take_finding(record)
        elif isinstance(record, Header) and record.data.get("pid") == self.process.pid:
            self._take_header(record.data)  # the file was rotated for its size, or more is known
        elif isinstance(record, Header):
            self._begin(record.data)

    def take_ring(self, ring: Ring) -> None:
        """Take what the black box knows but the log does not."""
        self._ring = ring
        self.process = from_dict(RunHeader, {**ring.header, **self._header})
        if not self._summary.latest_s:  # the log has no record
            self._summary.begin(self.process.step, dict(self.process.started_with))
            for finding in ring.findings:
                self._take_finding(finding)
        for sample in ring.samples:
            if sample.time_s > self._summary.latest_s:
                self._take_sample(sample)
        self._summary.latest_s = max(self._summary.latest_s, ring.state.time_s)
        self._summary.last_step = max(self._summary.last_step, ring.state.step)

    def build(self) -> RunReport:
        """The report so far, and in its `left_out` what can't be true."""
        summary = self._summary
        summary.facts = self._facts()
        report = build_report(summary)
        report = replace(report, leak=_grown_on(report.leak, summary.last_step - summary.leak_step))
        if report.run.end == "killed":
            report = replace(report, killed=self._killed())
        whole = checked_report(to_dict(report))
        assert whole is not None, "it is of this version"
        return whole

    def _take_finding(self, finding: Finding) -> None:
        self.report = checked_report(finding.data.get("report")) if finding.kind == "verdict" else None
        self._summary.tell(finding)

    def _take_sample(self, sample: Sample) -> None:
        summary = self._summary
        # Without a user's own, of which a report tells nothing, and what no machine has
        values = {name: value for name, value in sample.values.items() if is_known(name) and abs(value) <= MOST}
        steps, since_s = max(0, sample.step - summary.last_step), sample.time_s - summary.latest_s
        summary.add(sample._replace(values=values))
        own_s = values.get("step/self_s", 0.0)
        summary.self_s += own_s
        summary.add_step_cost(own_s, max(0.0, since_s), steps)
        for what, (time_name, _) in BOOKED.items():
            if time_name in values:
                rows = {row.what: row for row in summary.told.ledger}
                rows[what] = booked(rows.get(what) or LedgerRow(what=what), values)
                summary.told = replace(summary.told, ledger=tuple(rows.values()))

    def _facts(self) -> RunFacts:
        process, ring = self.process, self._ring
        end = ring.state.end if ring is not None and ring.state.end != "running" else None
        if end is None and process.pid and is_process_running(process.pid, process.host, process.process) is False:
            end = "killed"
        return RunFacts(
            header=process,
            wall_s=max(0.0, self._summary.latest_s - process.started_s) if process.started_s else 0.0,
            end=end,
            error=next((one.text or None for one in ring.findings if one.kind == ERROR), None) if ring else None,
            devices=dict(devices_by_shares(self._summary)),
            settings=self._summary.facts.settings,
        )

    def _killed(self) -> KilledReport:
        """What is known about the end of a process that recorded none."""
        latest, ring, growth = self._summary.latest, self._ring, self._summary.growth
        counter = checked(_Kills, self.process.kills) if ring is not None else None
        kills = None if counter is None else kills_since(to_dict(counter))
        named, frac = self.process.limit_bytes, latest.get("host/limit_used_frac")
        left, rss = latest.get("host/available_bytes"), latest.get("host/rss_bytes", 0.0)
        limit = round(left / (1 - frac)) if left is not None and frac is not None and frac < 1 else named
        # Of another limit, or of one that counts addresses, it is not what the report names
        is_named = self.process.limit_kind in WHOSE and (not named or limit <= 1.001 * named)
        phase = ring.state.phase if ring is not None else "other"
        children = latest.get("host/children_pss_bytes")  # in an older log all of them are taken for workers
        told_at, news = self._summary.of_settings  # of a batch that is larger than those before
        is_news = news != "settings" and phase in ("forward", "backward") and told_at == self._summary.last_step
        told = {one.kind: (str(one.data["what"]), one.text) for one in self._summary.findings}  # the last of each
        (rate, _), (held, who) = told.get("grows", ("", "")), told.get("held", ("", ""))
        told_parts = (line.partition(" ") for line in held.splitlines())
        others = max(0.0, children - latest.get("workers/pss_bytes", children)) if children is not None else None
        return KilledReport(
            oom_kill_before=None if counter is None else counter.count,
            oom_kill_after=None if counter is None or kills is None else counter.count + kills,
            step=self._summary.last_step + (phase in STEP_PHASES),  # the one that was being made
            phase=phase,
            used_bytes=int(frac * limit) if frac is not None and is_named else None,
            process_bytes=_whole(rss or None),
            file_bytes=max(0, int(rss - latest.get("host/anon_bytes", rss))),
            workers_bytes=_whole(latest.get("workers/pss_bytes", children)),
            others_bytes=_whole(others),
            num_workers=_whole(latest.get("workers/count")),
            process_bytes_per_step=float(rate) if rate.isdecimal() else growth.of("process"),
            workers_bytes_per_step=growth.of("workers"),
            since_step=growth.since_step,
            why_now=bounded_text(news if is_news else who) or None,
            in_use={part: int(size) for size, _, part in told_parts if size.isdecimal()},
        )


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
