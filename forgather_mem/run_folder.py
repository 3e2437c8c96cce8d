"""What did the run in this folder come to? Its report, from the best of what it left there.

Nothing here imports torch: a waiting parent reads a killed run at the memory limit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forgather_mem.errors import ForgatherMemError, did_you_mean
from forgather_mem.formats.jsonl import log_files
from forgather_mem.formats.ring import Ring, read_ring, ring_files
from forgather_mem.report import FILE_NAME, rank_reports
from forgather_mem.run_log import report_of_log
from forgather_mem.run_ranks import merge_ranks

__all__ = ["NoRun", "find_run", "killed_report", "merge_ranks", "read_run"]

# Below a folder at most so many others are looked through.
_MAX_FOLDERS = 20_000


class NoRun(ForgatherMemError):
    """A folder has nothing of a run in it, or does not exist."""


def read_run(folder: str | Path) -> dict[str, Any]:
    """The report (schema 1) of the run in a folder, over all ranks that have left something.

    Of each rank the best source counts: its report, else its log with its black box. `run.end` is None while
    nobody has written how the run ended, and "killed" when its process has gone without a word; `killed` then
    says what is known of its end.

    Args:
        folder: The run's folder; or one above it, and then the newest run counts; or a TensorBoard folder with
            `mem_*` tags.

    Raises:
        NoRun: when there is none.
    """
    place = find_run(folder)
    whole = _read_report(place / FILE_NAME)
    if whole is not None:
        return whole
    written = {rank: report for rank, path in rank_reports(place).items() if (report := _read_report(path))}
    logs, rings = log_files(place), _rings(place)
    reports = [
        written.get(rank) or report_of_log(logs.get(rank, ()), rings.get(rank))
        for rank in sorted({*written, *logs, *rings})
    ]
    if not reports:
        from forgather_mem.run_series import report_of_events  # it needs numpy

        return report_of_events(place)
    for report in reports:
        report["run"]["folder"] = report["run"].get("folder") or str(place)
    return merge_ranks(reports)


def killed_report(report: Mapping[str, Any], signal: int) -> dict[str, Any]:
    """The report of a run that a signal ended, which only its parent knows.

    Args:
        report: As `read_run` gives it.
        signal: The signal's number.
    """
    known = {
        "step": report["steps"], "phase": "other", "oom_kill_before": None, "oom_kill_after": None,
        "used_bytes": None, "process_bytes": None, "workers_bytes": None, "num_workers": None,
        "process_bytes_per_step": None, "workers_bytes_per_step": None, "since_step": None,
    }  # fmt: skip
    run = {**report["run"], "end": "killed", "exit_code": 128 + signal}
    return {**report, "run": run, "killed": {**known, **(report.get("killed") or {}), "signal": signal}}


def find_run(folder: str | Path) -> Path:
    """The folder itself if a run has left something there, else the newest below it.

    Raises:
        NoRun: when there is none.
    """
    top = Path(folder).expanduser()
    if not top.is_dir():
        raise NoRun(_no_folder(top))
    runs: list[tuple[float, Path]] = []
    events: list[tuple[float, Path]] = []
    for number, (name, below, names) in enumerate(os.walk(top)):
        place = Path(name)
        below[:] = [folder_name for folder_name in below if not folder_name.startswith(".")]
        if ours := [name for name in names if _is_ours(name)]:
            runs.append((_newest(place, ours), place))
        elif theirs := [name for name in names if "tfevents" in name]:
            events.append((_newest(place, theirs), place))
        if number >= _MAX_FOLDERS or (runs and place == top):
            break
    if runs:
        return max(runs)[1]
    if events:
        from forgather_mem.run_series import has_memory_tags

        for _, place in sorted(events, reverse=True):
            if has_memory_tags(place):
                return place
        raise NoRun(f"the event files below {str(folder)!r} have no tags mem_*: nobody logged memory there")
    raise NoRun(
        f"there is nothing of a run below {str(folder)!r}: no report, log or event file\n"
        "  a training that is watched leaves them in <output_dir>/forgather_mem, or in FORGATHER_MEM_DIR"
    )


def _is_ours(name: str) -> bool:
    return (name.startswith("report.") and name.endswith(".json")) or name.startswith(("memory.rank", "ring.rank"))


def _newest(place: Path, names: list[str]) -> float:
    return max(((place / name).stat().st_mtime for name in names if (place / name).exists()), default=0.0)


def _no_folder(top: Path) -> str:
    if top.exists():
        return f"{str(top)!r} is a file\n  give the folder of a run, or one above it"
    above = top.parent
    near = did_you_mean(top.name, (entry.name for entry in above.iterdir())) if above.is_dir() else None
    return f"there is no folder {str(top)!r}\n  {near or 'give the folder of a run, or one above it'}"


def _read_report(path: Path) -> dict[str, Any] | None:
    """None for what is no report: missing, cut off, or something else of this name."""
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) and report.get("schema") == 1 and "run" in report else None


def _rings(place: Path) -> dict[int, Ring]:
    rings = {}
    for rank, path in ring_files(place).items():
        try:
            rings[rank] = read_ring(path)
        except (OSError, ValueError):  # died before it had written anything
            continue
    return rings
