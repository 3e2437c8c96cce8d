"""A function in a forked child."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forgather_mem.errors import PlanError
from forgather_mem.planning.child import acting_on_nothing, in_a_child


def test_the_child_may_change_what_it_likes() -> None:
    values = [1]
    assert in_a_child(lambda: values.append(2) or list(values)) == [1, 2]
    assert values == [1]


def test_it_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    in_a_child(lambda: print("of the child"))
    assert capfd.readouterr() == ("", "")


def test_an_error_comes_back_with_its_line() -> None:
    with pytest.raises(
        PlanError, match=r"test_child.py:\d+ \(.*ZeroDivisionError|test_child.py:\d+ .*division by zero"
    ):
        in_a_child(lambda: 1 // 0)


def test_a_refusal_comes_back_as_it_is() -> None:
    def refuse() -> None:
        raise PlanError("weights of 4 bits")

    with pytest.raises(PlanError, match=r"^weights of 4 bits$"):
        in_a_child(refuse)


def test_a_killed_child_is_told() -> None:
    with pytest.raises(PlanError, match="killed by SIGKILL"):
        in_a_child(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_child_that_never_ends_is_ended() -> None:
    with pytest.raises(PlanError, match="has not ended after 1 s"):
        in_a_child(signal.pause, most_s=1.0)
    with pytest.raises(ChildProcessError):  # nothing of it is left
        os.waitpid(-1, os.WNOHANG)


def test_a_large_answer_comes_back_whole() -> None:
    assert in_a_child(lambda: bytes(5 * 2**20)) == bytes(5 * 2**20)


def problem_in_a_child(act: Callable[[], object]) -> str:
    """What comes of it there; afterwards files can be written again."""

    def child() -> str:
        with acting_on_nothing():
            try:
                act()
                problem = ""
            except OSError as error:
                problem = type(error).__name__
        with open(os.devnull, "w") as file:
            file.write(problem)
        return problem

    return in_a_child(child)


@pytest.mark.parametrize(
    "act",
    [
        lambda path: path.write_text("x"),
        lambda path: path.touch(),
        lambda path: path.parent.rmdir(),
        lambda path: path.mkdir(),
        lambda path: subprocess.run(["true"], check=True),
        lambda path: socket.create_connection(("127.0.0.1", 9)),
    ],
    ids=["write", "touch", "remove", "make a folder", "program", "connection"],
)
def test_no_file_is_written_and_nobody_called(tmp_path: Path, act: Callable[[Path], object]) -> None:
    assert problem_in_a_child(lambda: act(tmp_path / "new")) == "PermissionError"
    assert not list(tmp_path.iterdir())


def test_files_are_read() -> None:
    assert problem_in_a_child(lambda: Path(__file__).read_text()) == ""


def test_positions_are_the_childs_own_and_what_it_writes_is_lost(tmp_path: Path) -> None:
    (tmp_path / "read").write_bytes(b"abcdef")
    with open(tmp_path / "read", "rb", buffering=0) as read, open(tmp_path / "log", "ab", buffering=0) as written:
        read.read(2)
        assert in_a_child(lambda: (read.read(2), written.write(b"x"))) == (b"cd", 1)
        assert read.read() == b"cdef"
    assert (tmp_path / "log").read_bytes() == b""


def test_nothing_is_sent_through_a_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"for the parent")
        assert problem_in_a_child(lambda: ours.recv(14)) == "OSError"
        assert ours.recv(14) == b"for the parent"
