"""The witness: tells a signal to the parent from one to its group, and holds nothing."""

import contextlib
import os
import signal
import time
from pathlib import Path

from tests.launch.commands import RUN
from tests.launch.processes import ONCE_EACH, SENT, Counting, children, settle


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_witness_holds_nothing_and_ends_with_the_parent(tmp_path: Path) -> None:
    script = Counting(tmp_path, RUN)
    _, witness = children(script.process.pid)
    deadline, files = time.monotonic() + 60, [""]
    while len(files) != 2 or not all(file.startswith("pipe:") for file in files):  # it may just have begun
        assert time.monotonic() < deadline, files
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            files = [os.readlink(f"/proc/{witness}/fd/{name}") for name in os.listdir(f"/proc/{witness}/fd")]
    assert script.counts() == {}
    assert not is_running(witness)


def test_when_the_parent_is_killed_the_witness_goes_too(tmp_path: Path) -> None:
    script = Counting(tmp_path, RUN)
    _, witness = children(script.process.pid)
    script.process.kill()
    script.process.communicate()
    deadline = time.monotonic() + 60
    while is_running(witness):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_without_the_witness_a_signal_to_the_parent_arrives(tmp_path: Path) -> None:
    script = Counting(tmp_path, RUN)
    os.kill(children(script.process.pid)[1], signal.SIGKILL)
    for number in SENT:
        os.kill(script.process.pid, number)
        settle(script.process.pid)
    assert script.counts() == ONCE_EACH


def test_a_witness_that_was_stopped_answers(tmp_path: Path) -> None:
    script = Counting(tmp_path, RUN)
    os.kill(children(script.process.pid)[1], signal.SIGSTOP)
    os.killpg(script.process.pid, signal.SIGUSR1)
    settle(script.process.pid)
    os.kill(script.process.pid, signal.SIGUSR2)
    assert script.counts() == {signal.SIGUSR1: 1, signal.SIGUSR2: 1}
