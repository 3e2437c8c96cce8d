"""Schema 1 of the report as a table, and the one check of everything that is read from a file.

A file may come from a stranger, from a newer version, or from a disk that failed. What is not as it should be is
replaced by what stands there when nothing was measured, and named; a row of a list that has a wrong part is left
out. Keys that this version does not know stay, as long as they hold plain JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from forgather_mem.files import read_regular

# The report of 4,000 ranks takes 3 MB.
MAX_REPORT_BYTES = 4 * 2**20
# A size, a count or a time in seconds beyond this is none.
MOST = 10**18
_MAX_RANKS = 2**17
_MAX_TEXT, _MAX_DEPTH, _MAX_NAMED = 10_000, 20, 3
_MAX_ROWS = 100_000


class _Maybe(NamedTuple):
    """This, or null."""

    kind: Any


class _Added(NamedTuple):
    """A key that may be missing."""

    kind: Any


class _One(NamedTuple):
    """One of these words; the first where there is none."""

    words: tuple[str, ...]


class _Count(NamedTuple):
    """A whole number from 0 to this."""

    most: int


_OTHERS = "*"  # stands for all keys that a table does not name
_ANY = object()  # whatever plain JSON is
_MAYBE_INT, _MAYBE_TEXT, _MAYBE_FLOAT = _Maybe(int), _Maybe(str), _Maybe(float)
_RANK = _Added(_Count(_MAX_RANKS))
_CALL = {
    "what": str, "file": str, "line": int, "calls": int, "seconds": float, "freed_bytes": int, "whose": str,
}  # fmt: skip
_SUSPECT = {
    "type": str, "bytes_per_step": float, "count_per_step": float, "held_by": _MAYBE_TEXT,
    "allocated_at": _MAYBE_TEXT, "source_line": str, "signature": str, "whose": str, "cure": _MAYBE_TEXT,
    "count": _Added(_Maybe(float)), "bytes": _Added(_Maybe(float)), "each": _Added(str), "kind": _Added(_MAYBE_TEXT),
}  # fmt: skip
_LEAK = {
    "verdict": _One(("not enough data", "leak", "no leak")), "where": _MAYBE_TEXT, "bytes_per_step": float,
    "bytes_per_step_low": float, "bytes_per_step_high": float, "since_step": int, "full_at_step": _MAYBE_INT,
    "suspects": [_SUSPECT], "sure": _One(("not yet", "likely", "yes")), "judged": _Added(bool),
    "why": _Added(_MAYBE_TEXT), "rank": _RANK,
}  # fmt: skip
_OOM = {
    "where": _One(("host", "device")), "step": int, "phase": str, "rank": _Count(_MAX_RANKS), "layer": _MAYBE_TEXT,
    "requested_bytes": _MAYBE_INT, "free_bytes": _MAYBE_INT, "reserved_unused_bytes": _MAYBE_INT,
    "in_use": {_OTHERS: int}, "why_now": _MAYBE_TEXT, "not_because": [str], "advice": [str],
    "limit_bytes": _Added(_MAYBE_INT), "limit": _Added(_MAYBE_TEXT), "fit": _Added(_MAYBE_TEXT),
    "no_help": _Added(_MAYBE_TEXT), "pid": _Added(_MAYBE_INT),
}  # fmt: skip
_ADVICE = {"text": str, "set": {_OTHERS: _ANY}, "predicted_bytes": _MAYBE_INT, "note": _Added(_MAYBE_TEXT)}
_KILLED = {
    "signal": _MAYBE_INT, "oom_kill_before": _MAYBE_INT, "oom_kill_after": _MAYBE_INT, "step": int, "phase": str,
    "used_bytes": _MAYBE_INT, "process_bytes": _MAYBE_INT, "workers_bytes": _MAYBE_INT, "num_workers": _MAYBE_INT,
    "process_bytes_per_step": _MAYBE_FLOAT, "workers_bytes_per_step": _MAYBE_FLOAT, "since_step": _MAYBE_INT,
}  # fmt: skip
_DEVICE = {
    "name": str, "peak_allocated_bytes": int, "peak_reserved_bytes": int, "total_bytes": int,
    "index": _Added(int), "allocated_start_bytes": _Added(int), "allocated_end_bytes": _Added(int),
    "reserved_start_bytes": _Added(int), "reserved_end_bytes": _Added(int), "rank": _RANK,
}  # fmt: skip
_REPORT = {
    "schema": int,
    "steps": int,
    "run": {
        "script": str, "argv": [str], "wall_s": float, "end": _MAYBE_TEXT, "exit_code": _MAYBE_INT,
        "rank": _Count(_MAX_RANKS), "world_size": _Count(_MAX_RANKS), "versions": {_OTHERS: str},
        "folder": _Added(_MAYBE_TEXT), "event_folder": _Added(_MAYBE_TEXT),
    },
    "host": {
        "rss_start_bytes": int, "rss_end_bytes": int, "rss_peak_bytes": int, "limit_bytes": int, "limit_kind": str,
        "rank": _RANK,
    },
    "device": [_DEVICE],
    "peaks": [{"where": str, "bytes": int, "step": int, "phase": str, "rank": _RANK}],
    "breakdown": {
        "parameters": int, "gradients": int, "optimizer": int, "activations_peak": int, "cached": int, "other": int,
        _OTHERS: int,
    },
    "gc": {"collections": int, "pause_total_s": float, "pause_max_s": float, "rank": _RANK},
    "cache": {"clears": int, "freed_bytes": int, "time_s": float},
    "cleanup_calls": [_CALL],
    "leak": _LEAK,
    "ledger": [
        {
            "what": _One(("collect", "clear", "trim")), "calls": int, "time_s": float, "next_step_excess_s": float,
            "freed_bytes": int, "retaken_bytes": int, "objects": _Added(int),
        }
    ],
    "oom": _Maybe(_OOM),
    "killed": _Added(_Maybe(_KILLED)),
    "advice": [_ADVICE],
    "overhead": {
        "seconds": float, "share_of_run": float, "share_of_step": _Added(float), "rank": _RANK,
        "backed_off": _Added([{"what": str, "text": str}]),
    },
    "switched_off": [str],
    "ranks": _Added([
        {
            "rank": _Count(_MAX_RANKS), "end": _MAYBE_TEXT, "exit_code": _MAYBE_INT, "steps": int,
            "host_peak_bytes": int, "device_peak_bytes": int, "device_reserved_bytes": int, "leak": str,
            "bytes_per_step": float,
        }
    ]),
    "spread": _Added({
        size: {"min": int, "max": int, "argmax": _Count(_MAX_RANKS)}
        for size in ("host_peak_bytes", "device_peak_bytes", "device_reserved_bytes")
    }),
    "missing_ranks": _Added([_Count(_MAX_RANKS)]),
    "left_out": _Added([str]),
}  # fmt: skip
_OF_RANKS = ("ranks", "spread", "missing_ranks")
_HEADER = {
    "rank": _Count(_MAX_RANKS), "world_size": _Count(_MAX_RANKS), "pid": _MAYBE_INT, "host": str, "script": str,
    "argv": [str], "started_s": float, "time_s": float, "versions": {_OTHERS: str}, "limit_bytes": int,
    "limit_kind": str, "step": int, "process": str,
    "kills": {"file": str, "inode": int, "count": int, "whose": str, "boot": str},
}  # fmt: skip
# What findings of a log carry that a report is made from.
_FINDINGS = {
    "cleanup_calls": {"calls": [_CALL]},
    "leak": _LEAK,
    "oom": _OOM,
    "advice": {"advice": [_ADVICE]},
    "backed_off": {"what": str},
}


def read_report(path: str | Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The report in a file, None where there is none, and a sentence for what of it can't be used."""
    name = Path(path).name
    try:
        report = checked_report(json.loads(read_regular(path, MAX_REPORT_BYTES)))
    except FileNotFoundError:
        return None, []
    except OSError as error:
        return None, [f"{name}: {error.strerror or error}"]
    except (ValueError, RecursionError):
        return None, [f"{name}: it holds no JSON"]
    return (None, [f"{name}: it holds no report of schema 1"]) if report is None else report


def checked_report(value: object) -> tuple[dict[str, Any], list[str]] | None:
    """A report that has every key in its type, and a sentence for what was wrong; None for what is none at all."""
    if not isinstance(value, dict) or value.get("schema") != 1 or not isinstance(value.get("run"), dict):
        return None
    wrong: list[str] = []
    report = _fit(value, _REPORT, "", wrong)
    if not all(name in report for name in _OF_RANKS):
        for name in _OF_RANKS:
            report.pop(name, None)
    return report, _sentence(wrong)


def checked_header(value: Mapping[str, Any]) -> dict[str, Any]:
    """What a process said of itself, those keys that are as they should be."""
    known = {name: _Added(kind) for name, kind in _HEADER.items()}
    header: dict[str, Any] = _fit(dict(value), known, "", [])
    return header


def checked_finding(kind: str, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """A finding's data as a report is made from it; empty for kinds that it does not use, None for what is wrong."""
    if kind not in _FINDINGS:
        return {}
    wrong: list[str] = []
    checked: dict[str, Any] = _fit(dict(data), _FINDINGS[kind], "", wrong)
    return None if wrong else checked


def checked_error(value: object) -> dict[str, Any] | None:
    """What a process told of the error that ended it: `oom` and `advice`; None for anything else."""
    wrong: list[str] = []
    checked: dict[str, Any] = _fit(value, {"oom": _OOM, "advice": [_ADVICE]}, "", wrong)
    return None if wrong else checked


def is_number(value: object) -> bool:
    """Whether this can be a size, a count or a time.

    >>> is_number(1.5), is_number(True), is_number(float("nan")), is_number(10**400)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOST <= value <= MOST


def _fit(value: Any, kind: Any, place: str, wrong: list[str]) -> Any:
    if isinstance(kind, _Added):
        kind = kind.kind
    if isinstance(kind, _Maybe):
        if value is None:
            return None
        kind = kind.kind
        if isinstance(kind, dict) and not isinstance(value, dict):
            wrong.append(place)
            return None
        before = len(wrong)
        fitted = _fit(value, kind, place, wrong)
        return fitted if len(wrong) == before or isinstance(kind, dict) else None
    if isinstance(kind, dict):
        return _fit_table(value, kind, place, wrong)
    if isinstance(kind, list):
        return _fit_rows(value, kind[0], place, wrong)
    if kind is str and isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]}..."
    if kind in (int, float) and is_number(value):
        return int(value) if kind is int else value
    fits = (
        (kind is bool and isinstance(value, bool))
        or (isinstance(kind, _One) and isinstance(value, str) and value in kind.words)
        or (isinstance(kind, _Count) and isinstance(value, int) and 0 <= value <= kind.most)
        or (kind is _ANY and _is_plain(value))
    )
    if fits:
        return value
    wrong.append(place)
    return _default(kind)


def _fit_table(value: Any, kind: dict[str, Any], place: str, wrong: list[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        wrong.append(place)
        value = {}
    others, head, fitted = kind.get(_OTHERS), f"{place}." if place else "", {}
    for name, part in value.items():
        before = len(wrong)
        if name in kind and name != _OTHERS:
            fitted[name] = _fit(part, kind[name], head + name, wrong)
            if len(wrong) > before and isinstance(kind[name], _Added):
                del fitted[name]
        elif others is not None:
            fitted[name] = _fit(part, others, head + name, wrong)
            if len(wrong) > before:
                del fitted[name]
        elif _is_plain(part):
            fitted[name] = part
    for name, part in kind.items():
        if name not in fitted and name != _OTHERS and not isinstance(part, _Added):
            wrong.append(head + name)
            fitted[name] = _default(part)
    return fitted


def _fit_rows(value: Any, kind: Any, place: str, wrong: list[str]) -> list[Any]:
    if not isinstance(value, list):
        wrong.append(place)
        return []
    rows = []
    for number, row in enumerate(value[:_MAX_ROWS]):
        before = len(wrong)
        fitted = _fit(row, kind, f"{place}[{number}]", wrong)
        if len(wrong) == before:
            rows.append(fitted)
    return rows


def _default(kind: Any) -> Any:
    if isinstance(kind, dict):
        return {name: _default(part) for name, part in kind.items() if name != _OTHERS and not isinstance(part, _Added)}
    if isinstance(kind, _One):
        return kind.words[0]
    if isinstance(kind, _Count):
        return 0
    return None if isinstance(kind, _Maybe) or kind is _ANY else [] if isinstance(kind, list) else kind()


def _is_plain(value: object, depth: int = 0) -> bool:
    if depth > _MAX_DEPTH or (isinstance(value, dict | list) and len(value) > _MAX_ROWS):
        return False
    if isinstance(value, dict):
        return all(_is_plain(part, depth + 1) for part in value.values())
    if isinstance(value, list):
        return all(_is_plain(part, depth + 1) for part in value)
    return value is None or isinstance(value, str | bool) or is_number(value)


def _sentence(wrong: list[str]) -> list[str]:
    if not wrong:
        return []
    more = f" and {len(wrong) - _MAX_NAMED:,} more" if len(wrong) > _MAX_NAMED else ""
    return [
        f"not as schema 1 has it, and left out: {', '.join(place or 'all of it' for place in wrong[:_MAX_NAMED])}{more}"
    ]
