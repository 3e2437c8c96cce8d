"""What the parent prints and writes at the end: why the command ended, and whether a limit of the user's is broken."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch

from forgather_mem.formats.ring_memory import StateMemory
from forgather_mem.launch.outcome import print_reports, report_outcome
from forgather_mem.launch.sampler import Sampler
from forgather_mem.reporting.run_dir import run_report
from tests.faults import failing
from tests.launch.commands import RUN, report_in, run, taken_apart, watched
from tests.launch.forked_run import run_forked, watched_forked
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
    written = report_in(folder)
    assert (written["run"]["end"], written["run"]["exit_code"], written["killed"]["signal"]) == ("killed", 137, 9)


@pytest.mark.slow
def test_a_peak_over_its_limit_ends_in_3_and_the_report_goes_where_it_is_wanted(folder: Path) -> None:
    (folder / "grows.py").write_text("import sys; x = b'x' * 2**26; sys.exit(int(sys.argv[1]))")
    result = watched(["--max-peak", "host=50MiB", "--report", "r.json", "grows.py", "0"], folder)
    assert result.plain.code == 3
    assert "the peak of host was" in result.report
    report = json.loads((folder / "r.json").read_text())
    assert 2**26 < report["host"]["rss_peak_bytes"] < 2**27
    assert report["run"]["argv"] == ["0"]
    assert watched(["--max-peak=host=50MiB", "grows.py", "5"], folder).plain.code == 5, "the command's own code"
    assert watched(["--max-peak", "host=8GiB", "grows.py", "0"], folder).plain.code == 0
    result = watched(["--max-peak", "host=8GiB", "--max-peak", "gpu7=1GiB", "grows.py", "0"], folder)
    assert result.plain.code == 4
    assert "GPU 7 was not measured" in result.report


def test_where_the_wanted_file_cannot_be_written_the_report_comes_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "a.py").write_text("import os; os.rmdir('to')")
    result = taken_apart(run([*RUN, "--report", "to/report.json", "a.py"], tmp_path))
    assert result.plain.code == 0
    assert f"can't write --report {tmp_path}/to/report.json: No such file or directory" in result.report
    (tmp_path / "to").mkdir()
    assert run([*RUN, "--report", "to/report.json", "--max-peak", "host=8GiB", "a.py"], tmp_path).code == 4


@pytest.mark.fresh
@pytest.mark.parametrize("last", ["", "tempfile._shutil.rmtree(out), os.kill(os.getpid(), 9)"], ids=["end", "killed"])
def test_a_training_whose_folder_is_cleared_away_has_its_report(folder: Path, last: str) -> None:
    (folder / "train.py").write_text(
        "import os, tempfile, forgather_mem, torch\n" "from types import SimpleNamespace\n"
        "with tempfile.TemporaryDirectory() as out:\n" "    model = torch.nn.Linear(8, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters())\n"
        "    callbacks = forgather_mem.load_callbacks('callbacks/watch.yaml')\n"
        "    args = SimpleNamespace(output_dir=out)\n"
        "    loop = forgather_mem.TrainingLoop(model, optimizer, callbacks=callbacks, args=args)\n"
        "    with loop.train():\n" "        for _ in range(5):\n" "            with loop.step():\n"
        "                model(torch.ones(2, 8)).sum().backward()\n" "                optimizer.step()\n"
        f"        {last}\n"
    )  # fmt: skip
    result = watched_forked(["--report", "r.json", "train.py"], folder)
    assert f"train.py == {'killed (SIGKILL) after ' * bool(last)}5 steps" in result.report
    run = json.loads((folder / "r.json").read_text())["run"]
    assert (run["folder"], run["script"], run["versions"]["torch"]) == (None, "train.py", torch.__version__)
    assert not list(folder.glob("forgather_mem*"))


OURS = (StateMemory.settle, Sampler.end, report_outcome, run_report, print_reports)
ERRORS = (RecursionError, MemoryError, KeyboardInterrupt)


def cell(place: int, number: int) -> Any:
    """Each function fails with one of the errors; with the others by `make soak`."""
    function, error = OURS[place], ERRORS[number]
    marks = [pytest.mark.soak] if place % 3 != number else []
    return pytest.param(function, error, marks=marks, id=f"{function.__qualname__}-{error.__name__}")


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize(("function", "error"), [cell(place, number) for place in range(5) for number in range(3)])
def test_a_limit_is_not_passed_because_something_of_ours_has_failed(
    tmp_path: Path, function: FunctionType, error: type[BaseException]
) -> None:
    (tmp_path / "a.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    told = f"can't tell about --fail-on leak, --max-peak host=8GiB: there is no report ({error.__name__})\n"
    with failing(function, error):
        result = run_forked([*RUN, "--max-peak", "host=8GiB", "--fail-on=leak", "a.py", "0"], tmp_path)
        assert (result.code, told in result.err) == (4, True), result.err
        assert run_forked([*RUN, "--max-peak", "host=8GiB", "a.py", "7"], tmp_path).code == 7
        assert run_forked([*RUN, "--report", "report.json", "a.py", "0"], tmp_path).code == 0


def test_switched_off_a_limit_is_not_passed_and_the_command_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os, sys; print('PYTHONPATH' in os.environ); sys.exit(int(sys.argv[1]))")
    for own, code in ((0, 4), (7, 7)):
        result = run([*RUN, "--max-peak", "host=8GiB", "a.py", str(own)], tmp_path, FORGATHER_MEM="0")
        assert (result.code, result.out) == (code, run([sys.executable, "a.py", "0"], tmp_path).out)
        told = "can't tell about --max-peak host=8GiB: FORGATHER_MEM switches all watching off"
        assert result.err == f"forgather-mem: {told}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"a.py"}


@pytest.mark.parametrize("limits", [["--max-peak", "host=8GiB"], ["--fail-on", "leak"]])
def test_a_limit_is_not_passed_where_the_command_has_removed_our_folder(tmp_path: Path, limits: list[str]) -> None:
    (tmp_path / "a.py").write_text("import shutil; shutil.rmtree('forgather_mem')")
    result = run([*RUN, *limits, "a.py"], tmp_path)
    assert result.code == 4
    assert "forgather-mem: can't tell: the command has removed what its trainings noted\n" in result.err


@pytest.mark.parametrize(("where", "code"), [(">&-", 0), (">/dev/full", 0), (">&- --max-peak host=2MiB", 3)])
def test_where_nothing_can_be_said_the_exit_code_is_as_otherwise(tmp_path: Path, where: str, code: int) -> None:
    (tmp_path / "a.py").write_text("x = b'x' * 2**26")
    stream, _, limit = where.partition(" ")
    command = f"exec {shlex.join(RUN)} {limit or '--max-peak host=8GiB'} a.py 2{stream}"
    assert run(["sh", "-c", command], tmp_path).code == code


LOOP = """
import os, signal, sys
import torch

if not os.fork():
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(5):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    os.kill(os.getpid(), getattr(signal, sys.argv[1])) if len(sys.argv) > 1 else sys.exit()
os.wait()
"""


@pytest.mark.fresh
def test_a_limit_is_not_passed_by_a_training_that_was_killed_unnoticed(folder: Path) -> None:
    (folder / "launcher.py").write_text(LOOP)
    assert watched_forked(["--max-peak", "host=8GiB", "launcher.py"], folder).plain.code == 0
    result = watched_forked(["--max-peak", "host=8GiB", "launcher.py", "SIGKILL"], folder)
    assert (result.plain.code, "can't tell: a training has recorded no end\n" in result.report) == (4, True)
    assert watched_forked(["--max-peak", "host=2MiB", "launcher.py", "SIGKILL"], folder).plain.code == 3


@pytest.mark.fresh
def test_a_limit_is_not_passed_where_nothing_is_watched(folder: Path) -> None:
    (folder / "off.yaml").write_text(
        "trainer_callbacks: !list\n    - !singleton:forgather_mem.callbacks:MemoryCallback { enabled: false }\n"
    )
    (folder / "train.py").write_text(LOOP)
    result = watched_forked(["--template", "off.yaml", "--max-peak", "host=8GiB", "train.py"], folder)
    assert result.plain.code == 4, result.report
    assert "--max-peak host=8GiB: host was not measured" in result.report


@pytest.mark.fresh
def test_of_a_kill_in_the_first_step_the_black_box_has_the_phase(folder: Path) -> None:
    (folder / "first.py").write_text(
        "import os, signal, torch\n"
        "x = torch.ones(4, requires_grad=True)\nx.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))\n"
        "torch.optim.SGD([x]), x.sum().backward()\n"
    )
    result = run_forked([*RUN, "first.py"], folder)
    assert "Last sign of life: step 1, backward." in " ".join(result.err.split())
