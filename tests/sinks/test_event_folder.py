"""The folder of a run's TensorBoard data, with the names that real writers give."""

import os
import time
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from forgather_mem.formats.event_file import EventFile
from forgather_mem.sinks.event_page import find_event_folder


def trainers_file(folder: Path) -> None:
    """An event file as a trainer's own writer leaves it: this host, this process."""
    SummaryWriter(str(folder)).close()


def our_file(folder: Path) -> None:
    file = EventFile(folder, lambda: None)
    assert file.ready()
    file.close()


def test_what_was_asked_for_comes_first_then_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers_file(tmp_path / "runs" / "a")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "~/tb")
    assert find_event_folder("s3://bucket/x", tmp_path, time.time()) == "s3://bucket/x"
    assert find_event_folder(None, tmp_path, time.time()) == os.path.expanduser("~/tb")


def test_the_newest_file_of_this_process_gives_the_folder(tmp_path: Path) -> None:
    trainers_file(tmp_path / "runs" / "older")
    trainers_file(tmp_path / "runs" / "newer" / "trial")
    time.sleep(0)
    assert find_event_folder(None, tmp_path, time.time()) == str(tmp_path / "runs" / "newer" / "trial")


def test_files_of_other_processes_and_hosts_and_of_ours_are_none(tmp_path: Path) -> None:
    (tmp_path / "runs" / "other").mkdir(parents=True)
    host = os.uname().nodename
    for name in (f"1700000000.{host}.1.0", f"1700000000.elsewhere.{os.getpid()}.0", f"1700000000.{host}"):
        (tmp_path / "runs" / "other" / f"events.out.tfevents.{name}").touch()
    our_file(tmp_path / "runs" / "ours")
    found = Path(find_event_folder(None, tmp_path, time.time()))
    assert found.parent == tmp_path / "runs"
    assert found.name not in ("other", "ours")
    assert found.name.endswith(host)
    assert not found.exists()


def test_the_folder_of_an_earlier_training_is_not_taken_again(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "first"
    trainers_file(folder)
    our_file(folder)
    # A second training of the process whose trainer writes no events, two seconds later.
    assert find_event_folder(None, tmp_path, time.time() + 2) != str(folder)
    # A second one whose trainer does write: a new file of its own, made as that training begins.
    began_s = time.time()
    trainers_file(folder)
    assert find_event_folder(None, tmp_path, began_s) == str(folder)


def test_two_writers_of_ours_in_one_training_have_one_folder(tmp_path: Path) -> None:
    trainers_file(tmp_path / "runs" / "earlier")
    our_file(tmp_path / "runs" / "earlier")
    folder = tmp_path / "runs" / "this"
    file = EventFile(folder, lambda: None)
    assert file.ready()
    assert find_event_folder(None, tmp_path, time.time() + 2) == str(folder)
    file.close()
    assert find_event_folder(None, tmp_path, time.time() + 2) != str(folder)


def test_checkpoints_are_not_searched(tmp_path: Path) -> None:
    trainers_file(tmp_path / "checkpoint-10" / "runs")
    assert Path(find_event_folder(None, tmp_path, time.time())).parent == tmp_path / "runs"


def test_without_an_output_folder_it_is_where_the_process_stands() -> None:
    assert Path(find_event_folder(None, None, time.time())).parent == Path("runs")
