"""A run that is followed shows at each moment what the report would show of its files."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.formats.jsonl import finding_line, header_line, rotate, sample_line
from forgather_mem.page import server
from forgather_mem.page.data import run_data
from forgather_mem.page.server import FollowedRun, FollowedRuns
from forgather_mem.reporting.build import write_report
from forgather_mem.reporting.run_dir import run_report
from forgather_mem.telemetry.records import Finding, Sample
from forgather_mem.units import MIB
from tests.reporting.logs import log_of
from tests.reporting.report_fixtures import leaking, out_of_memory, parsed, written


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PACE", replace(server._PACE, least_s=0.0, core_frac=1e9))


def shown(run: FollowedRun) -> Any:
    return json.loads(run.latest()[1])


def followed(folder: Path) -> tuple[Path, FollowedRun]:
    """The log of a run with five steps, which have been shown."""
    path, run = log_of(folder, steps=5), FollowedRun(folder, "run")
    shown(run)
    return path, run


def read_anew(place: Path, name: str = "run") -> Any:
    return json.loads(json.dumps(run_data(run_report(place), place, name)))


def more(path: Path, first: int, number: int, rank: int = 0) -> None:
    with path.open("ab") as file:
        for step in range(first, first + number):
            values = {"host/rss_bytes": 2**30 + (rank + 1) * step * MIB, "gc/pause_s": 0.01}
            file.write(sample_line(Sample("step_end", step, None, 1000.0 + step, values)))


def test_what_is_appended_is_shown_as_if_all_were_read_anew(tmp_path: Path) -> None:
    path, run = followed(tmp_path)
    assert shown(run) == read_anew(tmp_path)
    more(path, 6, 10)
    with path.open("ab") as file:
        file.write(finding_line(Finding(kind="alert", step=15, text="host/rss_bytes is 9 GiB")))
    assert shown(run) == read_anew(tmp_path)
    assert run.latest()[0] == 2
    assert run.latest()[0] == 2  # nothing has come


def test_a_line_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    path, run = followed(tmp_path)
    before = shown(run)
    line = sample_line(Sample("step_end", 6, None, 1006.0, {"host/rss_bytes": 2.0**31}))
    with path.open("ab") as file:
        file.write(line[:20])
        file.flush()
        assert shown(run) == before
        file.write(line[20:])
    assert shown(run) == read_anew(tmp_path)
    assert len(shown(run)["steps"]) == 6


def test_a_log_that_goes_on_in_a_new_file_is_followed_there(tmp_path: Path) -> None:
    path, run = followed(tmp_path)
    header = path.read_bytes().splitlines(keepends=True)[0]
    rotate(path, 2)
    path.write_bytes(header)
    more(path, 6, 5)
    assert shown(run) == read_anew(tmp_path)
    assert len(shown(run)["steps"]) == 10


def test_another_process_in_the_same_file_begins_anew(tmp_path: Path) -> None:
    path, run = followed(tmp_path)
    with path.open("ab") as file:
        file.write(header_line(0, {"pid": 2**22 + 9, "started_s": 1000.0, "script": "b.py"}))
    more(path, 1, 3)
    assert shown(run) == read_anew(tmp_path)
    assert shown(run)["script"] == "b.py"


def test_all_ranks_are_followed(tmp_path: Path) -> None:
    paths = [log_of(tmp_path, rank, 3, steps=5) for rank in range(3)]
    run = FollowedRun(tmp_path, "run")
    shown(run)
    for rank, path in enumerate(paths[:2]):
        more(path, 6, 4, rank)
    assert shown(run) == read_anew(tmp_path)


@pytest.mark.parametrize("report", [leaking, out_of_memory])
def test_at_its_end_the_report_is_shown(tmp_path: Path, report: Any) -> None:
    path, run = followed(tmp_path)
    written(report(), tmp_path)
    assert shown(run) == read_anew(tmp_path)
    more(path, 6, 1)
    assert shown(run) == read_anew(tmp_path)  # a row that stands for a failure does not stay


def test_a_log_that_is_no_log_is_given_up(tmp_path: Path) -> None:
    path, run = followed(tmp_path)
    with path.open("ab") as file:
        file.write(b"x" * 30_000 + b"\n" + b"no record\n" * 20_000)
    more(path, 6, 5)
    assert len(shown(run)["steps"]) == 5


def test_a_log_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    path, run = followed(tmp_path / "run")
    more(log_of(tmp_path / "other", steps=9), 10, 1)
    path.unlink()
    path.symlink_to(tmp_path / "other" / path.name)
    assert path.name in shown(run)["error"]


def test_a_folder_that_is_gone_is_told_and_what_comes_back_is_shown(tmp_path: Path) -> None:
    path, run = followed(tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "away")
    assert "run" in shown(run)["error"]
    shutil.move(tmp_path / "away", tmp_path / "run")
    more(path, 6, 1)
    assert len(shown(run)["steps"]) == 6


def test_runs_keep_their_numbers_when_others_come(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old\x1b[31m")):
        os.utime(log_of(tmp_path / name), (2e9 - age, 2e9 - age))
    runs = FollowedRuns(tmp_path)
    assert runs.listed() == [{"id": 0, "name": "new", "about": ""}, {"id": 1, "name": "old\\x1b[31m", "about": ""}]
    os.utime(log_of(tmp_path / "newest"), (3e9, 3e9))
    write_report(parsed(leaking()), tmp_path / "new")
    newest = {"id": 2, "name": "newest", "about": ""}
    assert runs.listed()[:2] == [
        newest,
        {"id": 0, "name": "new", "about": "train.py, leak, GPU 0 41.3 GiB, host 8.8 GiB"},
    ]
    run = runs.run(0)
    assert run is not None
    assert shown(run)["name"] == "new"
    assert runs.run(0) is run
    assert runs.run(3) is None


def test_a_run_by_itself_is_called_by_its_folder(tmp_path: Path) -> None:
    log_of(tmp_path / "20261120-120000")
    assert FollowedRuns(tmp_path / "20261120-120000").listed() == [{"id": 0, "name": "20261120-120000", "about": ""}]
