"""The report as plain text of at most 25 lines.

It is made from the report alone, so that a report read from a file gives the same text.
"""

from __future__ import annotations

import os
import re
import shlex
import signal as signals
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar

from forgather_mem.errors import escape_controls, shown
from forgather_mem.reporting import problems
from forgather_mem.reporting.ranks import first_failure_lines
from forgather_mem.reporting.table import parts_sentences, peaks_sentence, places, startup_sentences, table_lines
from forgather_mem.telemetry.report import CleanupCall, Extremes, LedgerRow, RunReport
from forgather_mem.units import GIB, format_bytes, format_duration, format_share

MAX_LINES = 25
_MAX_SWITCHED_OFF = 3
_INDENT = 10
# Of a section, or of what went wrong: words in capitals at the beginning of a line
_LABEL = re.compile(r"^[A-Z]{2,}(?:[ -][A-Z]{2,})*", re.M)
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"

_ACTIONS = {"collect": "collection", "clear": "clear", "trim": "trim"}
_WITHOUT = {"collect": "`gc: null`", "clear": "`clear_cache: null`"}  # in a child of callbacks/memory.yaml


@dataclass(frozen=True, slots=True)
class CostThresholds:
    """From when on a cost is told.

    Attributes:
        share_s: From so long on a run's share of our own cost says something.
        dear_frac: Of the run's time: from so much on calls by other code are told, and pauses of Python's collector.
        as_planned_frac: Of the planned peak: a part that differs by less is as predicted.
    """

    share_s: float = 60.0
    dear_frac: float = 0.01
    as_planned_frac: float = 0.01


_COSTS = CostThresholds()

T = TypeVar("T")


def report_text(report: RunReport, width: int = 80, color: bool = False) -> str:
    """The report for a terminal: at most 25 lines of `width` columns; only a long path makes a line longer.

    Problems come first. What follows is the same however the run ended, but for one that ran out of memory.

    Args:
        report: The report.
        width: Number of columns.
        color: Highlight the section names with terminal codes.
    """
    report = with_texts(report, escape_controls)  # so that no name begins a line of its own
    most = MAX_LINES - 2
    text = shown("\n".join([_head(report, width), *_body(report, width, most)[:most], "=" * width]))
    return _LABEL.sub(rf"{_BOLD}\g<0>{_PLAIN}", text) if color else text


def with_texts(value: T, change: Callable[[str], str]) -> T:
    """A report, a part of it or plain data, with each name and text in it replaced by what `change` makes of it.

    Of a list of numbers, which may be long, only the first is looked at.
    """
    made: object = value
    if isinstance(value, str):
        made = change(value)
    elif is_dataclass(value) and not isinstance(value, type):
        made = replace(value, **{one.name: with_texts(getattr(value, one.name), change) for one in fields(value)})
    elif isinstance(value, Mapping):
        made = {with_texts(key, change): with_texts(part, change) for key, part in value.items()}
    elif isinstance(value, list | tuple) and not isinstance(next(iter(value), None), int | float | None):
        made = type(value)(with_texts(part, change) for part in value)
    return made  # type: ignore[return-value]  # a part of the same type


def tensorboard_command(event_folder: str) -> str:
    """The command that shows the page; a folder below the current one is given as a relative path.

    >>> tensorboard_command("/data/my runs")
    "tensorboard --logdir '/data/my runs'"
    """
    return f"tensorboard --logdir {shlex.quote(path_from_here(event_folder))}"


def report_command(folder: str) -> str:
    """The command that shows this run's report again, for the shell that the process was started from."""
    return f"forgather-mem report {shlex.quote(path_from_here(folder))}"


def path_from_here(path: str) -> str:
    """A path below the current folder, relative to it; as it is where the shell may be in another folder.

    The shell has its folder in `PWD`: not that of a process that has changed its own, or was started elsewhere.
    """
    relative, shell = os.path.relpath(path), os.environ.get("PWD")
    is_there = shell is None or os.path.realpath(shell) == os.path.realpath(".")
    return relative if is_there and not relative.startswith("..") else os.path.abspath(path)


def _body(report: RunReport, width: int, most: int) -> list[str]:
    if _is_of_nothing(report):
        return [line for why in report.switched_off for line in textwrap.wrap(f"{why}.", width)]
    if is_plan(report):
        return _section("PLAN", planned_sentences(report), width)
    if report.oom is not None:
        foretold = _each("Foretold at ", report.foretold, width)
        return _with_end(report, [*problems.oom_lines(report, report.oom, width), *foretold], most)
    first, killed = report.first_failure, report.killed
    before = first_failure_lines(report, first, width) if first is not None else []
    if killed is not None and not (before and problems.was_interrupted(killed)):
        before += problems.killed_lines(report, killed, width)
    if killed is not None and problems.was_killed_for_memory(killed, report.host):
        return _with_end(report, [*before, *_section("RANKS", _ranks(report), width)], most)
    return _whole(report, width, most, before)


def _is_of_nothing(report: RunReport) -> bool:
    """Whether nobody has watched: see `Report.of_nothing`."""
    seen = report.run.end is not None or report.steps or any(True for _ in places(report))
    return not seen and bool(report.switched_off)


def is_plan(report: RunReport) -> bool:
    """Whether nothing has been run."""
    return report.planned is not None and not (report.steps or report.host.rss_peak_bytes)


def _error(report: RunReport, width: int) -> list[str]:
    """The exception that ended the run, `SystemExit` among them, and the user's line that it came through."""
    run = report.run
    if run.error is None or not (run.end == "exception" or run.error.startswith("SystemExit")):
        return []
    at = f"At {run.error_line}: " if run.error_line else ""
    return textwrap.wrap(f"{at}{run.error}", width, subsequent_indent="  ", max_lines=3, placeholder=" ...")


def _each(before: str, told: Iterable[str], width: int) -> list[str]:
    """Of what was told while it ran: what came early, whatever came of it, or is no longer so."""
    return [line for said in told for line in textwrap.wrap(f"{before}{said}.", width)]


def _whole(report: RunReport, width: int, most: int, before: Sequence[str]) -> list[str]:
    room, off = most - len(_end(report)), report.switched_off
    leaks, run = report.leak.verdict == "leak", report.run
    # A process that only told of itself when it ended has cost nothing
    trained = report.steps or run.end is None or (run.end != "finished" and report.overhead.seconds)
    for lines_a_text in (4, 2, 1):  # shorten if there is too much to report
        lines = [*before, *(problems.leak_lines(report, width) if leaks else ())]
        lines += [*(_error(report, width) if not before else ()), *_each("Foretold at ", report.foretold, width)]
        if not trained:
            lines.append("No training step was seen; these numbers are for the whole process.")
        if not leaks:
            lines += textwrap.wrap(f"{peaks_sentence(report)} {problems.no_leak_sentence(report)}".strip(), width)
        lines += _each("Taken back: ", report.leak.taken_back, width)
        lines += [line for hint in report.hints for line in textwrap.wrap(hint, width)]
        lines += table_lines(report)
        lines += _section("STARTUP", startup_sentences(report), width)
        lines += _section("RANKS", _ranks(report), width)
        if not leaks:
            lines += _section("PARTS", parts_sentences(report), width, lines_a_text)
        lines += _section("PLAN", planned_sentences(report), width)
        lines += _section("CLEAN-UP", cleanup_sentences(report), width, lines_a_text)
        if trained:
            lines += _section("OWN COST", [own_sentence(report)], width)
        more = [f"also: {len(off) - _MAX_SWITCHED_OFF} more, see the JSON"] if len(off) > _MAX_SWITCHED_OFF else []
        lines += _section("OFF", [*off[:_MAX_SWITCHED_OFF], *more], width, lines_a_text)
        if len(lines) <= room:
            break
    return _with_end(report, lines, most)


def _head(report: RunReport, width: int) -> str:
    ending = _ending(report)
    room, script = width - len(f"== forgather-mem ==  == {ending} ="), problems.script_name(report)
    if len(script) > room:
        script = script[: max(1, room - 3)] + "..."
    return f"== forgather-mem == {script} == {ending} ".ljust(width, "=")


def time_taken(report: RunReport) -> str:
    """How long the training took; without a step in it, the command."""
    return format_duration(report.run.wall_s + (0.0 if report.steps else report.run.startup_s))


def _ending(report: RunReport) -> str:
    if _is_of_nothing(report):
        return "not watched"
    if is_plan(report):
        return "planned, not run"
    run, steps = report.run, report.steps
    done = f"{steps:,} step{'s' * (steps != 1)} in " if steps else ""  # not every script has steps
    took = time_taken(report)
    if run.end == "finished":
        return f"{done}{took}" if run.exit_code is None else f"{done}{took}, exit {run.exit_code}"
    if run.end is None:
        of_curves = run.event_folder and not run.script  # which don't tell whether there was an end
        return f"{done}{took}" if of_curves else f"{done}{took} so far"
    number = None if report.killed is None else report.killed.signal
    code = run.exit_code
    if run.end == "interrupted" and code is not None and code < 128 and not number:  # sys.exit during the training
        return f"ended after {done}{took}, exit {code}"
    if run.end == "interrupted" and number not in (None, signals.SIGINT):
        return f"ended by {problems.signal_name(number)} after {done}{took}"
    word = "crashed" if number in problems.CRASHES else "killed"
    died = f"{word} ({problems.signal_name(number)})" if number else "ended"
    how = {"oom": "out of memory", "killed": died}
    return f"{how.get(run.end, run.end)} after {done}{took}"


def _ranks(report: RunReport) -> Iterator[str]:
    """How far the ranks are apart, and which left no files."""
    spread = report.spread
    if report.ranks is None or spread is None:
        return
    used, reserved = spread.device_peak_bytes, spread.device_reserved_bytes
    sizes = (("host", spread.host_peak_bytes), ("GPU used", used), ("GPU reserved", reserved))
    told = [_extremes(label, peaks) for label, peaks in sizes if peaks.max] or ["none measured"]
    told = told if len(report.ranks) > 2 else ["; ".join(told)]
    yield f"{len(report.ranks)} of {report.run.world_size}, peaks: {told[0]}"
    yield from told[1:]
    if spread.host_sum_bytes:
        limit = f" of {report.host.limit_bytes / GIB:,.1f}" if report.host.limit_bytes else ""
        yield f"on one host, all ranks together: at most {spread.host_sum_bytes / GIB:,.1f}{limit} GiB"
    if missing := report.missing_ranks:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        yield f"no files from rank{'s' * (len(missing) != 1)} {shown}"


def _extremes(label: str, peaks: Extremes) -> str:
    """From the lowest to the highest peak, with their ranks, and the one in the middle."""
    decimals = 1 if peaks.max >= 10 * GIB else 2
    low, high = (f"{size / GIB:,.{decimals}f}" for size in (peaks.min, peaks.max))
    if low == high:
        return f"{label} {high} GiB each"
    text = f"{label} {low} to {high} GiB, most on rank {peaks.argmax}"
    if peaks.median is not None:
        text += f", median {peaks.median / GIB:,.{decimals}f} on {peaks.argmedian}, least on {peaks.argmin}"
    return text


def _with_end(report: RunReport, lines: Sequence[str], most: int) -> list[str]:
    """As many of these lines as leave room for the commands below them."""
    end = _end(report)
    return [*lines[: most - len(end)], *end]


def _end(report: RunReport) -> list[str]:
    """Commands for more information; each can be pasted unchanged."""
    known = ((report_command, report.run.folder), (tensorboard_command, report.run.event_folder))
    commands = [command(folder) for command, folder in known if folder]
    return ["", *commands] if commands else []


def _section(label: str, texts: Iterable[str], width: int, lines_a_text: int = 2) -> list[str]:
    """The texts one below the other, at most `lines_a_text` lines each, with the label before the first."""
    lines: list[str] = []
    for text in texts:
        wrapped = textwrap.wrap(text, width - _INDENT, max_lines=lines_a_text, placeholder=" ...") or [""]
        lines += [f"{'' if lines else label:<{_INDENT}}{wrapped[0]}", *(" " * _INDENT + line for line in wrapped[1:])]
    return lines


def cleanup_sentences(report: RunReport) -> Iterator[str]:
    """Expensive calls of the script and its libraries, Python's collector, and our own actions."""
    wall_s = report.run.wall_s
    # Lines that exceeded their budget, most expensive first; our own calls are in the ledger
    least_s = _COSTS.dear_frac * wall_s
    rows = [row for row in report.cleanup_calls if row.whose != "us" and row.seconds > least_s > 0]
    dear = sorted(rows, key=lambda row: -row.seconds)
    yield from (_call(row, wall_s) for row in dear)
    count, pause_s = report.gc.collections, report.gc.pause_total_s
    told_s = sum(row.seconds for row in dear if row.what == "gc.collect")
    told_s += sum(row.time_s for row in report.ledger if row.what == "collect")
    if count and pause_s - told_s > least_s:
        share = f" ({format_share(pause_s / wall_s)} of the run)" if wall_s else ""
        told = f"{count:,} full collection{'s' * (count > 1)}, all pauses {format_duration(pause_s)}{share}"
        yield f"Python's collector: {told}, the longest {format_duration(report.gc.pause_max_s)}."
    yield from map(_given_back, report.ledger)


def planned_sentences(report: RunReport) -> Iterator[str]:
    """What a plan said of the peak, and what it was; of parts only those that were something else."""
    plan = report.planned
    if plan is None:
        return
    text = f"predicted {format_bytes(plan.planned_bytes)} of tensors at the peak ({plan.phase})"
    if plan.measured_bytes is not None:
        off = f" ({100 * (plan.measured_bytes / plan.planned_bytes - 1):+.1f} %)" if plan.planned_bytes else ""
        text += f", was {format_bytes(plan.measured_bytes)}{off}"
    least_bytes = _COSTS.as_planned_frac * plan.planned_bytes
    others = [part for part in plan.parts if abs(part.measured_bytes - part.planned_bytes) > least_bytes]
    for part in others:
        text += f"; {part.name} {format_bytes(part.planned_bytes)}, was {format_bytes(part.measured_bytes)}"
    if plan.parts and not others:
        text += "; " + ", ".join(part.name for part in plan.parts) + " as predicted"
    yield text


def own_sentence(report: RunReport) -> str:
    """What watching cost; what we were asked to collect and clear stands apart. Shares are for longer runs."""
    ours = report.overhead
    once = f"{format_duration(ours.once_s if ours.step_s else ours.seconds)}"
    once += f" and {format_bytes(ours.once_bytes)}" if ours.once_bytes else ""
    of = f" of {format_duration(ours.step_s / ours.share_of_step)}" if ours.share_of_step else ""
    text = f"{format_duration(ours.step_s)} in each step{of}, {once} once" if ours.step_s else once
    wall_s = report.run.wall_s
    whole = f"{format_duration(ours.seconds)} in all, startup included" if ours.step_s else ""
    whole = f"{format_share(ours.seconds / wall_s)} of the run" if wall_s >= _COSTS.share_s else whole
    return "; ".join(filter(None, [text, whole]))


def _call(row: CleanupCall, wall_s: float) -> str:
    where = f"{row.file}:{row.line}" + (" (a library)" if row.whose == "library" else "")
    calls = f"{row.calls:,} call{'s' * (row.calls != 1)}"
    cost = f"{format_duration(row.seconds)} ({format_share(row.seconds / wall_s)} of the run)"
    freed = format_bytes(row.freed_bytes) if row.freed_bytes > 0 else "nothing"
    advice = " Remove it." if row.freed_bytes <= 0 and row.whose == "user" and row.calls > 1 else ""
    return f"{row.what}() at {where}: {calls}, {cost}, freed {freed}.{advice}"


def _given_back(row: LedgerRow) -> str:
    """The cost and yield of our own calls of one kind, and whether they are worthwhile."""
    from forgather_mem.actions.adaptive import KEPT_BYTES, LIMITS  # few runs have such calls

    freed_bytes, retaken_bytes, objects = row.freed_bytes, row.retaken_bytes, row.objects
    cost_s = row.time_s + row.next_step_excess_s
    least_bytes = max(LIMITS.kept_frac * freed_bytes, KEPT_BYTES * row.calls)
    useless = objects < LIMITS.objects * row.calls and freed_bytes - retaken_bytes <= least_bytes
    told = [f"took {format_duration(row.time_s)}"]
    if objects:
        told.append(f"found {objects:,} unreachable objects")
    again = f" ({format_bytes(retaken_bytes)} of it allocated again at once)" * (retaken_bytes > freed_bytes / 2)
    if freed_bytes > 0 or not objects:
        told.append(f"freed {format_bytes(freed_bytes) if freed_bytes > 0 else 'nothing'}{again}")
    calls = f"{row.calls:,} {_ACTIONS[row.what]}s" if row.calls != 1 else _ACTIONS[row.what]
    if useless:
        told[-1] += f": {_WITHOUT.get(row.what, 'leaving them out')} saves {format_duration(cost_s)}"
    return f"our {calls} {', '.join(told[:-1])} and {told[-1]}."
