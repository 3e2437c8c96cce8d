"""What a person sees: a real TensorBoard server on what we wrote, with both of its loaders."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from forgather_mem.sinks import TensorBoardSink
from forgather_mem.telemetry.records import Finding, Sample
from tests.sinks.page import Page
from tests.sinks.plain_run import PlainRun

GIB = 2.0**30


@pytest.fixture(scope="module", params=[True, False], ids=["fast loader", "slow loader"])
def fast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory, fast: bool) -> Path:
    """One run in which a trainer's writer and ours share the folder, with everything that we write."""
    logdir = tmp_path_factory.mktemp("logdir")
    with SummaryWriter(str(logdir / "run")) as writer:
        sink = TensorBoardSink(logging_dir=logdir / "run", hparams={"lr": 0.1, "optimizer": "adamw", "fp16": False})
        sink.begin(PlainRun())
        for step in range(1, 11):
            writer.add_scalar("train/loss", 1 / step, step)
            values = {
                "host/rss_bytes": step * GIB,
                "host/anon_bytes": 0.5 * GIB,
                "host/rss_peak_bytes": step * GIB,
                "device/step_peak_bytes": 2 * GIB,
            }
            sink.write(Sample(event="step_end", step=step, epoch=None, time_s=1e9 + step, values=values, device=0))
            if step == 5:
                again = {"gc/collections": 3.0}
                sink.write(Sample(event="step_end", step=5, epoch=None, time_s=1e9 + step, values=again, device=0))
                again = {"gc/collections": 4.0, "host/rss_bytes": 7 * GIB, "host/rss_peak_bytes": 7.5 * GIB}
                again |= {"host/swap_bytes": 0.25 * GIB}
                sink.write(Sample(event="evaluate", step=5, epoch=None, time_s=1e9 + step, values=again, device=0))
        data = {"tables": {"Peaks": [["where", "GiB"], ["host", 10.0], ["a|b", 2]]}}
        sink.tell(Finding(kind="verdict", step=10, text="No leak.\n  Peak <b>10 GiB</b>.", data=data))
        sink.end(PlainRun())
        assert sink.problems() is None
    return logdir


@pytest.fixture(scope="module")
def page(logdir: Path, fast: bool) -> Iterator[Page]:
    page = Page(logdir, fast=fast)
    yield page
    page.close()


def test_losses_and_memory_stand_in_one_run(page: Page) -> None:
    tags = page.tags("run", "mem_gpu0/peak_gib")
    assert page.tags("run", "train/loss")
    assert set(tags) == {
        "train/loss", "mem_host/rss_gib", "mem_host/anon_gib", "mem_host/rss_peak_gib", "mem_host/evaluate_rss_gib",
        "mem_host/swap_gib", "mem_gpu0/step_peak_gib", "mem_gpu0/peak_gib", "mem_gc/collections",
    }  # fmt: skip
    assert page.points("run", "mem_host/rss_gib", 10) == [(step, float(step)) for step in range(1, 11)]
    assert len(page.points("run", "train/loss", 10)) == 10


def test_a_tag_shows_its_description(page: Page) -> None:
    description = page.tags("run", "mem_host/anon_gib")["mem_host/anon_gib"]["description"]
    assert "neither mapped files nor shared memory" in description
    assert description.startswith("<p>GiB. ")


def test_the_verdict_stands_in_the_text_tab_as_it_was_written(page: Page) -> None:
    (html,) = page.texts("run", "mem_report/verdict")
    assert "<pre><code>No leak.\n  Peak &lt;b&gt;10 GiB&lt;/b&gt;.\n</code></pre>" in html
    assert "<td>a|b</td>" in html
    assert html.count("<tr>") == 3


def test_the_custom_layout_has_a_chart_for_each_group_that_is_there(page: Page) -> None:
    page.tags("run", "mem_host/rss_gib")
    layout = page.get("custom_scalars/layout")
    charts = {c["title"]: c for category in layout["category"] for c in category["chart"]}
    assert [category["title"] for category in layout["category"]] == ["Host memory", "GPU 0"]
    assert charts["resident, GiB (band: anonymous to highest so far)"]["margin"]["series"] == [
        {"value": "mem_host/rss_gib", "lower": "mem_host/anon_gib", "upper": "mem_host/rss_peak_gib"}
    ]
    (pattern,) = charts["peak of each step and of the run, GiB"]["multiline"]["tag"]
    drawn = page.get("custom_scalars/scalars", run="run", tag=pattern)
    assert drawn["regex_valid"]
    assert set(drawn["tag_to_events"]) == {"mem_gpu0/step_peak_gib", "mem_gpu0/peak_gib"}


def test_a_peak_between_steps_shows_with_the_next_step(page: Page) -> None:
    peaks = [value for _, value in page.points("run", "mem_host/rss_peak_gib", 10)]
    assert peaks == [1, 2, 3, 4, 5, 7.5, 7.5, 8, 9, 10]
    assert page.points("run", "mem_host/evaluate_rss_gib") == [(5, 7.0)]


def test_hyperparameters_stand_in_the_same_run_with_the_peaks_as_metrics(page: Page) -> None:
    page.tags("run", "mem_gpu0/peak_gib")
    experiment = page.get("hparams/experiment", request="{}")
    assert {info["name"] for info in experiment["hparamInfos"]} == {"lr", "optimizer", "fp16"}
    metrics = [info["name"]["tag"] for info in experiment["metricInfos"]]
    assert metrics == ["mem_host/rss_peak_gib", "mem_gpu0/peak_gib"]
    request = {"allowedStatuses": ["STATUS_SUCCESS"], "colParams": [], "startIndex": 0, "sliceSize": 5}
    groups = page.get("hparams/session_groups", request=json.dumps(request))["sessionGroups"]
    assert groups[0]["hparams"] == {"lr": 0.1, "optimizer": "adamw", "fp16": False}
    values = {entry["name"]["tag"]: entry["value"] for entry in groups[0]["metricValues"]}
    assert values == {"mem_host/rss_peak_gib": 10.0, "mem_gpu0/peak_gib": 2.0}
