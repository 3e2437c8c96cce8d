"""What did collecting, clearing and watching cost, and what did it bring? Sentences for a report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forgather_mem.errors import escape_controls
from forgather_mem.sample import OWN_BUDGET_FRAC
from forgather_mem.units import format_bytes, format_duration, format_share

# In fewer steps a single dear reading weighs too much to say anything about the others.
_STEADY_STEPS = 100
# What attaching, opening files and the first readings may take; a share of a short run that is worth a word.
_START_S, _NOTED_FRAC = 1.0, 0.01
# Of our own collections, clears and trims: from how many on they are judged, the share of what they freed that
# must stay free, and the share of the run's time that is worth a word.
_ENOUGH_CALLS = 3
_KEPT_FRAC = 0.2
_WORTH_TELLING = 0.002
# Python's own pauses, apart from those, are told from this share on.
_WORTH_A_LINE = 0.001
# Somebody else's calls are told when they took more than this of the run.
_DEAR_FRAC = 0.01
_MAX_CALLS = 2

Report = Mapping[str, Any]


def cleanup_sentences(report: Report, *, brief: bool = False) -> Iterator[str]:
    """Dear calls of the script and its libraries, Python's collector, and our own actions.

    Args:
        report: Schema 1.
        brief: Only what is dear.
    """
    wall_s = report["run"]["wall_s"]
    dear = _dear_calls(report)
    for row in dear[:_MAX_CALLS]:
        yield _call(row, wall_s)
    if len(dear) > _MAX_CALLS:
        yield f"also: {len(dear) - _MAX_CALLS} more places, see the report"
    if brief:
        return
    pause_s = report["gc"]["pause_total_s"]
    told_s = sum(row["seconds"] for row in dear if row["what"] == "gc.collect")
    if pause_s - told_s > _WORTH_A_LINE * wall_s:
        yield _collector(report["gc"], wall_s)
    for row in report["ledger"]:
        yield _given_back(row, wall_s)


def parts_sentences(report: Report) -> Iterator[str]:
    """What the peak consisted of."""
    parts = dict(report["breakdown"])
    if not parts["parameters"]:
        return
    cached = parts.pop("cached")
    sizes = sorted(((size, part.removesuffix("_peak")) for part, size in parts.items() if size), reverse=True)
    text = "each at its highest: " + ", ".join(f"{part} {format_bytes(size)}" for size, part in sizes)
    yield text + (f"; cached at the end {format_bytes(cached)}" if cached else "")


def own_sentences(report: Report, *, brief: bool = False) -> Iterator[str]:
    """Our own cost, and what was read more rarely for it."""
    ours = report["overhead"]
    spent_s = sum(row["time_s"] for row in report["ledger"])
    actions = f", {format_duration(spent_s)} of it giving memory back" if spent_s else ""
    if is_mostly_start(report):
        yield own_share(report)
        return
    text = f"{format_share(ours['share_of_run'])} of the run"
    if not brief:
        text += f" ({format_duration(ours['seconds'])}{actions})"
    reading_frac = ours.get("share_of_step", 0.0) if report["steps"] >= _STEADY_STEPS else 0.0
    if reading_frac > OWN_BUDGET_FRAC:
        text += (
            f"; readings take {format_share(reading_frac)} of a step: below {format_share(OWN_BUDGET_FRAC)} when "
            f"read every {_ordinal(reading_frac)} step"
        )
    yield text
    rarer = rarer_readings(report)
    if rarer and not brief:
        yield f"read more rarely, for what it costs: {escape_controls(', '.join(rarer))}"


def is_mostly_start(report: Report) -> bool:
    """Whether our share of a short run is what we do once, when it begins, and says nothing about a longer one."""
    ours = report["overhead"]
    of_step = ours.get("share_of_step", 0.0)
    return bool(0 < 2 * of_step < ours["share_of_run"] > _NOTED_FRAC and ours["seconds"] < _START_S)


def own_share(report: Report) -> str:
    """Our own cost in a few words."""
    ours = report["overhead"]
    if is_mostly_start(report):
        return f"{format_share(ours['share_of_step'])} of a step, {format_duration(ours['seconds'])} with the start"
    return format_share(ours["share_of_run"])


def rarer_readings(report: Report) -> list[str]:
    """What was read more rarely than asked, because it would have taken more than its share of the time."""
    return list(dict.fromkeys(entry["what"] for entry in report["overhead"].get("backed_off", ())))


def first_sentences(sentences: Sequence[str], most: int) -> Iterator[str]:
    """The first of them, and how many more there are."""
    for sentence in sentences[:most]:
        yield escape_controls(sentence)
    if len(sentences) > most:
        yield f"also: {len(sentences) - most} more, see the report"


def _dear_calls(report: Report) -> list[Mapping[str, Any]]:
    """Places that took more than their share, the dearest first; ours stand in the ledger."""
    least_s = _DEAR_FRAC * report["run"]["wall_s"]
    rows = [row for row in report["cleanup_calls"] if row["whose"] != "us" and row["seconds"] > least_s > 0]
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def _call(row: Mapping[str, Any], wall_s: float) -> str:
    where = f"{row['file']}:{row['line']}" + (" (a library)" if row["whose"] == "library" else "")
    calls = f"{row['calls']:,} call{'s' * (row['calls'] != 1)}"
    cost = f"{format_duration(row['seconds'])} ({format_share(row['seconds'] / wall_s)} of the run)"
    freed = format_bytes(row["freed_bytes"]) if row["freed_bytes"] > 0 else "nothing"
    advice = " Remove it." if row["freed_bytes"] <= 0 and row["whose"] == "user" and row["calls"] > 1 else ""
    return f"{row['what']}() at {escape_controls(where)}: {calls}, {cost}, freed {freed}.{advice}"


def _collector(collector: Mapping[str, Any], wall_s: float) -> str:
    share = f" ({format_share(collector['pause_total_s'] / wall_s)} of the run)" if wall_s else ""
    return (
        f"Python's collector: {collector['collections']:,} full collections, all pauses"
        f" {format_duration(collector['pause_total_s'])}{share}, the longest"
        f" {format_duration(collector['pause_max_s'])}."
    )


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


def _ordinal(reading_frac: float) -> str:
    """Which steps to read at, so that readings which took this share stay within the budget."""
    every = math.ceil(reading_frac / OWN_BUDGET_FRAC)
    return {2: "2nd", 3: "3rd"}.get(every, f"{every}th")


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")
