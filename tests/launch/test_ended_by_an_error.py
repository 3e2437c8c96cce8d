"""A script without a Trainer runs out of memory: what the process tells at its end, and the parent prints."""

from pathlib import Path
from typing import Any

import pytest

from tests.launch.commands import Watched, python, report_in, run, watched
from tests.launch.forked_run import watched_forked

LIMIT = """
import resource
pages = int(open("/proc/self/statm").read().split()[5])
limit = pages * resource.getpagesize() + 60 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
"""


def outcome(folder: Path, text: str, *, exact: bool = True) -> tuple[Watched, dict[str, Any]]:
    (folder / "script.py").write_text(LIMIT + text)
    plain, with_us = run(python("script.py"), folder), watched(["script.py"], folder)
    assert (with_us.plain.code, with_us.plain.out) == (plain.code, plain.out)
    assert not exact or with_us.plain.err == plain.err
    return with_us, report_in(folder)


@pytest.mark.slow
def test_memory_that_runs_out_before_anything_is_trained(tmp_path: Path) -> None:
    result, report = outcome(tmp_path, "rows = bytearray(10**9)\n")
    assert (report["run"]["end"], report["run"]["exit_code"]) == ("oom", 1)
    assert (report["oom"]["phase"], report["oom"]["where"], report["oom"]["kind"]) == ("startup", "host", "MemoryError")
    assert report["oom"]["limit"] == "data (RLIMIT_DATA)"
    assert 0 < report["oom"]["free_bytes"] <= 60 * 2**20
    assert "OUT OF MEMORY   host, startup" in result.report
    assert "out of memory after" in result.report.splitlines()[0]


def test_small_things_until_nothing_is_left(tmp_path: Path) -> None:
    # With nothing left Python itself prints of the traceback what it can
    _, report = outcome(tmp_path, "rows = []\nwhile True:\n    rows.append(bytearray(10_000))\n", exact=False)
    assert (report["run"]["end"], report["oom"]["phase"]) == ("oom", "other")


@pytest.mark.slow
def test_an_import_that_does_not_fit_is_startup(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("def make():\n    return bytearray(10**9)\n\nROWS = make()\n")
    _, report = outcome(tmp_path, "import large\n")
    assert report["oom"]["phase"] == "startup"


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    bytearray(10**9)\nexcept MemoryError:\n    print('survived')\n",
        "try:\n    bytearray(10**9)\nexcept MemoryError:\n    pass\nraise ValueError('something else')\n",
        "try:\n    bytearray(10**9)\nexcept MemoryError:\n    raise SystemExit(3)\n",
    ],
    ids=["it ends well", "another error", "it gives up by itself"],
)
def test_an_error_that_the_script_survives_is_not_its_end(tmp_path: Path, text: str) -> None:
    result, report = outcome(tmp_path, text)
    assert (report["oom"], report["run"]["end"]) == (None, "finished")
    assert "OUT OF MEMORY" not in result.report


@pytest.mark.slow
def test_a_command_that_went_on_after_one_of_its_processes(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(LIMIT + "bytearray(10**9)\n")
    _, report = outcome(tmp_path, "import subprocess, sys\nsubprocess.run([sys.executable, 'fails.py'])\n")
    assert report["oom"] is None


@pytest.mark.slow
@pytest.mark.fresh
def test_a_loop_that_has_a_reporter_itself_is_told_of_by_that(tmp_path: Path) -> None:
    text = """
import torch
from forgather_mem import TrainingLoop
from forgather_mem.callbacks import OOMReporter

model = torch.nn.Linear(8, 1)
loop = TrainingLoop(model, torch.optim.SGD(model.parameters()), callbacks=[OOMReporter()])
with loop.train(), loop.epoch():
    for _ in range(2):
        with loop.step():
            model(torch.ones(4, 8)).mean().backward()
    with loop.evaluation():
        model(torch.ones(2**40, 8))
"""
    (tmp_path / "script.py").write_text(text)
    result = watched_forked(["script.py"], tmp_path)
    assert "OUT OF MEMORY   host, step 2, evaluate" in result.report
    assert result.plain.err.count("OUT OF MEMORY") == 0
    oom = report_in(tmp_path)["oom"]
    assert (oom["step"], oom["phase"], oom["requested_bytes"]) == (2, "evaluate", 2**45)
