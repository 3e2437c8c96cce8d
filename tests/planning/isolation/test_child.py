"""A function in a forked child."""

import os
import re
import signal
import socket
import threading
from pathlib import Path

import pytest

from forgather_mem.errors import PlanError
from forgather_mem.planning.isolation import child
from forgather_mem.planning.isolation.child import GoesOn, begun_in_a_child, in_a_child
from tests.forked import Forked
from tests.launch.commands import environment


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


def test_a_child_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_MOST_S", 1.0)
    with pytest.raises(PlanError, match="has not ended after 1 s"):
        (begun := begun_in_a_child(signal.pause))()
    with pytest.raises(ChildProcessError):  # nothing of it is left
        os.waitpid(begun.pid, os.WNOHANG)


def test_it_is_asked_for_its_line_again_and_again_and_goes_on() -> None:
    def computes() -> None:
        while True:
            sum(range(100))

    begun = begun_in_a_child(computes)
    while "test_child" not in (at := begun._tell_line()):  # an audit hook of another test may run
        pass
    for _ in range(2_000):
        os.kill(begun.pid, child._ASKS)
    assert re.fullmatch(r", at .*test_child\.py:\d+", at)
    assert os.waitpid(begun.pid, os.WNOHANG) == (0, 0)
    begun.end()


def test_one_that_is_not_waited_for_tells_when_it_has_answered_and_can_be_ended() -> None:
    answers, waits = begun_in_a_child(lambda: 5), begun_in_a_child(signal.pause)
    assert answers.has_answered(within_s=30)
    assert not waits.has_answered()
    assert answers() == 5
    waits.end()
    for one in (answers, waits):
        with pytest.raises(ChildProcessError):  # nothing of it is left
            os.waitpid(one.pid, os.WNOHANG)


HANDLERS = """
import os, sys
from forgather_mem.system import forks  # as where `forgather-mem run` and `plan` begin, before the script
told = []

def act(*of):
    told.append("here")
    with open("log.txt", "a") as file:
        file.write(f"{os.getpid()}")

os.register_at_fork(after_in_child=act)
from forgather_mem.planning.isolation import child
from forgather_mem.planning.isolation.child import begun_in_a_child, in_a_child
lines = {}
print(in_a_child(lambda: told, not_done=lines), *(line.partition(":")[0] for line in lines))
print(os.path.exists("log.txt"))
if not (pid := os.fork()):
    os._exit(len(told))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.path.exists("log.txt"))
"""


@pytest.mark.fresh
def test_a_scripts_handlers_of_forks_act_on_nothing_in_it_and_on_all_in_other_forks(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(HANDLERS)
    code, out, err = Forked(tmp_path / "forks.py", [], tmp_path, environment()).wait()
    assert (code, err) == (0, "")
    assert out.splitlines() == ["['here'] forks.py", "False", "1 True"]


@pytest.mark.fresh  # torch's groups of processes, of other tests, never end in the child of a thread
def test_a_fork_of_another_thread_meanwhile_is_not_the_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fork, codes = os.fork, []

    def forks() -> None:
        if not (pid := fork()):
            (tmp_path / "written").write_text("x")
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def fork_in_a_thread_first() -> int:
        thread = threading.Thread(target=forks)
        thread.start()
        thread.join()
        return fork()

    monkeypatch.setattr(os, "fork", fork_in_a_thread_first)
    assert in_a_child(lambda: 5) == 5
    assert (codes, (tmp_path / "written").exists()) == ([0], True)


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


def test_a_child_that_fails_where_it_goes_on_tells_it_and_ends() -> None:
    def goes_on() -> None:
        raise GoesOn(lambda give_answer: [][0])

    with pytest.raises(PlanError, match="IndexError"):
        in_a_child(goes_on)
