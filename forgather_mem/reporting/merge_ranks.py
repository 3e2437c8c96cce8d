"""Merges the reports of all ranks into one: the worst of each value, and the spread over the ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
# The later, the worse.
_ENDS = ("finished", None, "interrupted", "exception", "killed", "oom")
_SIZES = ("host_peak_bytes", "device_peak_bytes", "device_reserved_bytes")


def merge_ranks(reports: Sequence[Report]) -> dict[str, Any]:
    """The report over all ranks; for a single process, its own.

    The rank with the worst end, and among equals the one with the highest peak on its device, else on the host,
    provides what the schema has once: script, breakdown, out-of-memory. Host, collector, leak, clean-up calls and our
    overhead come from the rank where each is worst; devices and peaks are listed for all ranks, the highest first, each
    with its `rank`. Added keys: `ranks`, one row per rank; `spread`, {"min", "max", "argmax"} by size; `missing_ranks`,
    those that left no files.

    Args:
        reports: At least one.

    >>> def report(rank, peak):
    ...     run = {"rank": rank, "world_size": 3, "end": "finished", "exit_code": 0, "wall_s": 1.0}
    ...     return {"steps": 5, "run": run,
    ...         "host": {"rss_peak_bytes": peak}, "device": [], "peaks": [], "gc": {"pause_total_s": 0.0},
    ...         "leak": {"verdict": "no leak", "bytes_per_step": 0.0}, "cleanup_calls": [], "ledger": [],
    ...         "overhead": {"share_of_run": 0.0}, "oom": None, "switched_off": []}
    >>> merged = merge_ranks([report(0, 100), report(2, 300)])
    >>> merged["host"]["rank"], merged["spread"]["host_peak_bytes"], merged["missing_ranks"]
    (2, {'min': 100, 'max': 300, 'argmax': 2}, [1])
    """
    if len(reports) == 1 and reports[0]["run"]["world_size"] == 1:
        return dict(reports[0])
    worst = max(reports, key=lambda report: (_badness(report), _device_peak(report), _host_peak(report)))
    merged = copy.deepcopy(dict(worst))
    merged["steps"] = max(report["steps"] for report in reports)
    merged["run"]["wall_s"] = max(report["run"]["wall_s"] for report in reports)
    for name in ("folder", "event_folder"):  # only rank 0 has a page
        merged["run"][name] = next((report["run"][name] for report in reports if report["run"].get(name)), None)
    for part, badness in _WORST.items():
        of_rank = max(reports, key=badness)
        merged[part] = copy.deepcopy(of_rank[part])
        if isinstance(merged[part], dict):
            merged[part]["rank"] = of_rank["run"]["rank"]
    for part, size in (("device", "peak_allocated_bytes"), ("peaks", "bytes")):
        rows = [{**row, "rank": report["run"]["rank"]} for report in reports for row in report[part]]
        merged[part] = sorted(rows, key=lambda row: -row[size])
    merged["switched_off"] = [
        f"rank {report['run']['rank']}: {sentence}" for report in reports for sentence in report["switched_off"]
    ]
    merged["ranks"] = [_row(report) for report in reports]
    merged["spread"] = {size: _spread(merged["ranks"], size) for size in _SIZES}
    there = {row["rank"] for row in merged["ranks"]}
    merged["missing_ranks"] = [rank for rank in range(merged["run"]["world_size"]) if rank not in there]
    return merged


def _row(report: Report) -> dict[str, Any]:
    run = report["run"]
    return {
        "rank": run["rank"],
        "end": run["end"],
        "exit_code": run["exit_code"],
        "steps": report["steps"],
        "host_peak_bytes": _host_peak(report),
        "device_peak_bytes": _device_peak(report),
        "device_reserved_bytes": max((device["peak_reserved_bytes"] for device in report["device"]), default=0),
        "leak": report["leak"]["verdict"],
        "bytes_per_step": report["leak"]["bytes_per_step"],
    }


def _spread(rows: Sequence[Mapping[str, Any]], size: str) -> dict[str, int]:
    highest = max(rows, key=lambda row: int(row[size]))
    return {"min": min(row[size] for row in rows), "max": highest[size], "argmax": highest["rank"]}


def _badness(report: Report) -> int:
    end = report["run"]["end"]
    return 2 * (_ENDS.index(end) if end in _ENDS else 0) + (report["run"]["exit_code"] not in (None, 0))


def _host_peak(report: Report) -> int:
    return int(report["host"]["rss_peak_bytes"])


def _device_peak(report: Report) -> int:
    return max((int(device["peak_allocated_bytes"]) for device in report["device"]), default=0)


def _leak(report: Report) -> tuple[bool, float]:
    return report["leak"]["verdict"] == "leak", report["leak"]["bytes_per_step"]


_WORST: dict[str, Callable[[Report], Any]] = {
    "host": _host_peak,
    "gc": lambda report: report["gc"]["pause_total_s"],
    "leak": _leak,
    "cleanup_calls": lambda report: sum(row["seconds"] for row in report["cleanup_calls"]),
    "ledger": lambda report: sum(row["time_s"] for row in report["ledger"]),
    "overhead": lambda report: report["overhead"]["share_of_run"],
}
