"""What did one process of a run come to, going by its log and its black box?

A run that was closed left its whole report in its log. One that was not, because it is going on or was killed,
is added up from its records, one at a time: memory stays the same however long it was.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from forgather_mem.cgroups import kills_since
from forgather_mem.formats.jsonl import Header, LogReader, last_record
from forgather_mem.formats.ring import Ring
from forgather_mem.report import build_report
from forgather_mem.run_growth import Growth
from forgather_mem.sample import Finding, Sample
from forgather_mem.summary import RunFacts, RunSummary

# What our own actions tell in a sample: time and size.
_BOOKED = {
    "collect": ("collect/time_s", "collect/freed_bytes"),
    "clear": ("cache/time_s", "cache/freed_bytes"),
    "trim": ("trim/time_s", "trim/freed_bytes"),
}


def report_of_log(files: Iterable[Path], ring: Ring | None = None) -> dict[str, Any]:
    """The report of one process from its log (which may have no file) and its black box.

    Of a log that was not closed some things are not known and stay 0: what our own actions made the next steps
    cost, and how much of what they freed was taken again.

    Raises:
        OSError: a file can't be read.
    """
    paths, told = list(files), _Told()
    closing = _report_in(last_record(paths[-1])) if paths else None
    if closing is not None:
        return closing
    for record in LogReader(*paths):
        told.take(record)
    if told.report is not None:
        return told.report
    if ring is not None and told.header.get("pid") in (None, ring.header.get("pid")):
        told.take_ring(ring)
    return told.build()


def is_running(pid: int, host: str, began_s: float) -> bool | None:
    """Whether the process that began to write then is still there; None when this machine can't know.

    >>> is_running(os.getpid(), socket.gethostname(), time.time())
    True
    """
    if host != socket.gethostname() or not os.path.isdir("/proc/self"):
        return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat, open("/proc/uptime") as uptime:
            # proc_pid_stat(5): field 22, of which two stand before the closing parenthesis; 3 is the state
            fields = stat.read().rpartition(b")")[2].split()
            age_s = float(uptime.read().split()[0]) - int(fields[22 - 3]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return False
    return fields[0] != b"Z" and time.time() - age_s < began_s + 2.0  # numbers are used again


class _Told:
    """What the records of one process have told so far.

    Attributes:
        header: What the process said of itself.
        report: The whole report, when the run was closed.
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
        """One record of the log; another process's header begins anew."""
        if isinstance(record, Sample):
            self._take_sample(record)
        elif isinstance(record, Finding):
            self._summary.tell(record)
            self.report = _report_in(record)
        elif record.data.get("pid") != self.header.get("pid"):  # the same in a file that was begun anew for its size
            self._begin(record.data)

    def take_ring(self, ring: Ring) -> None:
        """What the black box knows and the log does not."""
        self._ring = ring
        self.header = {**ring.header, "time_s": ring.header.get("started_s", 0.0), **self.header}
        if self._last_step < 0:
            self._summary.begin(int(ring.header.get("step", 0)))
            for finding in ring.findings:
                self._summary.tell(finding)
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

    def _take_sample(self, sample: Sample) -> None:
        values = sample.values
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
        if end is None and "pid" in header and is_running(header["pid"], header.get("host", ""), started_s) is False:
            end = "killed"
        return RunFacts(
            script=str(header.get("script", "")),
            argv=[str(argument) for argument in header.get("argv", ())],
            rank=int(header.get("rank", 0)),
            world_size=int(header.get("world_size", 1)),
            versions=dict(header.get("versions", {})),
            started_s=started_s,
            wall_s=max(0.0, self._last_s - started_s) if started_s else 0.0,
            end=end,
            host_limit_bytes=int(header.get("limit_bytes") or self._limit_bytes),
            host_limit_kind=str(header.get("limit_kind") or "host"),
            device_total_bytes=self._device_total_bytes,
        )

    def _killed(self) -> dict[str, Any]:
        """What is known of the end of a process that wrote none."""
        latest, ring = self._summary.latest, self._ring
        workers = latest.get("host/children_pss_bytes")
        counter = ring.header.get("kills") or {} if ring is not None else {}
        kills = kills_since(counter) if counter else None
        used_frac = latest.get("host/limit_used_frac")
        return {
            "signal": None,
            "oom_kill_before": counter.get("count"),
            "oom_kill_after": None if kills is None else counter["count"] + kills,
            "step": self._summary.last_step,
            "phase": ring.state.phase if ring is not None else "other",
            "used_bytes": int(used_frac * self._limit_bytes) if used_frac is not None else None,
            "process_bytes": _whole(latest.get("host/rss_bytes")),
            "workers_bytes": _whole(workers),
            "num_workers": _whole(latest.get("workers/count")),
            **self._growth.as_dict(),
        }


def _report_in(record: object) -> dict[str, Any] | None:
    """The whole report, when this is the finding that closes a run."""
    if not isinstance(record, Finding) or record.kind != "verdict":
        return None
    report = record.data.get("report")
    return report if isinstance(report, dict) and report.get("schema") == 1 else None


def _row(what: str) -> dict[str, Any]:
    row = {"what": what, "calls": 0, "time_s": 0.0, "next_step_excess_s": 0.0, "freed_bytes": 0, "retaken_bytes": 0}
    return {**row, "objects": 0}


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
