"""The page: whole, offline, safe whatever a run is called, and with the curves that the log has."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.reporting.from_events import Curve, read_curves
from forgather_mem.reporting.html import CURVES
from forgather_mem.reporting.html_plot import nice_ticks, thinned
from forgather_mem.sinks import JsonlSink, TensorBoardSink
from forgather_mem.telemetry.records import Sample
from forgather_mem.units import GIB, MIB
from tests.reporting.report_fixtures import all_well, killed, leaking, out_of_memory, page_of, text_of
from tests.sinks.plain_run import PlainRun

EMPTY = {"meta", "path", "br", "link", "input", "img"}


class Page(HTMLParser):
    """Tags with their attributes, the texts of the report and of each table, and whether all was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data

    @property
    def plots(self) -> list[dict[str, Any]]:
        return [json.loads(str(found["data-plot"])) for _, found in self.tags if "data-plot" in found]

    @property
    def marks(self) -> list[str]:
        return [
            str(found["title"]) for tag, found in self.tags if "mark" in str(found.get("class")) and "title" in found
        ]


def curve(*points: tuple[int, float]) -> Curve:
    made = Curve()
    for step, value in points:
        made.add(step, value)
    return made


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


@pytest.mark.parametrize("points", [[(5, 0.0)], [(5, 3.0 * MIB)], [(5, 1.0), (5, 2.0)], [(0, 0.0), (10**9, 2.0**50)]])
def test_few_points_and_strange_sizes_make_a_plot_too(points: list[tuple[int, float]]) -> None:
    page = page_of(all_well(), {"host/rss_bytes": curve(*points), "gc/pause_s": curve(*points)})
    assert len(Page(page).plots) == 2
    assert "nan" not in page.lower().replace("nano", "")
    assert "inf" not in re.sub(r"info\w*", "", page.lower())


def test_a_long_run_makes_no_long_page() -> None:
    long = Curve()
    for step in range(200_000):
        long.add(step, 9.0 if step == 123_456 else 1.0)
    points = thinned(long)
    assert len(points) <= 1000
    assert (123_456, 9.0) in points
    assert len(page_of(all_well(), {"host/rss_bytes": long})) < 100_000


@pytest.mark.parametrize("highest", [1e-9, 0.0, 0.7, 1.0, 3.3, 99.9, 79.6, 1e6])
def test_ticks_are_few_and_reach_above_the_highest_point(highest: float) -> None:
    ticks = nice_ticks(highest)
    assert ticks[0] == 0
    assert ticks[-1] >= highest * 0.999
    assert 2 <= len(ticks) <= 7


def test_log_and_tensorboard_page_give_the_same_curves(tmp_path: Path) -> None:
    run = PlainRun(tmp_path)
    sinks = [JsonlSink(tmp_path / "memory.rank0.jsonl"), TensorBoardSink(logging_dir=tmp_path / "events")]
    for sink in sinks:
        sink.begin(run)
    for step in range(1, 30):
        values = {
            "host/rss_bytes": step * GIB / 8,
            "device/step_peak_bytes": step * GIB / 4,
            "phase/device/backward_peak_bytes": 2.0 * GIB,
            "gc/pause_s": step / 1000,
        }
        for sink in sinks:
            sink.write(Sample("step_end", step, None, 100.0 + step, values, 2))
    for sink in sinks:
        sink.end(run)
    of_log, of_page = read_curves(tmp_path, CURVES), read_curves(tmp_path / "events", CURVES)
    assert set(of_log) == set(of_page) == set(values)
    for name, found in of_log.items():
        assert found.steps == of_page[name].steps
        assert list(found.values) == pytest.approx(list(of_page[name].values), rel=1e-6)
