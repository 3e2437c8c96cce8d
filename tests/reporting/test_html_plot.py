"""Curves as drawings: few points, many, and round ticks."""

from __future__ import annotations

import re

import pytest

from forgather_mem.reporting.from_events import Curve
from forgather_mem.reporting.html_plot import nice_ticks, thinned
from forgather_mem.units import MIB
from tests.reporting.pages import Page, curve
from tests.reporting.report_fixtures import all_well, page_of


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
