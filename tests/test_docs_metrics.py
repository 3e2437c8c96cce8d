import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from forgather_mem.sinks.tags import tag_of
from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.metrics import METRICS, metric_of

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def generator() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(DOCS / "generate_metrics.py")))


def test_the_committed_page_is_what_the_table_gives(generator: SimpleNamespace) -> None:
    committed = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert committed == generator.page(), "run: python docs/generate_metrics.py"


def test_every_metric_and_every_phase_stands_on_the_page_once() -> None:
    cells = re.findall(r"^\| `([^`]+)` \|", (DOCS / "metrics.md").read_text(encoding="utf-8"), re.M)
    assert sorted(cells) == sorted([*(metric.name for metric in METRICS), *PHASES])


def test_tags_on_the_page_are_those_that_are_written() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| `(mem_[^`]+)`", (DOCS / "metrics.md").read_text(encoding="utf-8"), re.M)
    assert len(rows) == len(METRICS)
    for name, tag in rows:
        phase = name.replace("{}", "forward")
        assert tag_of(metric_of(phase), device=3) == tag.replace("{i}", "3").replace("{}", "forward")


@pytest.mark.parametrize(
    ("name", "tag", "said"),
    [
        ("device/unused_frac", "gpu/unused_pct", "Not a measure of fragmentation"),
        ("device/headroom_bytes", "gpu/headroom_gib", "An upper bound"),
        ("cache/time_s", "cache/time_ms", "waits for the kernels"),
        ("host/shm_bytes", "host/shm_gib", "of any user"),
        ("trim/freed_bytes", "trim/freed_gib", "other threads"),
    ],
)
def test_what_else_a_number_holds_is_said(name: str, tag: str, said: str) -> None:
    metric = metric_of(name)
    assert (metric.tag, said in metric.meaning) == (tag, True)
