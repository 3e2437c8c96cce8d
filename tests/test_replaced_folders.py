"""While a training runs, somebody puts a link in the place of a folder: nothing of ours goes through it."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from forgather_mem import attach
from forgather_mem.callbacks import JsonLogger, JsonMemoryLogger, MemoryCallback, TBLogger
from forgather_mem.files import make_real_folder, new_file, open_real, remove_real, rename_real, replace_file
from forgather_mem.formats.jsonl import rotate
from forgather_mem.formats.ring_writer import RingWriter
from forgather_mem.probes import HostProbe
from forgather_mem.sinks import JsonlSink, TensorBoardSink
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.launch.commands import JUDGED, report_in
from tests.launch.forked_run import run_forked
from tests.training import make_trainer

NAMES = (
    "report.json", "memory.rank0.jsonl", "memory.rank0.jsonl.1", "ring.rank0", "log.json", "log.jsonl", "trainings",
)  # fmt: skip


class Swaps(TrainerCallback):
    """After the second step a link to somebody else's folder has taken the place of one of ours."""

    def __init__(self, place: str, victim: Path) -> None:
        self.place, self.victim = place, victim

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if state.global_step == 2:
            (place,) = Path(args.output_dir).glob(self.place) if self.place else [Path(args.output_dir)]
            aside = place.with_name("aside")
            place.rename(aside)
            place.symlink_to(self.victim)
            for path in aside.rglob("*.jsonl"):  # so that it is opened by its name again
                path.unlink()


def put_files(folder: Path) -> dict[str, bytes]:
    for name in NAMES:
        (folder / name).write_bytes(b"precious")
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Somebody else's folder, which holds the same names wherever a path of ours may end."""
    folder = tmp_path / "victim"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("place", ["forgather_mem/*", "forgather_mem", ""])
def test_a_link_that_appears_while_a_training_runs_is_not_written_through(
    tmp_path: Path, victim: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    sinks = [JsonlSink(max_bytes=4096), JsonlSink(tmp_path / "out/logs/log.jsonl"), TensorBoardSink()]
    callbacks = [
        MemoryCallback([Rule(Every(steps=1), [HostProbe()])], sinks),
        JsonMemoryLogger(path=tmp_path / "out/logs/log.json"),
        JsonLogger(),
        TBLogger(),
        Swaps(place, victim),
    ]
    trainer = make_trainer(tmp_path / "out", callbacks, max_steps=30, logging_steps=1)
    watching = attach(trainer)
    before = put_files(victim)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert watching.report()["run"]["end"] == "finished"
    assert watching.report()["steps"] == 30
    assert contents(victim) == before
    assert not [path for path in victim.rglob("*") if path.is_dir()]


def test_a_folder_that_was_a_link_from_the_beginning_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "large disk")
    trainer = make_trainer(tmp_path / "out", [JsonMemoryLogger(path=tmp_path / "out" / "log.jsonl")])
    watching = attach(trainer)
    trainer.train()
    assert report_in(tmp_path / "large disk")["steps"] == watching.report()["steps"] == 6
    assert len((tmp_path / "large disk" / "log.jsonl").read_text().splitlines()) >= 6


OF_A_TRAINING = f"""
import sys
sys.path.insert(0, {os.getcwd()!r})
from pathlib import Path
from tests.test_replaced_folders import Swaps
from tests.training import make_trainer
make_trainer(Path("out"), [Swaps("forgather_mem/*", Path("victim").resolve())]).train()
"""
OF_ITS_OWN = """
import os, torch
os.rename("forgather_mem", "aside")
os.symlink(os.path.abspath("victim"), "forgather_mem")
name, = os.listdir("aside")
os.mkdir(os.path.join("victim", name))
raise MemoryError
"""


@pytest.mark.fresh
@pytest.mark.parametrize(("text", "code"), [(OF_A_TRAINING, 0), (OF_ITS_OWN, 1)], ids=["a training", "its own"])
def test_run_writes_and_reads_nothing_through_a_link_in_the_place_of_a_folder(
    tmp_path: Path, victim: Path, text: str, code: int
) -> None:
    (tmp_path / "train.py").write_text(text)
    before = put_files(victim)
    result = run_forked([*JUDGED, "train.py"], tmp_path)
    assert result.code == code, result.err
    assert contents(victim) == before


WRITERS = {
    "a file is replaced": lambda path: replace_file(path, b"ours", through_links=False),
    "a new file": lambda path: new_file(path, through_links=False).close(),
    "a file is opened": lambda path: os.close(open_real(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)),
    "a file is removed": remove_real,
    "a file is renamed": lambda path: rename_real(path, "other"),
    "a log is renamed": lambda path: rotate(path, keep=3),
    "a log is given up": lambda path: rotate(path, keep=0),
    "a folder is made": lambda path: make_real_folder(path.parent / "new"),
    "a black box": lambda path: RingWriter(path, {}).close(),
}


@pytest.fixture(params=["folder", "above"])
def swapped(request: pytest.FixtureRequest, tmp_path: Path, victim: Path) -> Iterator[Path]:
    """A path whose folder, or the one above it, has become a link."""
    (tmp_path / "out" / "run").mkdir(parents=True)
    place = tmp_path / "out" if request.param == "above" else tmp_path / "out" / "run"
    place.rename(tmp_path / "aside")
    place.symlink_to(victim)
    theirs = victim / "run" if request.param == "above" else victim
    theirs.mkdir(exist_ok=True)
    before = put_files(theirs)
    yield tmp_path / "out" / "run" / "report.json"
    assert contents(theirs) == before
    assert sorted(os.listdir(theirs)) == sorted(NAMES)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_what_writes_refuses_a_link_and_names_it(swapped: Path, write: Any) -> None:
    with pytest.raises(OSError, match="it has become a link") as error:
        write(swapped)
    assert Path(error.value.filename).is_symlink()


@pytest.mark.parametrize("name", ["file", "nothing"])
def test_a_file_that_is_a_link_is_not_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / name)
    with pytest.raises(OSError, match="Too many levels"):
        open_real(tmp_path / "link", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert not (tmp_path / "nothing").exists()


def test_a_folder_that_is_missing_is_made_and_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    make_real_folder(tmp_path / "a" / "b")
    make_real_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as error:
        make_real_folder(tmp_path / "file" / "b")
    assert error.value.filename == str(tmp_path / "file")
