"""The page: whole, offline, safe whatever a run is called, and with the curves that the log has."""

from __future__ import annotations

import re
from typing import Any

import pytest

from forgather_mem.reporting.from_events import Curve
from forgather_mem.units import GIB, MIB
from tests.reporting.pages import Page, curve
from tests.reporting.report_fixtures import all_well, killed, leaking, out_of_memory, page_of, text_of


def curves() -> dict[str, Curve]:
    steps = range(1, 2001)
    return {
        "host/rss_bytes": curve(*((step, 6 * GIB + step * MIB) for step in steps)),
        "device/allocated_bytes": curve(*((step, 15.0 * GIB) for step in steps)),
        "device/reserved_bytes": curve(*((step, 45.0 * GIB) for step in steps)),
        "phase/device/backward_peak_bytes": curve(*((step, 41.3 * GIB) for step in steps)),
        "gc/pause_s": curve(*((step, 0.4 if step == 700 else 0.0) for step in steps)),
        "cache/time_s": curve((500, 0.04), (1000, 0.04)),
        "cache/freed_bytes": curve((500, 3.0 * GIB), (1000, 0.0)),
    }


@pytest.mark.parametrize("make", [all_well, leaking, out_of_memory, killed])
def test_each_report_makes_a_whole_page_that_needs_nothing_else(make: Any) -> None:
    page = page_of(make(), curves())
    found = Page(page)
    assert found.texts["pre"] == text_of(make())
    for _, attributes in found.tags:
        assert not {"src", "href", "action", "srcset"} & set(attributes)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest", page)
    assert "default-src 'none'" in page
    assert page.isascii()


def test_the_curves_are_those_of_the_log_in_readable_units() -> None:
    page = Page(page_of(all_well(), curves()))
    by_label = {line["label"]: (plot, line) for plot in page.plots for line in plot["lines"]}
    plot, line = by_label["resident"]
    assert (plot["unit"], plot["first"], plot["last"]) == ("GiB", 1, 2000)
    assert line["points"][0] == [1, round(6 + 1 / 1024, 3)]
    assert line["points"][-1] == [2000, round(6 + 2000 / 1024, 3)]
    assert by_label["backward"][1]["points"][0][1] == 41.3
    plot, line = by_label["Python's collector"]
    assert plot["unit"] == "ms"
    assert [700, 400.0] in line["points"]  # one step of 2,000


def test_what_gave_memory_back_is_marked_with_what_it_freed() -> None:
    marks = Page(page_of(all_well(), curves())).marks
    assert "step 500: cache clears, 40.0 ms, freed 3.0 GiB" in marks
    assert "step 1,000: cache clears, 40.0 ms, freed 0 B" in marks


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>.py", "</style>&amp;"])
def test_no_name_of_a_run_becomes_part_of_the_page(name: str) -> None:
    report = leaking()
    report["run"].update(script=name, argv=[name], folder=f"/tmp/{name}", versions={name: name})
    report["switched_off"] = [name]
    report["cleanup_calls"][0]["file"] = name
    report["leak"]["suspects"][0].update(held_by=name, source_line=name)
    plain, page = Page(page_of(leaking(), curves())), Page(page_of(report, curves()))
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in plain.tags}
    assert [tag for tag, _ in page.tags].count("script") == [tag for tag, _ in plain.tags].count("script") == 1


def test_without_curves_the_page_says_so() -> None:
    page = page_of(all_well(), {})
    assert "there are no curves" in page
    Page(page)
