"""What does the parent say and leave behind when the command has ended?"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forgather_mem import session
from forgather_mem.errors import ForgatherMemError
from forgather_mem.fence import Fence
from forgather_mem.formats.ring import read_ring
from forgather_mem.launch.arguments import Arguments, Command
from forgather_mem.launch.last_error import add_last_error
from forgather_mem.launch.waiting import Ended
from forgather_mem.report import build_report, write_report
from forgather_mem.report_table import format_place
from forgather_mem.report_text import report_text
from forgather_mem.run_folder import killed_report, read_run
from forgather_mem.summary import RunSummary
from forgather_mem.units import format_bytes, parse_bytes

# Somebody asked the command to end; other signals kill.
_ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def tell_outcome(folder: str, arguments: Arguments, command: Command, ended: Ended) -> bool:
    """Write the reports of all trainings, print the last one's, and look at the limits that the user set.

    A failure of ours is logged, and counts as no broken limit.

    Returns:
        Whether a limit is broken.
    """
    return bool(Fence().call("run", _tell, folder, arguments, command, ended))


def _tell(folder: str, arguments: Arguments, command: Command, ended: Ended) -> bool:
    trainings = session.registered(folder)
    reports = [_finished(Path(place), command, ended, place == trainings[-1]) for place in trainings]
    if not trainings:
        reports = [_finished(Path(folder), command, ended, True)]
        _seen_from_outside(reports[0], Path(folder), ended)
    if ended.code != 0:
        reports[-1] = add_last_error(reports[-1], folder)
    for report in reports:
        with contextlib.suppress(OSError):
            write_report(report, report["run"]["folder"])
    if arguments.report is not None:
        Path(arguments.report).write_text(json.dumps(reports[-1], indent=1) + "\n")
    _print(report_text(reports[-1], color=sys.stderr.isatty()))
    if len(reports) > 1:
        _print(f"forgather-mem: this was the last of {len(reports)} trainings; the one before it:")
        _print(f"  forgather-mem report {shlex.quote(os.path.relpath(reports[-2]['run']['folder']))}")
    if trainings:
        _remove(folder)
    broken = list(_broken_limits(reports, arguments))
    for sentence in broken or _limits_not_judged(reports, arguments):
        _print(f"forgather-mem: {sentence}")
    return bool(broken)


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _finished(folder: Path, command: Command, ended: Ended, last: bool) -> dict[str, Any]:
    """The report of the run in this folder, with what only the parent knows: how the command ended."""
    try:
        report = read_run(folder)
    except ForgatherMemError:  # the disk took nothing
        report = build_report(RunSummary())
    run = report["run"]
    run["folder"] = str(folder)  # the command's own name for it counts from a folder that it may have left
    if not run["script"]:
        run["script"], run["argv"] = command.script, list(command.arguments)
    if last and ended.signal is not None:
        report = killed_report(report, ended.signal)
        if ended.signal in _ASKED:
            report["run"]["end"] = "interrupted"
    elif ended.signal is None:
        run["exit_code"] = ended.code
        if run["end"] == "killed" and command.is_python:  # it has left by os._exit, in the middle of its training
            run["end"], report["killed"] = "interrupted", None
    return report


def _seen_from_outside(report: dict[str, Any], folder: Path, ended: Ended) -> None:
    """Of a command without a training: what the parent saw of it from its start to its end."""
    report["run"]["wall_s"] = ended.wall_s
    report["peaks"] = []  # they tell of steps
    host = report["host"]
    with contextlib.suppress(OSError, ValueError):
        sizes = [
            sample.values.get("host/rss_bytes", 0.0) for sample in read_ring(folder / session.WAITING_RING).samples
        ]
        host["rss_start_bytes"] = int(sizes[0]) if sizes else host["rss_start_bytes"]
    host["rss_peak_bytes"] = host["rss_peak_bytes"] or ended.peak_bytes
    if not host["limit_bytes"]:
        from forgather_mem.probes.limits import MemoryLimit  # with all probes: 20 ms that a training does not need

        with contextlib.suppress(OSError, KeyError):
            limit = MemoryLimit()
            host["limit_bytes"], host["limit_kind"] = limit.limit_bytes, limit.kind
            limit.close()


def _broken_limits(reports: Sequence[Mapping[str, Any]], arguments: Arguments) -> Iterator[str]:
    """One sentence for each limit of the command line that a training broke."""
    if "leak" in arguments.fail_on and any(report["leak"]["verdict"] == "leak" for report in reports):
        yield "there is a leak, and --fail-on leak was asked for"
    for where, size in arguments.max_peaks:
        found = [peak for report in reports for peak in _peaks(report, where)]
        if max(found, default=0) > parse_bytes(size):
            yield f"the peak of {format_place(where)} was {format_bytes(max(found))}, over --max-peak {where}={size}"


def _limits_not_judged(reports: Sequence[Mapping[str, Any]], arguments: Arguments) -> Iterator[str]:
    """One sentence for each limit that nothing was read for: a misspelt number, or a device that was not used."""
    for where, size in arguments.max_peaks:
        if not any(_peaks(report, where) for report in reports):
            yield f"--max-peak {where}={size}: nothing was read of {format_place(where)}, so nothing was over it"


def _peaks(report: Mapping[str, Any], where: str) -> list[int]:
    if where == "host":
        return [report["host"]["rss_peak_bytes"]]
    return [device["peak_allocated_bytes"] for device in report["device"] if f"gpu{device.get('index', 0)}" == where]


def _remove(folder: str) -> None:
    """Take away the folder that no training needed, and the one above it where it is empty now."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name in (session.TRAININGS, session.WAITING_RING) or name.startswith(("report.", "oom.")):
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
        os.rmdir(os.path.dirname(folder))
