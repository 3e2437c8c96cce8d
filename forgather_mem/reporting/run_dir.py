"""Reads the report of the run in a folder, from the best source that it left there.

Nothing here imports torch: a waiting parent may read a killed run while at the memory limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forgather_mem.errors import ForgatherMemError, did_you_mean, missing, ours
from forgather_mem.formats.jsonl import log_files
from forgather_mem.formats.ring import Ring, read_ring, ring_files
from forgather_mem.reporting.build import FILE_NAME, rank_reports
from forgather_mem.reporting.ranks import NO_WORD, LauncherWord, merge_ranks
from forgather_mem.telemetry.report import KilledReport, RunReport
from forgather_mem.telemetry.report_schema import read_report, to_dict

# As the readers name them: where there is no other, nothing of a run can be read
_OURS = re.compile(r"report(\.rank\d{1,6})?\.json|memory\.rank\d{1,6}\.jsonl(\.\d{1,6})?|ring\.rank\d{1,6}")


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How far a run is searched for; whoever gives the folder may have chosen what is in it.

    Attributes:
        folders: Below the given one, which are looked through.
        looked_at: Files whose dates are asked, or runs that are opened.
        ranks: Of one run.
    """

    folders: int = 20_000
    looked_at: int = 1000
    ranks: int = 4096


_SEARCH = SearchLimits()


class NoRun(ForgatherMemError):
    """A folder contains no run, or does not exist."""


def read_run(folder: str | Path) -> dict[str, Any]:
    """The same as `run_report` as a plain dict, schema 1: what `forgather-mem report --json` prints."""
    return to_dict(run_report(folder))


def run_report(folder: str | Path, word: LauncherWord = NO_WORD) -> RunReport:
    """The report of the run in a folder, over all ranks that have left files.

    For each rank the best source is used: its report, or else its log with its black box. `run.end` is None until the
    run's end is recorded, and "killed" if its process ended without recording it; `killed` then holds what is known
    about its end.

    Args:
        folder: The run's folder; or one above it, whose newest run is used; or a TensorBoard folder with `mem_*` tags.
        word: What the launcher of several ranks has told of their ends.

    Raises:
        NoRun: if there is none.
    """
    place = find_run(folder)
    whole, left_out = read_report(place / FILE_NAME)
    if whole is None:
        whole, wrong = _from_ranks(place, word)
        left_out += wrong
    return replace(whole, left_out=(*left_out, *whole.left_out))


def report_at(path: str | Path) -> tuple[RunReport, Path]:
    """The report that a person has named, by a run's folder or by a report's file, and the folder of the run.

    Raises:
        NoRun: if there is none.
    """
    if not os.path.isfile(path):
        place = find_run(path)
        return run_report(place), place
    report, wrong = read_report(path, follow=True)
    if report is None:
        why = wrong[0].partition(": ")[2]
        raise NoRun(f"{str(path)!r} is no report: {why}\n  give the folder of a run, or its report.json")
    return report, Path(path).parent


def _from_ranks(place: Path, word: LauncherWord) -> tuple[RunReport, list[str]]:
    """The report of all that single ranks have left, and a sentence for what can't be used."""
    written, logs, rings = rank_reports(place), log_files(place), ring_files(place)
    reports: list[RunReport] = []
    left_out: list[str] = []
    for rank in sorted({*written, *logs, *rings})[: _SEARCH.ranks]:
        report, wrong = read_report(written[rank]) if rank in written else (None, [])
        if report is None:
            report = _of_rank(logs.get(rank, []), _ring(rings[rank], wrong) if rank in rings else None, wrong)
        left_out += wrong
        if report is not None:
            left_out += report.left_out
            run = replace(report.run, folder=report.run.folder or str(place))
            reports.append(replace(report, run=run, left_out=()))
    if reports:
        return merge_ranks(reports, word), left_out
    if left_out:
        raise NoRun(f"nothing of the run in {str(place)!r} can be read\n  " + "\n  ".join(left_out))
    from forgather_mem.reporting.from_events import report_of_events  # needs numpy

    return report_of_events(place), left_out


def _of_rank(files: list[Path], ring: Ring | None, wrong: list[str]) -> RunReport | None:
    """The report of one process, see `report_of_log`; what can't be read is added to `wrong`."""
    from forgather_mem.reporting.from_log import report_of_log  # not where the training has written its report

    try:
        return report_of_log(files, ring) if files or ring is not None else None
    except ours(OSError) as error:
        wrong.append(f"{files[-1].name}: {error.strerror or error}")
        return report_of_log((), ring) if ring is not None else None


def _ring(path: Path, wrong: list[str]) -> Ring | None:
    try:
        return read_ring(path)
    except ours(OSError) as error:
        wrong.append(f"{path.name}: {error.strerror or error}")
    except ValueError:  # its process died before writing anything
        wrong.append(f"{path.name}: it is no whole black box")
    return None


def killed_report(report: RunReport, signal: int) -> RunReport:
    """The report of a run that a signal ended, which only its parent knows.

    Args:
        report: As returned by `run_report`.
        signal: The signal's number.
    """
    ended = report.run.end is not None and report.steps > 0
    killed = report.killed or KilledReport(step=report.steps, phase="other", has_trained=ended)
    run = replace(report.run, end="killed", exit_code=128 + signal)
    return replace(report, run=run, killed=replace(killed, signal=signal))


def find_run(folder: str | Path) -> Path:
    """The folder itself if it contains a run, else the newest run below it.

    Raises:
        NoRun: if there is none.
    """
    return find_runs(folder)[0]


def find_runs(folder: str | Path) -> list[Path]:
    """The runs in and below a folder, the newest first: the folder itself if it contains one, else all below it.

    TensorBoard folders count only where there is nothing else, and then the newest with our tags.

    Raises:
        NoRun: if there is none.
    """
    top = Path(os.path.expanduser(folder))
    if not os.path.isdir(top):
        raise NoRun(_no_folder(top))
    runs: list[tuple[float, str]] = []
    events: list[tuple[float, str]] = []
    for number, (place, names) in enumerate(_folders(str(top))):
        if ours := [name for name in names if _OURS.fullmatch(name)]:
            runs.append((_newest(place, ours), place))
        elif theirs := [name for name in names if "tfevents" in name]:
            events.append((_newest(place, theirs), place))
        if number >= _SEARCH.folders or (runs and number == 0):
            break
    if runs:
        return [Path(place) for _, place in sorted(runs, reverse=True)]
    if events:
        from forgather_mem.reporting.from_events import samples_of

        for _, place in sorted(events, reverse=True)[: _SEARCH.looked_at]:
            with missing(OSError):
                if any(samples_of(place)):
                    return [Path(place)]
        raise NoRun(f"the event files below {str(folder)!r} have no tags mem_*: no memory was logged there")
    raise NoRun(
        f"no run was found below {str(folder)!r}: no report, log or event file\n"
        "  a watched training writes them to <output_dir>/forgather_mem, ./forgather_mem or FORGATHER_MEM_DIR"
    )


def _folders(top: str) -> Iterator[tuple[str, list[str]]]:
    """A folder and those below it, each with the names of its files; no link is followed, nor are hidden ones."""
    waiting = [top]  # os.walk calls itself before Python 3.12
    while waiting:
        place, names = waiting.pop(), []
        with missing(OSError), os.scandir(place) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
                elif not entry.name.startswith("."):
                    waiting.append(entry.path)
        yield place, names


def _newest(place: str, names: list[str]) -> float:
    """When one of these files was changed last; of very many, one of the first."""
    newest = 0.0
    for name in names[: _SEARCH.looked_at]:
        with missing(OSError):
            newest = max(newest, os.lstat(os.path.join(place, name)).st_mtime)
    return newest


def _no_folder(top: Path) -> str:
    if os.path.lexists(top):
        return f"{str(top)!r} is a file\n  give the folder of a run, or one above it"
    near = None
    with missing(OSError):
        near = did_you_mean(top.name, [name for name in os.listdir(top.parent) if os.path.isdir(top.parent / name)])
    return f"there is no folder {str(top)!r}\n  {near or 'give the folder of a run, or one above it'}"
