"""A report's sizes as a small table: at the start, at the end, and the peak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from forgather_mem.units import GIB

_WHOSE = {"cgroup": "container", "host": "machine"}


class Place(NamedTuple):
    """One kind of memory.

    Attributes:
        at: The time of the peak.
        limit_bytes: 0 if there is no limit to show.
        whose: The source of the limit, "container" or "machine".
    """

    label: str
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    at: str
    limit_bytes: int
    whose: str


def format_place(where: str) -> str:
    """Host or device in the usual notation.

    >>> format_place("gpu0"), format_place("host")
    ('GPU 0', 'host')
    """
    return f"GPU {where[3:]}" if where.startswith("gpu") else where


def format_peak(peak: Mapping[str, Any]) -> str:
    """The time of a peak.

    >>> format_peak({"step": 1998, "phase": "backward"}), format_peak({"step": 3, "phase": "other"})
    ('step 1,998, backward', 'step 3')
    """
    phase = peak["phase"]
    return f"step {peak['step']:,}" + (f", {phase}" if phase and phase != "other" else "")


def format_gib(size: int, limit_bytes: int = 0) -> str:
    """GiB with one decimal, with the limit if there is one.

    >>> format_gib(3 << 30), format_gib(3 << 30, 16 << 30)
    ('3.0 GiB', '3.0 of 16.0 GiB')
    """
    return f"{size / GIB:,.1f} of {limit_bytes / GIB:,.1f} GiB" if limit_bytes else f"{size / GIB:,.1f} GiB"


def places(report: Mapping[str, Any]) -> Iterator[Place]:
    """Each kind of memory of a report; with several ranks, the device that was fullest."""
    highest: dict[str, str] = {}
    for peak in report["peaks"]:
        highest.setdefault(peak["where"], format_peak(peak))
    for device in report["device"][:1] if "ranks" in report else report["device"]:
        where = f"gpu{device.get('index', 0)}"
        for kind in ("allocated", "reserved"):
            used = kind == "allocated"
            yield Place(
                f"{format_place(where)} {'used' if used else kind}",
                device.get(f"{kind}_start_bytes", 0),
                device.get(f"{kind}_end_bytes", 0),
                device[f"peak_{kind}_bytes"],
                highest.get(where, "") if used else "",
                device["total_bytes"] if used else 0,
                "",
            )
    host = report["host"]
    if host["rss_peak_bytes"]:
        yield Place(
            "host",
            host["rss_start_bytes"],
            host["rss_end_bytes"],
            host["rss_peak_bytes"],
            highest.get("host", ""),
            host["limit_bytes"],
            _WHOSE.get(host["limit_kind"], "") if host["limit_bytes"] else "",
        )


def table_lines(report: Mapping[str, Any]) -> list[str]:
    """The table, in GiB."""
    rows = list(places(report))
    if not rows:
        return ["MEMORY  nothing was measured"]
    decimals = 1 if any(row.peak_bytes >= 10 * GIB for row in rows) else 2
    lines = [f"{'MEMORY, GiB':<16}{'start':>6}{'end':>6}{'peak':>6}  {'at':<22}{'limit':>6}"]
    for row in rows:
        sizes = "".join(f"{size / GIB:>6,.{decimals}f}" for size in (row.start_bytes, row.end_bytes, row.peak_bytes))
        limit = f"{row.limit_bytes / GIB:>6,.1f} {row.whose}" if row.limit_bytes else ""
        lines.append(f"  {row.label:<14}{sizes}  {row.at:<22}{limit}".rstrip())
    return lines
