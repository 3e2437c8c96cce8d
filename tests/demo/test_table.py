"""The demo's table, of reports with known numbers."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from rich.console import Console

from forgather_mem.demo.table import demo_table
from forgather_mem.telemetry.report import LedgerRow
from tests.reporting.report_fixtures import all_well, gib, parsed, report_of


def rows_of(report: dict[str, Any]) -> dict[str, list[str]]:
    """Cells by label, as a terminal of 80 columns shows them."""
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(demo_table(parsed(report)))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    cells = [re.split(r"  +", line.strip()) for line in lines if line.strip()]
    return {label: rest for label, *rest in cells}


def test_the_host_stands_first_and_each_size_in_its_column() -> None:
    rows = rows_of(all_well())
    assert [*rows][:2] == ["Where the memory went: 2,000 steps in 31 min", "start"]
    assert [label for label in rows if label in ("host", "GPU 0 used")] == ["host", "GPU 0 used"]
    assert rows["host"] == ["6.2 GiB", "6.3 GiB", "+102.4 MiB", "8.8 GiB", "step 500, save"]
    assert rows["GPU 0 used"] == ["9.1 GiB", "15.0 GiB", "+5.9 GiB", "41.3 GiB", "step 1,998, backward"]
    assert rows["of the GPU's peak"] == ["each at its peak"]


def test_what_shrank_and_how_it_ended_are_told() -> None:
    host = {"rss_start_bytes": gib(2), "rss_end_bytes": gib(1), "rss_peak_bytes": gib(3)}
    rows = rows_of(report_of("train.py", 7, 2.0, "interrupted", host=host))
    assert " ".join(rows).startswith("Where the memory went: 7 steps in 2.0 s, interrupted ")
    assert rows["host"] == ["2.0 GiB", "1.0 GiB", "-1.0 GiB", "3.0 GiB"]
    assert rows["cache clears"] == ["none: there is no accelerator"]


def test_the_costs_are_those_of_the_ledger() -> None:
    ledger = [asdict(LedgerRow(what="collect", calls=3, time_s=0.25, freed_bytes=gib(1)))]
    gc = {"collections": 12, "pause_total_s": 0.5, "pause_max_s": 0.1}
    overhead = {"seconds": 0.3, "share_of_run": 0.03}
    report = report_of("train.py", 7, 10.0, "finished", ledger=ledger, gc=gc, overhead=overhead)
    rows = rows_of(report)
    assert rows["our collections"] == ["3 in 250.0 ms, freed 1.0 GiB"]
    assert " ".join(rows["Python's collector"]).startswith("12 full collections; pauses 500.0 ms, 5.0 % of the run")
    assert rows["our own cost"] == ["300 ms (3.0 % of the run), of these 250 ms collecting and"]
    assert "clearing" in rows  # on the next line
