"""One folder for the pages of all callbacks of a training, and a page of its own for each callback."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forgather_mem.callbacks.training.output_paths import EventTarget, event_folder
from forgather_mem.engine.run import Run
from forgather_mem.engine.summary import RunFacts
from forgather_mem.telemetry.records import Moment
from tests.engine.test_closing import open_files
from tests.events import scalars


def moment(output_dir: Path, state: Any = None, **arguments: Any) -> Moment:
    run: Any = SimpleNamespace(output_dir=output_dir)
    return Moment("log", 1, None, SimpleNamespace(**arguments), state or SimpleNamespace(), None, {}, run)


def test_the_first_that_asks_decides_for_all_who_name_no_folder(tmp_path: Path) -> None:
    state = SimpleNamespace()
    first = event_folder(moment(tmp_path, state), tmp_path / "mine", 0.0)
    assert first == str(tmp_path / "mine")
    assert event_folder(moment(tmp_path, state), None, 0.0) == first
    assert event_folder(moment(tmp_path, state), tmp_path / "other", 0.0) == str(tmp_path / "other")
    assert event_folder(moment(tmp_path, state), None, 0.0) == first
    elsewhere = event_folder(moment(tmp_path), None, 0.0)
    assert Path(elsewhere).parent == tmp_path / "runs", "another training has a folder of its own"


def test_the_trainers_folder_is_taken_where_no_file_of_it_is_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_trainer = tmp_path / "logs"
    assert event_folder(moment(tmp_path, logging_dir=of_trainer), None, 0.0) == str(of_trainer)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "of the environment"))
    assert event_folder(moment(tmp_path, logging_dir=of_trainer), None, 0.0) == str(tmp_path / "of the environment")


def test_a_home_folder_and_a_remote_address_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert event_folder(moment(tmp_path), "~/runs", 0.0) == str(tmp_path / "runs")
    assert event_folder(moment(tmp_path), "gs://bucket/runs", 0.0) == "gs://bucket/runs"


def test_each_training_has_a_page_of_its_own_which_is_closed_at_its_end(tmp_path: Path) -> None:
    pages = []
    for value in (1.0, 2.0):
        run = Run(RunFacts())
        target = EventTarget(run, None, tmp_path)
        pages.append(target.page(moment(tmp_path)))
        assert target.page(moment(tmp_path)) is pages[-1]
        pages[-1].scalars({"mine/value": value}, 1)
        run.close()
    assert pages[0] is not pages[1]
    assert open_files(tmp_path) == set()
    assert [value for _, value in scalars(tmp_path)["mine/value"]] == [1.0, 2.0]
    assert len(list(tmp_path.rglob("*tfevents*"))) == 2
