"""The Memory tab in a real TensorBoard, which finds it by the entry point of the installed package."""

import json
import urllib.error
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.page.data import page_data, run_data
from forgather_mem.page.html import ASSETS
from forgather_mem.page.readings import read_readings
from forgather_mem.reporting.run_dir import run_report
from forgather_mem.sinks import TensorBoardSink
from forgather_mem.telemetry.records import Finding, Sample
from forgather_mem.units import GIB
from tests.browser import Browser, why_no_browser
from tests.page.runs import HOSTILE
from tests.reporting.report_fixtures import all_well, leaking, parsed
from tests.sinks.page import Page
from tests.sinks.plain_run import PlainRun, begun

PLUGIN = "forgather_mem"
RUNS = ["ended", "ranks", "running"]
FOUND = "forgather_mem.page.tensorboard_entry:MemoryTabLoader"


def packages(folder: Path) -> Path | None:
    """A folder with our entry point, if the package is installed without it: from its sources, by an older setup."""
    return None if PLUGIN in entry_points(group="tensorboard_plugins").names else with_entry(folder, FOUND)


def with_entry(folder: Path, entry: str) -> Path:
    about = folder / "memory_tab-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: memory_tab\nVersion: 0\n")
    (about / "entry_points.txt").write_text(f"[tensorboard_plugins]\n{PLUGIN} = {entry}\n")
    return folder


def written_run(folder: Path, report: dict[str, Any] | None = None) -> None:
    sink = begun(TensorBoardSink(logging_dir=folder))
    for step in range(1, 21):
        values = {"host/rss_bytes": step * GIB, "host/anon_bytes": 0.5 * GIB, "gc/pause_s": 0.01}
        sink.write(Sample(event="step_end", step=step, epoch=None, time_s=1e9 + step, values=values))
    if report is not None:
        sink.tell(Finding(kind="verdict", step=20, text="LEAK", data={"report": report}))
    sink.end(PlainRun())


@pytest.fixture(scope="module", params=[True, False], ids=["fast loader", "slow loader"])
def tensorboard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    logdir = tmp_path_factory.mktemp("logdir")
    written_run(logdir / "ended", leaking())
    written_run(logdir / "running")
    foreign = begun(TensorBoardSink(logging_dir=logdir / "foreign"))
    foreign.tell(Finding(kind="verdict", step=20, text="a report without curves", data={"report": leaking()}))
    foreign.end(PlainRun())
    report = all_well()
    report["run"] |= {"rank": 0, "world_size": 2}
    written_run(logdir / "ranks", report)
    page = Page(logdir, fast=request.param, packages=packages(tmp_path_factory.mktemp("packages")))
    for run in RUNS:
        page.tags(run, "mem_host/rss_gib")
    yield page
    page.close()


def test_the_tab_is_there_and_its_files_are_served(tensorboard: Page) -> None:
    listed = tensorboard.read("plugins_listing")
    assert (listed[PLUGIN]["enabled"], listed[PLUGIN]["tab_name"]) == (True, "Memory")
    assert listed["scalars"]["enabled"]
    assert listed[PLUGIN]["loading_mechanism"]["module_path"] == f"/data/plugin/{PLUGIN}/follow.js"
    for name, kind in ASSETS.items():
        assert tensorboard.headers(f"plugin/{PLUGIN}/{name}")["Content-Type"].startswith(kind)


def test_each_run_with_our_curves_can_be_chosen(tensorboard: Page) -> None:
    found = tensorboard.get(f"{PLUGIN}/runs")
    assert found == {"live": False, "runs": [{"id": name, "name": name} for name in RUNS]}


def test_an_ended_run_is_the_page_with_its_report(tensorboard: Page, tmp_path: Path) -> None:
    written_run(tmp_path)
    data = tensorboard.get(f"{PLUGIN}/data", run="ended")
    assert data == json.loads(json.dumps(page_data(parsed(leaking()), read_readings(tmp_path), name="ended")))
    assert data["kind"] == "leak"
    assert data["stacks"]


def test_of_several_ranks_the_first_alone_is_shown_and_that_is_said(tensorboard: Page) -> None:
    data = tensorboard.get(f"{PLUGIN}/data", run="ranks")
    assert (data["kind"], data["rank"], data["band"]) == ("unknown", 0, None)
    assert data["verdict"].startswith("Rank 0 alone (of all: forgather-mem report): Peak GPU 0 41.3 of")


def test_a_running_run_has_the_curves_of_the_event_file(tensorboard: Page, tmp_path: Path) -> None:
    data = tensorboard.get(f"{PLUGIN}/data", run="running")
    written_run(tmp_path)
    of_file = run_data(run_report(tmp_path), tmp_path)
    for key in ("steps", "times_ms", "stacks", "pauses"):
        assert data[key] == of_file[key]
    assert "no report" in data["verdict"]


@pytest.mark.parametrize("run", ["", "foreign", "../ended", "no such run", "ended/", HOSTILE])
def test_a_name_that_is_no_run_is_not_found(tensorboard: Page, run: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        tensorboard.get(f"{PLUGIN}/data", run=run)
    caught.value.close()


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser() or "there is one")
def test_the_tab_shows_the_page_under_tensorboards_policy(tensorboard: Page) -> None:
    browser = Browser()
    try:
        browser.size(1280, 900)
        browser.log()
        browser.open(f"{tensorboard.url}data/plugin_entry.html?name={PLUGIN}")
        browser.wait(
            "for (let tried = 0; tried < 600 && !document.querySelector('.u-over'); tried++)"
            "  await new Promise(done => setTimeout(done, 100));"
        )
        title, choices, canvases = browser.run(
            "return [document.querySelector('h1')?.textContent, [...document.querySelector('select').options]"
            ".map(one => one.text), document.querySelectorAll('canvas').length]"
        )
        assert title.startswith("LEAK")
        assert choices == RUNS
        assert canvases > 0
        assert [entry["message"] for entry in browser.log() if "Content Security" in entry["message"]] == []
    finally:
        browser.close()


@pytest.mark.slow
def test_without_our_curves_the_tab_is_inactive(tmp_path: Path) -> None:
    (tmp_path / "logdir").mkdir()
    page = Page(tmp_path / "logdir", fast=False, packages=packages(tmp_path / "packages"))
    try:
        assert not page.read("plugins_listing")[PLUGIN]["enabled"]
        assert page.get(f"{PLUGIN}/runs") == {"live": False, "runs": []}
    finally:
        page.close()


def test_a_module_that_raises_would_keep_tensorboard_from_starting(tmp_path: Path) -> None:
    """What the entry's own care is for: this is TensorBoard's behaviour."""
    (tmp_path / "memory_tab_raises.py").write_text("raise ImportError('not as we know it')\n")
    with pytest.raises(RuntimeError, match="not as we know it"):
        Page(tmp_path, fast=False, packages=with_entry(tmp_path, "memory_tab_raises:Loader"))
