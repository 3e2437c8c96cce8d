"""What the parent prints and writes at the end: why the command ended, and whether a limit of the user's is broken."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.launch.commands import RUN, run, taken_apart, watched
from tests.launch.forked_run import watched_forked
from tests.launch.processes import Waiting


def test_killed_is_explained_at_once_and_the_parent_ends_the_same_way(folder: Path) -> None:
    waiting = Waiting(folder, RUN)
    os.kill(waiting.child(), signal.SIGKILL)
    result = waiting.result()
    assert result.code == -signal.SIGKILL
    report = taken_apart(result).report
    assert "killed (SIGKILL)" in report
    assert "\nforgather-mem report forgather_mem/" in report
    assert len(report.splitlines()) <= 25
    (path,) = folder.glob("forgather_mem/*/report.json")
    written = json.loads(path.read_text())
    assert (written["run"]["end"], written["run"]["exit_code"], written["killed"]["signal"]) == ("killed", 137, 9)


def test_a_peak_over_its_limit_ends_in_3_and_the_report_goes_where_it_is_wanted(folder: Path) -> None:
    (folder / "grows.py").write_text("import sys; x = b'x' * 2**26; sys.exit(int(sys.argv[1]))")
    result = watched(["--max-peak", "host=50MiB", "--report", "r.json", "grows.py", "0"], folder)
    assert result.plain.code == 3
    assert "the peak of host was" in result.report
    report = json.loads((folder / "r.json").read_text())
    assert 2**26 < report["host"]["rss_peak_bytes"] < 2**27
    assert report["run"]["argv"] == ["0"]
    assert watched(["--max-peak=host=50MiB", "grows.py", "5"], folder).plain.code == 5, "the command's own code"
    result = watched(["--max-peak", "host=8GiB", "--max-peak", "gpu7=1GiB", "grows.py", "0"], folder)
    assert result.plain.code == 0
    assert "GPU 7 was not measured" in result.report


def test_where_the_wanted_file_cannot_be_written_the_report_comes_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "a.py").write_text("import os; os.rmdir('to')")
    result = taken_apart(run([*RUN, "--report", "to/report.json", "a.py"], tmp_path))
    assert result.plain.code == 0
    assert f"can't write --report {tmp_path}/to/report.json: No such file or directory" in result.report


@pytest.mark.fresh
def test_a_training_whose_folder_is_cleared_away_has_its_report(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import tempfile, forgather_mem, torch\n"
        "from types import SimpleNamespace\n"
        "with tempfile.TemporaryDirectory() as out:\n"
        "    model = torch.nn.Linear(8, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters())\n"
        "    callbacks = forgather_mem.load_callbacks('callbacks/watch.yaml')\n"
        "    args = SimpleNamespace(output_dir=out)\n"
        "    loop = forgather_mem.TrainingLoop(model, optimizer, callbacks=callbacks, args=args)\n"
        "    with loop.train():\n"
        "        for _ in range(5):\n"
        "            with loop.step():\n"
        "                model(torch.ones(2, 8)).sum().backward()\n"
        "                optimizer.step()\n"
    )
    result = watched_forked(["--report", "r.json", "train.py"], folder)
    assert "train.py == 5 steps" in result.report
    assert json.loads((folder / "r.json").read_text())["run"]["folder"] is None
    assert not list(folder.glob("forgather_mem*"))
