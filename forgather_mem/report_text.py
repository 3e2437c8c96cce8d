"""How does a person read a report? As at most 25 lines of plain text.

They are made from the report's dict (schema 1), so that a report read from a file gives the same text.
"""

from __future__ import annotations

import math
import os
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from forgather_mem.errors import escape_controls
from forgather_mem.sample import OWN_BUDGET_FRAC
from forgather_mem.units import GIB, format_bytes, format_duration, format_share

MAX_LINES = 25
_MAX_SWITCHED_OFF = 3
# In fewer steps a single dear reading weighs too much to say anything about the others.
_STEADY_STEPS = 100
# Of our own collections, clears and trims: from how many on they are judged, the share of what they freed that
# must stay free, and the share of the run's time that is worth a word.
_ENOUGH_CALLS = 3
_KEPT_FRAC = 0.2
_WORTH_TELLING = 0.002
_INDENT = 10
_LIMIT_KIND = {"cgroup": "container", "host": "machine"}
_LABELS = ("MEMORY", "PARTS", "CLEAN-UP", "OURSELVES", "OFF")
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def report_text(report: Mapping[str, Any], width: int = 80, color: bool = False) -> str:
    """The report for a terminal: at most 25 lines of `width` columns; only a long path makes a line longer.

    A run that finished and was found free of leaks gets the short form; otherwise a table of what was used
    at the start, at the end and at most stands in for that verdict.

    Args:
        report: As `forgather_mem.report.build_report` gives it.
        width: Columns.
        color: Set off the section names with terminal codes.
    """
    body = _short(report, width) if _all_well(report) else _long(report, width)
    lines = [_head(report, width), *body[: MAX_LINES - 2], "=" * width]
    return "\n".join(_bold(line) for line in lines) if color else "\n".join(lines)


def format_place(where: str) -> str:
    """A place as people call it.

    >>> format_place("gpu0"), format_place("host")
    ('GPU 0', 'host')
    """
    return f"GPU {where[3:]}" if where.startswith("gpu") else where


def format_peak(peak: Mapping[str, Any]) -> str:
    """When a peak was.

    >>> format_peak({"step": 1998, "phase": "backward"}), format_peak({"step": 3, "phase": "other"})
    ('step 1,998, backward', 'step 3')
    """
    phase = peak["phase"]
    return f"step {peak['step']:,}" + (f", {phase}" if phase and phase != "other" else "")


def tensorboard_command(event_folder: str) -> str:
    """What to type to see the page; a folder below the current one is named from here.

    >>> tensorboard_command("/data/my runs")
    "tensorboard --logdir '/data/my runs'"
    """
    return f"tensorboard --logdir {shlex.quote(_from_here(event_folder))}"


# ---- the two forms ----


def _all_well(report: Mapping[str, Any]) -> bool:
    return (
        report["run"]["end"] == "finished"
        and report["run"]["exit_code"] in (None, 0)
        and report["leak"]["verdict"] == "no leak"
        and not report["switched_off"]
    )


def _short(report: Mapping[str, Any], width: int) -> list[str]:
    under = format_bytes(report["leak"]["bytes_per_step_high"])
    peaks = [
        f"{label.removesuffix(' used')} {_of_limit(peak, limit)}{f' ({kind})' if kind else ''} at {at}"
        for label, _, _, peak, at, limit, kind in _places(report)
        if at
    ]
    said = [f"No leak (under {under} a step over {report['steps']:,} steps)."]
    if peaks:
        said.append(f"Peak {'; '.join(peaks)}.")
    rarer = len(_rarer(report))
    noted = f", {rarer} reading{'s' * (rarer != 1)} taken more rarely" if rarer else ""
    said.append(f"Ourselves {format_share(report['overhead']['share_of_run'])}{noted}.")
    return [*textwrap.wrap(" ".join(said), width), *_pointers(report)]


def _long(report: Mapping[str, Any], width: int) -> list[str]:
    pointers = _pointers(report)
    end = ["", *pointers] if pointers else []
    for lines_a_text in (2, 1):  # when all that happened is too much, shorter
        lines = []
        if report["run"]["end"] not in ("finished", None):
            lines.append("The run did not finish; these are the numbers so far.")
        lines += _table(report)
        lines += _section("PARTS", _parts(report), width)
        lines += _section("CLEAN-UP", _cleanup(report), width, lines_a_text)
        lines += _section("OURSELVES", _ourselves(report), width)
        lines += _section("OFF", _some(report["switched_off"], _MAX_SWITCHED_OFF), width, lines_a_text)
        if len(lines) + len(end) <= MAX_LINES - 2:
            break
    return [*lines[: MAX_LINES - 2 - len(end)], *end]


# ---- their pieces ----


def _head(report: Mapping[str, Any], width: int) -> str:
    ending = _ending(report)
    room = width - len(f"== forgather-mem ==  == {ending} =")
    script = _script(report)
    if len(script) > room:
        script = script[: max(1, room - 3)] + "..."
    return f"== forgather-mem == {script} == {ending} ".ljust(width, "=")


def _ending(report: Mapping[str, Any]) -> str:
    run = report["run"]
    done = f"{report['steps']:,} step{'s' * (report['steps'] != 1)}"
    took = format_duration(run["wall_s"])
    if run["end"] == "finished":
        code = "" if run["exit_code"] is None else f", exit {run['exit_code']}"
        return f"{done}, {took}{code}"
    if run["end"] is None:
        return f"{done} so far, {took}"
    how = {
        "exception": "exception",
        "oom": "out of memory",
        "killed": "killed (SIGKILL)",
        "interrupted": "interrupted",
    }
    return f"{how[run['end']]} after {done}, {took}"


def _script(report: Mapping[str, Any]) -> str:
    folder, name = os.path.split(report["run"]["script"])
    if name == "__main__.py":  # python -m package
        name = os.path.basename(folder)
    return escape_controls(name) or "training"


Row = tuple[str, int, int, int, str, int, str]


def _places(report: Mapping[str, Any]) -> Iterator[Row]:
    """One row for each kind of memory: label, start, end, peak, when, limit, whose limit."""
    highest: dict[str, str] = {}
    for peak in report["peaks"]:
        highest.setdefault(peak["where"], format_peak(peak))
    for device in report["device"]:
        where = f"gpu{device.get('index', 0)}"
        for kind in ("allocated", "reserved"):
            yield (
                f"{format_place(where)} {'used' if kind == 'allocated' else kind}",
                device.get(f"{kind}_start_bytes", 0),
                device.get(f"{kind}_end_bytes", 0),
                device[f"peak_{kind}_bytes"],
                highest.get(where, "") if kind == "allocated" else "",
                device["total_bytes"] if kind == "allocated" else 0,
                "",
            )
    host = report["host"]
    if host["rss_peak_bytes"]:
        yield (
            "host",
            host["rss_start_bytes"],
            host["rss_end_bytes"],
            host["rss_peak_bytes"],
            highest.get("host", ""),
            host["limit_bytes"],
            _LIMIT_KIND.get(host["limit_kind"], "") if host["limit_bytes"] else "",
        )


def _decimals(rows: list[Row]) -> int:
    return 1 if any(row[3] >= 10 * GIB for row in rows) else 2


def _table(report: Mapping[str, Any]) -> list[str]:
    rows = list(_places(report))
    if not rows:
        return ["MEMORY  nothing was read"]
    decimals = _decimals(rows)
    lines = [f"{'MEMORY, GiB':<16}{'start':>6}{'end':>6}{'peak':>6}  {'at':<22}{'limit':>6}"]
    for label, start, end, peak, at, limit, kind in rows:
        sizes = "".join(f"{size / GIB:>6,.{decimals}f}" for size in (start, end, peak))
        limit_text = f"{limit / GIB:>6,.1f} {kind}" if limit else ""
        lines.append(f"  {label:<14}{sizes}  {at:<22}{limit_text}".rstrip())
    return lines


def _parts(report: Mapping[str, Any]) -> Iterator[str]:
    parts = dict(report["breakdown"])
    if not parts["parameters"]:
        return
    cached = parts.pop("cached")
    sizes = sorted(((size, part.removesuffix("_peak")) for part, size in parts.items() if size), reverse=True)
    text = "each at its highest: " + ", ".join(f"{part} {format_bytes(size)}" for size, part in sizes)
    yield text + (f"; cached at the end {format_bytes(cached)}" if cached else "")


def _cleanup(report: Mapping[str, Any]) -> Iterator[str]:
    collector, wall_s = report["gc"], report["run"]["wall_s"]
    if collector["pause_total_s"]:
        share = f" ({format_share(collector['pause_total_s'] / wall_s)} of the run)" if wall_s else ""
        yield (
            f"Python's collector: {collector['collections']:,} full collections, all pauses"
            f" {format_duration(collector['pause_total_s'])}{share}, the longest"
            f" {format_duration(collector['pause_max_s'])}."
        )
    for row in report["ledger"]:
        yield _given_back(row, wall_s)


def _given_back(row: Mapping[str, Any], wall_s: float) -> str:
    """What our own calls of one kind cost and brought, and whether they are worth it."""
    what = {"collect": "collected", "clear": "cleared the device cache", "trim": "trimmed"}[row["what"]]
    freed_bytes, retaken_bytes, objects = row["freed_bytes"], row["retaken_bytes"], row.get("objects", 0)
    cost_s = row["time_s"] + row["next_step_excess_s"]
    told = [format_duration(row["time_s"])]
    if row["next_step_excess_s"] > _WORTH_TELLING * wall_s > 0:
        told.append(f"the steps after it {format_duration(row['next_step_excess_s'])} longer")
    if objects:
        told.append(f"{objects:,} unreachable objects")
    if freed_bytes > 0 or not objects:
        told.append(f"freed {format_bytes(freed_bytes) if freed_bytes > 0 else 'nothing'}")
    if retaken_bytes > freed_bytes / 2:
        told.append(f"{format_bytes(retaken_bytes)} of it taken again at once")
    useless = not objects and freed_bytes - retaken_bytes <= _KEPT_FRAC * max(0, freed_bytes)
    if useless and row["calls"] >= _ENOUGH_CALLS:
        costs = cost_s > _WORTH_TELLING * wall_s > 0
        price = f"costs {format_share(cost_s / wall_s)} of the run and " if costs else ""
        told[-1] += f": it {price}brings nothing, leave it out"
    return f"we {what} {_times(row['calls'])}: {', '.join(told)}."


def _ourselves(report: Mapping[str, Any]) -> Iterator[str]:
    ours = report["overhead"]
    spent_s = sum(row["time_s"] for row in report["ledger"])
    actions = f", {format_duration(spent_s)} of it giving memory back" if spent_s else ""
    text = f"{format_share(ours['share_of_run'])} of the run ({format_duration(ours['seconds'])}{actions})"
    reading_frac = ours.get("share_of_step", 0.0) if report["steps"] >= _STEADY_STEPS else 0.0
    if reading_frac > OWN_BUDGET_FRAC:
        text += (
            f"; readings take {format_share(reading_frac)} of a step: below {format_share(OWN_BUDGET_FRAC)} when "
            f"read every {_ordinal(reading_frac)} step"
        )
    yield text
    rarer = _rarer(report)
    if rarer:
        yield f"read more rarely, for what it costs: {escape_controls(', '.join(rarer))}"


def _rarer(report: Mapping[str, Any]) -> list[str]:
    """What was read more rarely than asked, because it would have taken more than its share of the time."""
    return list(dict.fromkeys(entry["what"] for entry in report["overhead"].get("backed_off", ())))


def _ordinal(reading_frac: float) -> str:
    """Which steps to read at, so that readings which took this share stay within the budget."""
    every = math.ceil(reading_frac / OWN_BUDGET_FRAC)
    return {2: "2nd", 3: "3rd"}.get(every, f"{every}th")


def _some(sentences: Sequence[str], most: int) -> Iterator[str]:
    for sentence in sentences[:most]:
        yield escape_controls(sentence)
    if len(sentences) > most:
        yield f"also: {len(sentences) - most} more, see the report"


def _pointers(report: Mapping[str, Any]) -> list[str]:
    run = report["run"]
    lines = []
    if run.get("event_folder"):
        command = tensorboard_command(run["event_folder"])
        lines.append(f"{command:<44} tags mem_*" if len(command) < 44 else command)  # it can be pasted as it stands
    return lines


def _section(label: str, texts: Iterable[str], width: int, lines_a_text: int = 2) -> list[str]:
    """The texts below each other, at most so many lines each, the label before the first."""
    lines: list[str] = []
    for text in texts:
        wrapped = textwrap.wrap(text, width - _INDENT, max_lines=lines_a_text, placeholder=" ...")
        lines += [f"{'' if lines else label:<{_INDENT}}{wrapped[0]}", *(" " * _INDENT + line for line in wrapped[1:])]
    return lines


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _of_limit(size: int, limit: int) -> str:
    return f"{size / GIB:,.1f} of {limit / GIB:,.1f} GiB" if limit else f"{size / GIB:,.1f} GiB"


def _from_here(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _bold(line: str) -> str:
    label = next((label for label in _LABELS if line.startswith(label)), None)
    return f"{_BOLD}{label}{_PLAIN}{line[len(label) :]}" if label else line
