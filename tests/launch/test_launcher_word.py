"""What torchrun knows when it ends, told to the waiting parent."""

import signal
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from forgather_mem.launch.at_exit import note_word, word_of
from forgather_mem.reporting.ranks import LauncherWord
from forgather_mem.telemetry import run_session


def failure(rank: int, code: int) -> ProcessFailure:
    return ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=code, error_file="<N/A>")


@pytest.mark.usefixtures("session")
def test_the_exit_of_each_rank_that_failed_is_known_in_the_parent(tmp_path: Path) -> None:
    note_word(ChildFailedError("train.py", {11: failure(3, -9), 8: failure(0, 1)}))
    word = word_of(str(tmp_path))
    assert {rank: code for rank, (code, _) in word.exits.items()} == {11: -9, 8: 1}
    assert word.exits[11][1] > 1.6e9
    assert word.asked is None


@pytest.mark.usefixtures("session")
def test_the_signal_that_asked_the_launcher_to_end_is_known_in_the_parent(tmp_path: Path) -> None:
    note_word(SignalException("Process 7 got signal: 15", signal.SIGTERM))
    assert word_of(str(tmp_path)) == LauncherWord({}, 15)


@pytest.mark.usefixtures("session")
def test_any_other_error_tells_nothing_of_ranks(tmp_path: Path) -> None:
    note_word(ValueError("no such option"))
    assert word_of(str(tmp_path)) == word_of(None) == LauncherWord()


@pytest.mark.usefixtures("session")
def test_what_somebody_else_wrote_into_the_notes_is_no_word(tmp_path: Path) -> None:
    with (tmp_path / run_session.NOTES).open("a") as notes:
        notes.write("ranks failed\tnone:of:this 1:2 9999999:1:1\nranks asked\t-1\n")
    assert word_of(str(tmp_path)) == LauncherWord()
