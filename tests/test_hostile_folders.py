"""Whatever stands in a run's folder, `report` answers soon, in bounded memory, and in words. All cases: tests/soak."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from forgather_mem import TrainingLoop
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.formats.ring_writer import RingWriter
from forgather_mem.reporting.build import write_report
from forgather_mem.reporting.run_dir import find_run, run_report
from forgather_mem.sinks import jsonl
from tests import hostile_folders as hostile
from tests.hostile_folders import FILES, FOLDERS, THINGS, Make, Reporter
from tests.reporting.report_fixtures import all_well, killed, leaking, out_of_memory


@pytest.fixture(scope="module")
def reporter() -> Iterator[Reporter]:
    server = Reporter()
    yield server
    server.close()


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plain loop that was watched: its report, log, black box and event file."""
    folder = tmp_path_factory.mktemp("real")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = TrainingLoop(model, optimizer, args=SimpleNamespace(output_dir=str(folder)), callbacks=[MemoryCallback()])
    with pytest.MonkeyPatch.context() as patch, loop.train(), loop.epoch():
        patch.setattr(jsonl, "ROLL_UP_RECORDS", 8)
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
    for number, path in list(enumerate(paths))[::12]:
        value = hostile.VALUES[number % len(hostile.VALUES)]
        (folder / "report.json").write_text(json.dumps(hostile.with_value(report, path, value)))
        hostile.check(reporter, folder, hostile.MODES[number % 4])


@pytest.mark.parametrize(
    "value", [10**400, float("nan"), "\x1b]0;mine\x07", [None], {}], ids=["huge", "nan", "escape", "list", "table"]
)
def test_a_log_and_a_black_box_with_such_values(
    value: object, reporter: Reporter, real_run: Path, tmp_path: Path
) -> None:
    lines = (real_run / "memory.rank0.jsonl").read_bytes().splitlines()
    rolled_up = [number for number, line in enumerate(lines) if line.startswith(b'{"type":"roll-up"')]
    assert rolled_up
    for number in (0, 1, *rolled_up, len(lines) - 1):
        path = list(hostile.paths_in(json.loads(lines[number])))[number % 5 + 1]
        make = hostile.line_with(number, path, value)
        assert_answers(reporter, real_run, tmp_path / f"line{number}", make, "json")
    assert_answers(reporter, real_run, tmp_path / "ring", hostile.ring_header_with(("kills",), value), "text")


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name != "100,000 logs"])
def test_a_folder_that_no_training_leaves(folder: str, reporter: Reporter, real_run: Path, tmp_path: Path) -> None:
    assert_answers(reporter, real_run, tmp_path / "run", FOLDERS[folder], "text")
    subprocess.run(["rm", "-rf", str(tmp_path / "run")], check=True)  # it may be too deep for Python


_NAMES = ("end", "where", "verdict", "sure", "limit_kind", "host", "folder", "event_folder", "process")


_TEXTS = [(made, keep) for made in (killed, leaking, out_of_memory, all_well) for keep in ((), _NAMES)]


@pytest.mark.parametrize(
    ("made", "keep"),
    [pytest.param(*case, marks=[pytest.mark.soak] * (number % 4 in (1, 2))) for number, case in enumerate(_TEXTS)],
)
def test_no_text_is_obeyed_whatever_shows_it(
    made: Callable[[], dict[str, object]], keep: tuple[str, ...], reporter: Reporter, tmp_path: Path
) -> None:
    report = json.loads(json.dumps(made()))
    report["run"]["settings"], report["run"]["versions"] = {"arguments.optim": "x", "a": "b"}, {"torch": "1"}
    for name, told in (
        ("honest", report),
        (f"a{hostile.OBEYED[:200].replace('/', '')}"[:80], hostile.with_texts(report, keep)),
    ):
        folder = tmp_path / name.encode("utf-8", "replace").decode()
        folder.mkdir()
        told["run"]["settings"] |= {hostile.OBEYED: "1"} if name != "honest" else {}
        (folder / "report.json").write_text(json.dumps(told))
        for mode in hostile.MODES:
            hostile.check(reporter, folder, mode)
    for pair in ((str(folder), str(tmp_path / "honest")), (str(tmp_path / "honest"), str(folder))):
        for option in ((), ("--json",), ("--markdown",), ("--html", str(tmp_path / "page.html"))):
            outcome = reporter.answer(["compare", *pair, *option], tmp_path / "printed")
            assert outcome.code == 0, outcome.printed
            hostile.assert_obeyed_by_nobody(outcome.printed)
            if option == ("--markdown",):
                hostile.assert_nothing_but_text(outcome.printed)
        hostile.assert_obeyed_by_nobody((tmp_path / "page.html").read_text())


def test_no_text_of_a_log_or_a_black_box_is_obeyed(reporter: Reporter, real_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    ring = RingWriter(
        folder / "ring.rank0", {"pid": os.getpid(), "host": os.uname().nodename, "script": hostile.OBEYED}
    )
    ring.sample(3, {"host/rss_bytes": 2.0**30})
    ring.note("alert", 2, hostile.OBEYED)
    ring.state(3, "forward")
    for command in ("live", "report"):
        for option in ([], ["--once"] if command == "live" else ["--markdown"]):
            outcome = reporter.answer([command, str(folder), *option], tmp_path / "printed")
            assert outcome.code == 0, outcome.printed
            hostile.assert_obeyed_by_nobody(outcome.printed)
    ring.close()
    lines = (real_run / "memory.rank0.jsonl").read_bytes().splitlines()
    changed = [hostile.with_texts(json.loads(line), ("type", "event", "kind", "process", "host")) for line in lines]
    (folder / "ring.rank0").unlink()
    (folder / "memory.rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
    for mode in hostile.MODES:
        hostile.check(reporter, folder, mode)


def test_no_template_of_a_stranger_is_obeyed(reporter: Reporter, tmp_path: Path, own_folder: None) -> None:
    text = "# ::error::x \x9b2J ##[group]\n::add-mask::y:\n  ::warning::z: !call:os:system [ '::error::' ]\n"
    for name in ("::error::a.yaml", "b.yaml"):
        (tmp_path / name).write_text(text)
        for command in ("check", "pp", "graph", "targets", "trefs", "ls"):
            words = [command, *([] if command == "ls" else [str(tmp_path / name)])]
            outcome = reporter.answer(
                words + (["-I", str(tmp_path)] if command == "ls" else []), tmp_path.parent / "printed"
            )
            hostile.assert_obeyed_by_nobody(outcome.printed)
