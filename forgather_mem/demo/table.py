"""The demo's table: a run's report as rows for a terminal of 80 columns, or for a file."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table

from forgather_mem.reporting.costs import acting_s
from forgather_mem.reporting.table import places
from forgather_mem.telemetry.report import LedgerRow, RunReport
from forgather_mem.units import format_bytes, format_duration, format_share

_HOW = {"finished": "", None: ", so far", "exception": ", ended by an exception", "interrupted": ", interrupted"}


def demo_table(report: RunReport) -> RenderableType:
    """Where memory peaked, what the peak consisted of, and what watching and cleaning up cost."""
    return Group(_places(report), "", _parts(report), "", _costs(report))


def _places(report: RunReport) -> Table:
    run = report.run
    title = f"Where the memory went: {report.steps:,} steps in {format_duration(run.wall_s)}{_HOW[run.end]}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in ("start", "end", "growth", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("at")
    for place in sorted(places(report), key=lambda place: place.label != "host"):
        growth = (
            f"{'+' if place.end_bytes >= place.start_bytes else ''}{format_bytes(place.end_bytes - place.start_bytes)}"
        )
        sizes = [format_bytes(size) for size in (place.start_bytes, place.end_bytes)]
        table.add_row(place.label, *sizes, growth, format_bytes(place.peak_bytes), place.at)
    return table


def _parts(report: RunReport) -> Table:
    place = "GPU" if report.device else "host"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(f"of the {place}'s peak", min_width=18)
    table.add_column("each at its peak", justify="right")
    for part, size in report.breakdown.sizes().items():
        if part != "cached" or size:
            table.add_row(part, format_bytes(size))
    return table


def _costs(report: RunReport) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=18)
    for label, text in _cost_rows(report):
        table.add_row(label, text)
    return table


def _cost_rows(report: RunReport) -> Iterator[tuple[str, str]]:
    wall_s = report.run.wall_s or 1.0
    collector = report.gc
    yield (
        "Python's collector",
        f"{collector.collections:,} full collections; pauses {format_duration(collector.pause_total_s)}, "
        f"{format_share(collector.pause_total_s / wall_s)} of the run; "
        f"the longest {format_duration(collector.pause_max_s)}",
    )
    booked: dict[str, LedgerRow] = {row.what: row for row in report.ledger}
    no_device = "" if report.device else ": there is no accelerator"
    for what, label, none in (("collect", "our collections", "none"), ("clear", "cache clears", f"none{no_device}")):
        row = booked.get(what)
        if row is None:
            yield label, none
            continue
        yield label, f"{row.calls:,} in {format_duration(row.time_s)}, freed {format_bytes(row.freed_bytes)}"
    ours = report.overhead
    spent_s = acting_s(report)
    acting = f", of these {spent_s * 1e3:,.0f} ms collecting and clearing" if spent_s else ""
    yield "our own cost", f"{ours.seconds * 1e3:,.0f} ms ({format_share(ours.share_of_run)} of the run){acting}"
