"""The charts of a run: each has something to show, and what they show are tags that we write."""

import re

import pytest

from forgather_mem.engine.ledger import BOOKED
from forgather_mem.sinks.tags import Columns
from forgather_mem.sinks.tensorboard import charts_for
from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.metrics import every_metric

NAMES = [metric.name for metric in every_metric()]
TAGS = {tag for device in (0, 1) for tag in Columns("step_end", device, NAMES).tags}


def test_of_all_that_we_write_each_line_of_each_chart_finds_something() -> None:
    charts = charts_for(TAGS)
    assert {chart.category for chart in charts} >= {"Host memory", "GPU 0", "GPU 1", "Phases", "Breakdown", "Ranks"}
    for chart in charts:
        assert chart.margin is None or set(chart.margin) <= TAGS
        for line in chart.lines:
            assert any(re.fullmatch(line, tag) for tag in TAGS), line
    assert len({(chart.category, chart.title) for chart in charts}) == len(charts)


@pytest.mark.parametrize(
    ("tag", "category"),
    [
        ("mem_host/available_gib", "Host memory"), ("mem_host/children_gib", "Host memory"),
        ("mem_host/shm_gib", "Host memory"), ("mem_host/swap_gib", "Host memory"), ("mem_gpu3/peak_gib", "GPU 3"),
        ("mem_gpu3/others_gib", "GPU 3"), ("mem_phase_host/backward_gib", "Phases"),
        *((f"mem_phase_gpu3/{phase}_gib", "Phases") for phase in PHASES if phase != "other"),
        ("mem_tensors/parameters_gib", "Breakdown"), ("mem_gc/pause_ms", "Collector and clean-up"),
        ("mem_cache/time_ms", "Collector and clean-up"),
        *((f"mem_{freed.replace('_bytes', '_gib')}", "Collector and clean-up") for _, freed in BOOKED.values()),
    ],
)  # fmt: skip
def test_one_tag_is_enough_for_its_chart(tag: str, category: str) -> None:
    (chart,) = charts_for([tag])
    assert chart.category == category
    assert any(re.fullmatch(line, tag) for line in chart.lines)


def test_a_chart_of_one_device_shows_that_device_only() -> None:
    for chart in charts_for(TAGS):
        if chart.category == "GPU 1":
            shown = [tag for tag in TAGS if any(re.fullmatch(line, tag) for line in chart.lines)]
            assert all(tag.startswith("mem_gpu1/") for tag in (*shown, *(chart.margin or ())))


def test_without_one_of_its_three_tags_a_band_is_lines() -> None:
    band, resident, anonymous = ("mem_host/rss_peak_gib", "mem_host/rss_gib", "mem_host/anon_gib")
    (whole,) = charts_for([band, resident, anonymous])
    assert whole.margin == (resident, anonymous, band)
    (part,) = charts_for([resident, anonymous])
    assert (part.margin, part.title) == (None, "resident, GiB")
    assert [line for line in part.lines if re.fullmatch(line, resident)]
    assert not [line for line in part.lines if re.fullmatch(line, band)]


def test_other_tags_have_no_chart() -> None:
    assert charts_for(["train/loss", "mem_mine/queue_len", "xmem_host/rss_gib"]) == []
