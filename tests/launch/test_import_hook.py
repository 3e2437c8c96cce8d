"""The hook that meets the Trainer: it waits for one module, and leaves no trace in its import."""

import importlib
import sys
import traceback
from pathlib import Path

import pytest

from forgather_mem.launch.import_hook import TRAINER_MODULE, TrainingFinder, install
from forgather_mem.telemetry import run_session


class Told(TrainingFinder):
    """Notes when the module is there, and what it had in it by then."""

    def __init__(self) -> None:
        self.told: list[object] = []
        super().__init__({TRAINER_MODULE: lambda: self.told.append(getattr(sys.modules[TRAINER_MODULE], "last", None))})


@pytest.fixture
def finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """In front of all others, with a package of the name transformers that is of one line."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").touch()
    (tmp_path / "transformers" / "trainer.py").write_text("last = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finder = Told()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    return finder


def imported() -> None:
    try:
        importlib.import_module(TRAINER_MODULE)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
            del sys.modules[name]


def test_it_is_told_once_when_the_module_has_run(finder: Told) -> None:
    importlib.import_module("transformers")
    assert finder.find_spec("json") is None
    assert finder.told == []
    imported()
    assert finder.told == [1]


def test_a_module_that_fails_is_not_there_and_its_traceback_has_no_frame_of_ours(finder: Told, tmp_path: Path) -> None:
    (tmp_path / "transformers" / "trainer.py").write_text("1 / 0\n")
    shown = []
    for others in ([finder], []):
        sys.meta_path[:1] = others
        with pytest.raises(ZeroDivisionError) as caught:
            imported()
        shown.append([frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)])
    assert shown[0] == shown[1]
    assert finder.told == []


@pytest.mark.parametrize(("folder", "switch", "waits"), [("", None, True), ("", "0", False), (None, None, False)])
def test_it_waits_in_processes_of_a_run_that_is_not_switched_off(
    folder: str | None, switch: str | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "orig_argv", [*sys.orig_argv, "--multiprocessing-fork"])  # nothing at its exit
    for name, value in ((run_session.FOLDER, folder), ("FORGATHER_MEM", switch)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    install()
    assert isinstance(sys.meta_path[0], TrainingFinder) == waits
