"""The report as plain text of at most 25 lines.

It is made from the report's dict (schema 1), so that a report read from a file gives the same text.
"""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from forgather_mem.errors import escape_controls
from forgather_mem.reporting.costs import (
    cleanup_sentences,
    first_sentences,
    own_sentences,
    own_share,
    parts_sentences,
    rarer_readings,
)
from forgather_mem.reporting.problems import killed_lines, leak_lines, oom_lines, signal_name, was_out_of_memory
from forgather_mem.reporting.table import format_gib, places, table_lines
from forgather_mem.units import GIB, format_bytes, format_duration

MAX_LINES = 25
_MAX_SWITCHED_OFF = 3
_INDENT = 10
_LABELS = (
    "MEMORY", "PARTS", "ROOM", "CLEAN-UP", "OWN COST", "OFF", "RANKS", "LEAK", "OUT OF MEMORY", "WOULD HAVE FIT",
    "KILLED BY THE KERNEL", "MOST LIKELY KILLED", "KILLED", "ENDED",
)  # fmt: skip
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_SPREAD = (("host_peak_bytes", "host"), ("device_peak_bytes", "GPU used"), ("device_reserved_bytes", "GPU reserved"))

Report = Mapping[str, Any]


def report_text(report: Report, width: int = 80, color: bool = False, *, every_suspect: bool = False) -> str:
    """The report for a terminal: at most 25 lines of `width` columns; only a long path makes a line longer.

    Problems come first. A finished run without leaks gets the short form; others get a table of the memory at the
    start, at the end, and the peak.

    Args:
        report: As returned by `forgather_mem.reporting.build.build_report`.
        width: Number of columns.
        color: Highlight the section names with terminal codes.
        every_suspect: Show all suspects of a leak in full, however many lines that takes.
    """
    report = _printable(report)
    most = MAX_LINES - 2
    if every_suspect and report["leak"]["verdict"] == "leak":
        most += len(leak_lines(report, width, every_suspect=True)) - len(leak_lines(report, width))
    body = _body(report, width, most, every_suspect)[:most]
    lines = [_head(report, width), *body, "=" * width]
    return "\n".join(_bold(line) for line in lines) if color else "\n".join(lines)


def _printable(value: Any) -> Any:
    """All names and texts so that they move no cursor, whoever wrote them; here once, for every line below."""
    if isinstance(value, str):
        return value if value.isprintable() else escape_controls(value)
    if isinstance(value, Mapping):
        return {_printable(key): _printable(part) for key, part in value.items()}
    return [_printable(part) for part in value] if isinstance(value, list | tuple) else value


def tensorboard_command(event_folder: str) -> str:
    """The command that shows the page; a folder below the current one is given as a relative path.

    >>> tensorboard_command("/data/my runs")
    "tensorboard --logdir '/data/my runs'"
    """
    return f"tensorboard --logdir {shlex.quote(path_from_here(event_folder))}"


def path_from_here(path: str) -> str:
    """A path below the current folder, as a relative path."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


# ---- the forms ----


def _body(report: Report, width: int, most: int, every_suspect: bool) -> list[str]:
    if _is_of_nothing(report):
        return [line for why in report["switched_off"] for line in textwrap.wrap(f"{why}.", width)]
    if report["oom"] is not None:
        return oom_lines(report, width)
    if report.get("killed"):
        lines = [*killed_lines(report, width), *_section("RANKS", _ranks(report), width)]
        return lines if was_out_of_memory(report["killed"]) else [*lines, *table_lines(report), *_end(report)]
    return _short(report, width) if _all_well(report) else _long(report, width, most, every_suspect)


def _is_of_nothing(report: Report) -> bool:
    """Whether nobody has watched: see `Report.of_nothing`."""
    seen = report["run"]["end"] is not None or report["steps"] or any(True for _ in places(report))
    return not seen and bool(report["switched_off"])


def _all_well(report: Report) -> bool:
    return (
        report["run"]["end"] == "finished"
        and report["run"]["exit_code"] in (None, 0)
        and report["leak"]["verdict"] == "no leak"
        and not report["switched_off"]
    )


def _short(report: Report, width: int) -> list[str]:
    under = format_bytes(report["leak"]["bytes_per_step_high"])
    peaks = [
        f"{place.label.removesuffix(' used')} {format_gib(place.peak_bytes, place.limit_bytes)}"
        f"{f' ({place.whose})' if place.whose else ''} at {place.at}"
        for place in places(report)
        if place.at
    ]
    said = [f"No leak (under {under} a step over {report['steps']:,} steps)."]
    if peaks:
        said.append(f"Peak {'; '.join(peaks)}.")
    said += [f"Room: {room}" for room in _room(report)]
    rarer = len(rarer_readings(report))
    noted = f", {rarer} reading{'s' * (rarer != 1)} sampled less often" if rarer else ""
    said.append(f"Own cost {own_share(report)}{noted}.")
    lines = textwrap.wrap(" ".join(said), width)
    lines += _section("RANKS", _ranks(report), width)
    lines += _section("CLEAN-UP", cleanup_sentences(report, brief=True), width)
    commands = _commands(report)
    together = " | ".join(commands)
    return [*lines, together] if len(commands) > 1 and len(together) <= width else [*lines, *_pointers(report)]


def _no_verdict(report: Report, width: int) -> list[str]:
    """States that it is too early to judge: silence would be read as "no leak"."""
    leak, steps = report["leak"], report["steps"]
    undecided = leak.get("judged") and leak["verdict"] == "not enough data" and steps and not report["oom"]
    if not undecided:
        return []
    lines = [f"Too early to judge leaks ({steps:,} step{'s' * (steps != 1)})."]
    why = leak.get("why")
    return lines + (textwrap.wrap(f"{why[0].upper()}{why[1:]}.", width) if why else [])


def _long(report: Report, width: int, most: int, every_suspect: bool) -> list[str]:
    end = _end(report)
    leaks = report["leak"]["verdict"] == "leak"
    trained = report["steps"] or report["run"]["end"] != "finished"
    for lines_a_text in (4, 2, 1):  # shorten if there is too much to report
        lines = leak_lines(report, width, every_suspect=every_suspect) if leaks else []
        if report["run"]["end"] not in ("finished", None):
            lines.append("The run did not finish; these are its numbers so far.")
        elif not trained:
            lines.append("No Trainer step was seen; these numbers are for the whole process.")
        lines += _no_verdict(report, width)
        lines += table_lines(report)
        lines += _section("RANKS", _ranks(report), width)
        if not leaks:
            lines += _section("PARTS", parts_sentences(report), width)
            lines += _section("ROOM", _room(report), width)
        lines += _section("CLEAN-UP", cleanup_sentences(report, brief=leaks), width, lines_a_text)
        if trained:
            lines += _section("OWN COST", own_sentences(report, brief=leaks), width)
        lines += _section("OFF", first_sentences(report["switched_off"], _MAX_SWITCHED_OFF), width, lines_a_text)
        if len(lines) + len(end) <= most:
            break
    return [*lines[: most - len(end)], *end]


# ---- parts of the forms ----


def _head(report: Report, width: int) -> str:
    ending = _ending(report)
    room = width - len(f"== forgather-mem ==  == {ending} =")
    script = _script(report)
    if len(script) > room:
        script = script[: max(1, room - 3)] + "..."
    return f"== forgather-mem == {script} == {ending} ".ljust(width, "=")


def _ending(report: Report) -> str:
    if _is_of_nothing(report):
        return "not watched"
    run = report["run"]
    steps = report["steps"]
    done = f"{steps:,} step{'s' * (steps != 1)}, " if steps else ""  # not every script has steps
    took = format_duration(run["wall_s"])
    if run["end"] == "finished":
        code = "" if run["exit_code"] is None else f", exit {run['exit_code']}"
        return f"{done}{took}{code}"
    if run["end"] is None:
        return f"{done}{took} so far"
    number = (report.get("killed") or {}).get("signal")
    code = run["exit_code"]
    if run["end"] == "interrupted" and code is not None and code < 128 and not number:  # sys.exit during the training
        return f"interrupted after {done}{took}, exit {code}"
    how = {
        "exception": "exception",
        "oom": "out of memory",
        "killed": f"killed ({signal_name(number)})" if number else "ended",
        "interrupted": "interrupted",
    }
    return f"{how.get(run['end'], run['end'])} after {done}{took}"


def _script(report: Report) -> str:
    folder, name = os.path.split(report["run"]["script"])
    if name == "__main__.py":  # python -m package
        name = os.path.basename(folder)
    return name or "training"


def _room(report: Report) -> list[str]:
    """The batch that would still have fitted, as a sentence."""
    rooms = [advice["text"] for advice in report["advice"] if "per_device_train_batch_size" in advice["set"]]
    return [f"{room}." for room in rooms[:1]]


def _ranks(report: Report) -> Iterator[str]:
    """How far the ranks are apart, and which left no files."""
    if "ranks" not in report:
        return
    told = [_spread(label, report["spread"][size]) for size, label in _SPREAD if report["spread"][size]["max"]]
    yield f"{len(report['ranks'])} of {report['run']['world_size']}, peaks: {'; '.join(told) or 'none measured'}"
    missing = report["missing_ranks"]
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        yield f"no files from rank{'s' * (len(missing) != 1)} {shown}"


def _spread(label: str, spread: Mapping[str, int]) -> str:
    """From the lowest to the highest peak, with the rank of the highest."""
    decimals = 1 if spread["max"] >= 10 * GIB else 2
    low, high = (f"{spread[end] / GIB:,.{decimals}f}" for end in ("min", "max"))
    return (
        f"{label} {high} GiB each" if low == high else f"{label} {low} to {high} GiB, most on rank {spread['argmax']}"
    )


def _commands(report: Report) -> list[str]:
    run = report["run"]
    commands = []
    if run.get("folder"):
        commands.append(f"forgather-mem report {shlex.quote(path_from_here(run['folder']))}")
    if run.get("event_folder"):
        commands.append(tensorboard_command(run["event_folder"]))
    return commands


def _pointers(report: Report) -> list[str]:
    """Commands for more information; each can be pasted unchanged."""
    notes = {"forgather-mem": "all numbers; --json", "tensorboard": "tags mem_*"}
    lines = []
    for command in _commands(report):
        note = notes[command.split()[0]]
        lines.append(f"{command:<44} {note}" if len(command) < 44 else command)
    return lines


def _end(report: Report) -> list[str]:
    pointers = _pointers(report)
    return ["", *pointers] if pointers else []


def _section(label: str, texts: Iterable[str], width: int, lines_a_text: int = 2) -> list[str]:
    """The texts one below the other, at most `lines_a_text` lines each, with the label before the first."""
    lines: list[str] = []
    for text in texts:
        wrapped = textwrap.wrap(text, width - _INDENT, max_lines=lines_a_text, placeholder=" ...") or [""]
        lines += [f"{'' if lines else label:<{_INDENT}}{wrapped[0]}", *(" " * _INDENT + line for line in wrapped[1:])]
    return lines


def _bold(line: str) -> str:
    label = next((label for label in _LABELS if line.startswith(label)), None)
    return f"{_BOLD}{label}{_PLAIN}{line[len(label) :]}" if label else line
