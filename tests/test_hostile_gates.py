"""Whatever stands in a baseline or a report, a limit is not passed by memory that has grown, and nothing ends in a
traceback."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from forgather_mem.cli.app import dispatch
from forgather_mem.comparing.baseline import Baseline
from forgather_mem.launch.outcome import against_baseline
from forgather_mem.reporting.build import write_report
from tests.comparing.runs import run
from tests.hostile_folders import THINGS, VALUES, paths_in, with_value

SMALL, LARGE = (
    run(500, held=40),
    run(5_000, parameters=120, gradients=120, optimizer=240, activations_peak=760, held=400),
)
BASELINE = '{"schema": 1, "allowed_growth": {"counted": 0.01, "resident": 0.1}, "trainings": [%s]}'


def test_whatever_is_in_the_place_of_a_baseline_lets_nothing_pass(tmp_path: Path) -> None:
    for number, make in enumerate(THINGS.values()):
        make(file := tmp_path / f"{number}.json")
        grown, missing = against_baseline(str(file), [LARGE], update=False)
        assert grown == []
        assert missing[0].startswith("--baseline: "), file


def test_whatever_part_of_a_baseline_is_something_else_lets_nothing_pass(tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    Baseline.of([SMALL]).write(file)
    whole = json.loads(file.read_text())
    assert against_baseline(str(file), [LARGE], update=False)[0]
    for path in paths_in(whole):
        for value in (*VALUES, "deleted"):
            changed = with_value(whole, path, value)
            if value == "deleted":
                changed = json.loads(json.dumps(changed).replace(f'"{path[-1]}": "deleted"', '"other": 1'))
            file.write_text(json.dumps(changed))
            assert any(against_baseline(str(file), [LARGE], update=False)), (path, value)


@pytest.mark.slow
@pytest.mark.parametrize("nested", ["[" * 100_000 + "]" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000, "9" * 10**7])
def test_a_run_against_a_hostile_baseline_does_not_begin(tmp_path: Path, nested: str) -> None:
    file = tmp_path / "memory.json"
    file.write_text(BASELINE % '{"counted": {}, "resident": {"host": 1}, "settings": {}}')
    (tmp_path / "a.py").write_text("kept = b'x' * 2**26")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGATHER_MEM")}
    command = [sys.executable, "-m", "forgather_mem", "run", "--baseline", "memory.json", "a.py"]
    assert subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, check=False).returncode == 3
    told = BASELINE % '{"counted": {}, "resident": {"host": 1}, "settings": {}}'
    file.write_text(f'{told[:-1]}, "x": {nested}}}')
    ended = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "is no baseline\n  name another file, or remove it: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_baseline_by_a_link_is_read_and_written_through_it(tmp_path: Path) -> None:
    link = tmp_path / "memory.json"
    (tmp_path / "stored").mkdir()
    link.symlink_to(tmp_path / "stored" / "memory.json")
    assert against_baseline(str(link), [SMALL], update=True) == ([], [])
    assert link.is_symlink()
    assert against_baseline(str(link), [SMALL], update=False) == ([], [])
    assert against_baseline(str(link), [LARGE], update=False)[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_report(SMALL, tmp_path / "small")
    write_report(LARGE, tmp_path / "large")
    return tmp_path


def compared(*words: str) -> int:
    return dispatch(["compare", *words, "--fail-on", "growth:2%"])


def test_a_report_by_a_link_is_compared(folder: Path) -> None:
    (folder / "latest.json").symlink_to(folder / "large" / "report.json")
    (folder / "latest").symlink_to(folder / "large")
    assert [compared("small", name) for name in ("large", "latest.json", "latest")] == [3, 3, 3]
    assert compared("large", "latest.json") == 0


def test_what_is_no_report_is_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (name, make) in enumerate(THINGS.items()):
        make(folder / f"{number}.json")
        for words in (("small", f"{number}.json"), (f"{number}.json", "large")):
            assert compared(*words) == 4, name
        assert 1 <= len(capsys.readouterr().err.splitlines()) <= 6


@pytest.mark.slow
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("hostile", ["small", "large"])
def test_whatever_part_of_a_report_is_something_else_lets_nothing_pass(
    folder: Path, hostile: str, every: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / hostile / "report.json"
    whole = json.loads(file.read_text())
    cases = [(path, value) for path in paths_in(whole) for value in VALUES if value != "\ud800"]
    for path, value in random.Random(hostile).sample(cases, len(cases) // every):
        file.write_text(json.dumps(with_value(whole, path, value)))
        assert compared("small", "large") in (3, 4), (path, value)
        assert "Traceback" not in capsys.readouterr().err
