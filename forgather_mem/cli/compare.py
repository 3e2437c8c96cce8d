"""`forgather-mem compare`: says which change between runs made memory grow."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from forgather_mem.cli.app import complain
from forgather_mem.cli.command import BROKEN, UNDECIDED
from forgather_mem.cli.output import json_text, print_text, write_page
from forgather_mem.cli.parser import CommandParser
from forgather_mem.errors import ForgatherMemError, UsageError, shown
from forgather_mem.units import parse_share

if TYPE_CHECKING:
    from forgather_mem.comparing.comparison import Comparison
    from forgather_mem.telemetry.report import RunReport


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "runs", nargs="*", metavar="A B...",
        help="Folders of runs, their report.json, TensorBoard folders with mem_* tags, or files of plan --json, "
        "of a plan's to_dict() or of run --baseline: each is compared with the first. Several runs of one kind, for "
        "a sure difference, are one argument: a1,a2,a3.",
    )  # fmt: skip
    shown_as = parser.add_mutually_exclusive_group()
    shown_as.add_argument("--json", dest="as_json", action="store_true", help="All numbers, as JSON.")
    shown_as.add_argument("--markdown", action="store_true", help="As Markdown, for a pull request.")
    parser.add_argument("--html", metavar="FILE", type=Path, help="Write a page with all runs to this file.")
    parser.add_argument(
        "--fail-on", metavar="growth:2%",
        help="Exit with 3 if the peak has surely grown by more, or what is counted of the model's parts (parameters, "
        "gradients, optimizer, activations; with and without held) by more of its own sum; with 4 if a run has not "
        "finished or can't be read.",
    )  # fmt: skip


def compare(runs: list[str], as_json: bool, markdown: bool, html: Path | None, fail_on: str | None) -> int:
    """Say which part of memory differs between runs, in which phase, and which setting explains it."""
    from forgather_mem.comparing.comparison import to_json
    from forgather_mem.comparing.text import comparison_markdown, comparison_text
    from forgather_mem.reporting.markdown import markdown_text

    most = _most_growth(fail_on)
    if len(runs) < 2:
        raise UsageError("give two runs or more", "forgather-mem compare BEFORE AFTER")
    try:
        found = _compared(runs, html)
    except ForgatherMemError as error:
        if most is None:
            raise
        complain(str(error), markdown=markdown)
        return UNDECIDED
    code, decision = (0, "") if most is None else _judged(found, most, fail_on)
    if as_json:
        print(json_text([to_json(one) for one in found], indent=1))
    else:
        first = [f"**{markdown_text(decision)}**"] * bool(decision and markdown)
        text = comparison_markdown if markdown else comparison_text
        print_text("\n\n".join([*first, *map(text, found)]))
    if code:
        complain(decision, wrap=True)
    return code


def _compared(runs: list[str], html: Path | None) -> list[Comparison]:
    from forgather_mem.comparing.comparison import comparison_of
    from forgather_mem.comparing.side import Side

    read = [[_read(path) for path in _paths(run)] for run in runs]
    sides = zip(_names(runs), read, strict=True)
    named = [(name + f" and {len(kind) - 1} more" * (len(kind) > 1), kind) for name, kind in sides]
    first, *others = [Side(name=name, reports=[report for report, _ in kind]) for name, kind in named]
    found = [comparison_of(first, other) for other in others]
    if html is not None:
        _write_page(runs, read, found, html)
    return found


def _judged(found: list[Comparison], most: float, fail_on: str | None) -> tuple[int, str]:
    """The exit code, and the decision in a sentence."""
    from forgather_mem.comparing.text import unfinished

    if any(one.growth > most for one in found):
        what, growth = max((row for one in found for row in one.growths.items()), key=lambda row: row[1])
        return BROKEN, f"--fail-on {fail_on}: memory has grown by at least {int(1000 * growth) / 10}% ({what})"
    # Each time of another run would differ; plans and baselines, which have none, may be equal
    same = [one for one in found if one.before.reports == one.after.reports and one.after.first.run.wall_s]
    not_compared = [f"{one.before.name} and {one.after.name} are the same run" for one in same]
    early = [one.after.name for one in found if any(map(unfinished, one.after.reports))]
    not_compared += [f"{', '.join(early)} has not finished: it may have grown later"] * bool(early)
    not_compared += [f"can't tell: {sentence}" for one in found for sentence in one.not_compared]
    if not_compared:
        return UNDECIDED, f"--fail-on {fail_on}: {not_compared[0]}"
    return 0, f"--fail-on {fail_on}: memory has not grown by more"


def _write_page(runs: list[str], read: list[list[tuple[RunReport, Path]]], found: list[Comparison], file: Path) -> None:
    """A page of all runs, `read` with their folders: of each side but the first it is said what differs.

    The first of these is shown.
    """
    from forgather_mem.comparing.text import comparison_text, sentences
    from forgather_mem.page.data import run_data
    from forgather_mem.reporting.text import with_texts

    names, data = iter(_names([path for run in runs for path in _paths(run)])), []
    for kind, one in zip(read, [None, *found], strict=True):
        told = {}
        if one is not None:
            verdict, *more = sentences(one)
            text = comparison_text(one)
            told = {"kind": "compared", "badge": "COMPARED", "verdict": verdict, "more": "; ".join(more), "text": text}
        data += [with_texts(run_data(report, folder, next(names)) | told, shown) for report, folder in kind]
    write_page([*data[len(read[0]) :], *data[: len(read[0])]], file)


def _names(runs: list[str]) -> list[str]:
    """The end of each path, as much of it as tells them apart."""
    paths = [Path(run.split(",")[0].removesuffix("/report.json")).parts or (".",) for run in runs]
    for length in range(1, max(map(len, paths), default=0) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return runs


def _paths(argument: str) -> list[str]:
    """The runs of one kind that an argument names."""
    parts = [part for part in argument.split(",") if part]
    return parts if parts and not Path(argument).exists() else [argument]


def _read(path: str) -> tuple[RunReport, Path]:
    """A report, and the folder with its curves."""
    from forgather_mem.comparing.baseline import Baseline, NoBaseline
    from forgather_mem.reporting.build import report_of_plan
    from forgather_mem.reporting.run_dir import NoRun, report_at

    try:
        return report_at(path)
    except NoRun:
        plan = report_of_plan(path)
        with contextlib.suppress(NoBaseline, IndexError):
            return (plan or Baseline.read(path).trainings[0].as_report()), Path(path).parent
        raise


def _most_growth(fail_on: str | None) -> float | None:
    if fail_on is None:
        return None
    share = math.nan
    with contextlib.suppress(ValueError):
        share = parse_share(fail_on.removeprefix("growth:"))
    # Who writes growth:2 means 2 %, and a limit of 200 % would never be noticed
    if not (fail_on.startswith("growth:") and 0 <= share < (math.inf if fail_on.endswith("%") else 1)):
        raise UsageError(f"--fail-on {fail_on!r} is no limit", "give one like growth:2%")
    return share
