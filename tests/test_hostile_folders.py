"""Whatever stands in a run's folder, `report` answers soon, in bounded memory, and in words. All cases: tests/soak."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from forgather_mem import TrainingLoop
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.reporting.build import write_report
from forgather_mem.reporting.run_dir import find_run, run_report
from tests import hostile_folders as hostile
from tests.hostile_folders import FILES, FOLDERS, THINGS, Make, Reporter
from tests.reporting.report_fixtures import killed, leaking, out_of_memory


@pytest.fixture(scope="module")
def reporter() -> Iterator[Reporter]:
    server = Reporter()
    yield server
    server.close()


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plain loop that was watched: its report, log, black box and event file."""
    return make_real_run(tmp_path_factory.mktemp("real"))


def make_real_run(folder: Path) -> Path:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = TrainingLoop(model, optimizer, args=SimpleNamespace(output_dir=str(folder)), callbacks=[MemoryCallback()])
    with loop.train(), loop.epoch():
        for _ in range(30):
            with loop.step():
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
    place = find_run(folder / "forgather_mem")
    write_report(run_report(place), place)
    (events,) = folder.glob("runs/*/*tfevents*")
    shutil.copy(events, place / FILES[4])
    return place


def assert_answers(reporter: Reporter, real_run: Path, folder: Path, make: Make, *modes: str) -> str:
    shutil.copytree(real_run, folder)
    make(folder)
    return "".join(hostile.check(reporter, folder, mode).printed for mode in modes)


def test_the_run_itself_is_shown(reporter: Reporter, real_run: Path, tmp_path: Path) -> None:
    printed = assert_answers(reporter, real_run, tmp_path / "run", lambda folder: None, *hostile.MODES)
    assert "left out" not in printed
    assert '"stacks":[{' in printed


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("file", ["all", FILES[0]])
def test_a_file_that_is_something_else(
    file: str, thing: str, reporter: Reporter, real_run: Path, tmp_path: Path
) -> None:
    printed = assert_answers(reporter, real_run, tmp_path / "run", hostile.replaced(file, thing), "text")
    if file == FILES[0] and thing not in ("only a schema", "two of each key", "a list of lists", "nested tables"):
        assert "left out: report.json: " in printed
        assert "30 steps" in printed, "its log tells the same"


@pytest.mark.parametrize("report", [killed(), leaking(), out_of_memory()], ids=["killed", "leak", "oom"])
def test_a_value_that_is_something_else_leaves_the_rest(
    report: dict[str, object], reporter: Reporter, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    report = json.loads(json.dumps(report))
    paths = list(hostile.paths_in(report))
    for number, path in list(enumerate(paths))[::8]:
        value = hostile.VALUES[number % len(hostile.VALUES)]
        (folder / "report.json").write_text(json.dumps(hostile.with_value(report, path, value)))
        hostile.check(reporter, folder, hostile.MODES[number % 3])


@pytest.mark.parametrize(
    "value", [10**400, float("nan"), "\x1b]0;mine\x07", [None], {}], ids=["huge", "nan", "escape", "list", "table"]
)
def test_a_log_and_a_black_box_with_such_values(
    value: object, reporter: Reporter, real_run: Path, tmp_path: Path
) -> None:
    lines = (real_run / "memory.rank0.jsonl").read_bytes().splitlines()
    for number in (0, 1, len(lines) - 1):
        path = list(hostile.paths_in(json.loads(lines[number])))[number % 5 + 1]
        make = hostile.line_with(number, path, value)
        assert_answers(reporter, real_run, tmp_path / f"line{number}", make, "json")
    assert_answers(reporter, real_run, tmp_path / "ring", hostile.ring_header_with(("kills",), value), "text")


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name != "100,000 logs"])
def test_a_folder_that_no_training_leaves(folder: str, reporter: Reporter, real_run: Path, tmp_path: Path) -> None:
    assert_answers(reporter, real_run, tmp_path / "run", FOLDERS[folder], "text")
    subprocess.run(["rm", "-rf", str(tmp_path / "run")], check=True)  # it may be too deep for Python
