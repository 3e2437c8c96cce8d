"""A function in a forked child."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from forgather_mem.errors import PlanError
from forgather_mem.planning.child import in_a_child


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
        in_a_child(lambda: signal.raise_signal(signal.SIGKILL))


def test_a_child_that_never_ends_is_ended() -> None:
    with pytest.raises(PlanError, match="has not ended after 1 s"):
        in_a_child(signal.pause, most_s=1.0)
    with pytest.raises(ChildProcessError):  # nothing of it is left
        os.waitpid(-1, os.WNOHANG)


def test_a_large_answer_comes_back_whole() -> None:
    assert in_a_child(lambda: bytes(5 * 2**20)) == bytes(5 * 2**20)


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
        with pytest.raises(PlanError, match="OSError"):
            in_a_child(lambda: ours.recv(14))
        assert ours.recv(14) == b"for the parent"


def test_pipes_and_a_terminal_are_the_parents(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    main, side = os.openpty()
    try:
        os.write(writer, b"for the parent")
        assert in_a_child(lambda: (os.read(reader, 3), os.write(writer, b"x"), os.write(side, b"x"))) == (b"", 1, 1)
        assert os.read(reader, 99) == b"for the parent"
        os.set_blocking(main, False)
        with pytest.raises(BlockingIOError):
            os.read(main, 9)
    finally:
        for number in (reader, writer, main, side):
            os.close(number)
