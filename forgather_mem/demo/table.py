"""The demo's table: a run's report as rows for a terminal of 80 columns, or for a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from forgather_mem.reporting.table import format_peak, format_place
from forgather_mem.units import format_bytes, format_duration, format_share

Report = Mapping[str, Any]
_HOW = {"finished": "", None: ", so far", "exception": ", ended by an exception", "interrupted": ", interrupted"}


def demo_table(report: Report) -> RenderableType:
    """Where memory peaked, what the peak consisted of, and what watching and cleaning up cost."""
    return Group(_places(report), "", _parts(report), "", _costs(report))


def _places(report: Report) -> Table:
    run = report["run"]
    title = f"Where the memory went: {report['steps']:,} steps in {format_duration(run['wall_s'])}{_HOW[run['end']]}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in ("start", "end", "growth", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("at")
    highest: dict[str, str] = {}
    for peak in report["peaks"]:
        highest.setdefault(peak["where"], format_peak(peak))
    host = report["host"]
    sizes = [("host", host["rss_start_bytes"], host["rss_end_bytes"], host["rss_peak_bytes"], highest.get("host", ""))]
    for device in report["device"]:
        where = f"gpu{device['index']}"
        for kind, at in (("allocated", highest.get(where, "")), ("reserved", "")):
            label = f"{format_place(where)} {'used' if kind == 'allocated' else kind}"
            start, end = device[f"{kind}_start_bytes"], device[f"{kind}_end_bytes"]
            sizes.append((label, start, end, device[f"peak_{kind}_bytes"], at))
    for label, start, end, peak_bytes, at in sizes:
        growth = f"{'+' if end >= start else ''}{format_bytes(end - start)}"
        table.add_row(label, format_bytes(start), format_bytes(end), growth, format_bytes(peak_bytes), at)
    return table


def _parts(report: Report) -> Table:
    place = "GPU" if report["device"] else "host"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(f"of the {place}'s peak", min_width=18)
    table.add_column("each at its peak", justify="right")
    for part, size in report["breakdown"].items():
        if part != "cached" or size:
            table.add_row(part.removesuffix("_peak"), format_bytes(size))
    return table


def _costs(report: Report) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=18)
    for label, text in _cost_rows(report):
        table.add_row(label, text)
    return table


def _cost_rows(report: Report) -> Iterator[tuple[str, str]]:
    wall_s = report["run"]["wall_s"] or 1.0
    collector = report["gc"]
    yield (
        "Python's collector",
        f"{collector['collections']:,} full collections; pauses {format_duration(collector['pause_total_s'])}, "
        f"{format_share(collector['pause_total_s'] / wall_s)} of the run; "
        f"the longest {format_duration(collector['pause_max_s'])}",
    )
    booked = {row["what"]: row for row in report["ledger"]}
    no_device = "" if report["device"] else ": there is no accelerator"
    for what, label, none in (("collect", "our collections", "none"), ("clear", "cache clears", f"none{no_device}")):
        row = booked.get(what)
        if row is None:
            yield label, none
            continue
        yield label, f"{row['calls']:,} in {format_duration(row['time_s'])}, freed {format_bytes(row['freed_bytes'])}"
    ours = report["overhead"]
    acting_s = sum(row["time_s"] for row in report["ledger"])
    acting = f", of these {acting_s * 1e3:,.0f} ms collecting and clearing" if acting_s else ""
    yield "our own cost", f"{ours['seconds'] * 1e3:,.0f} ms ({format_share(ours['share_of_run'])} of the run){acting}"
