"""Signals under `run`: a script gets each as often as it gets it alone, whoever sends it and to whom."""

import os
import pty
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.launch.commands import RUN, environment, python
from tests.launch.processes import COUNTS, ONCE_EACH, SENT, Counting, children, counted, settle

UNTIL_A_SIGNAL = "import time; [time.sleep(0.05) for _ in range(1200) if not counts]; time.sleep(0.3)"


def to_the_group(script: Counting, number: int) -> None:
    os.killpg(script.process.pid, number)


def to_the_process(script: Counting, number: int) -> None:
    os.kill(script.process.pid, number)


def to_each_process(script: Counting, number: int) -> None:
    """As systemd signals a control group, and others a tree of processes."""
    for pid in script.all_processes():
        os.kill(pid, number)


def to_each_process_slowly(script: Counting, number: int) -> None:
    """As on a machine where the sender waits for a processor in between."""
    for pid in script.all_processes():
        os.kill(pid, number)
        until_s = time.monotonic() + 0.03
        while time.monotonic() < until_s:
            pass


WAYS = [to_the_group, to_the_process, to_each_process, to_each_process_slowly]


@pytest.mark.parametrize("words", [python(), RUN], ids=["alone", "watched"])
@pytest.mark.parametrize("send", WAYS)
def test_each_signal_arrives_once(tmp_path: Path, words: list[str], send: Callable[[Counting, int], None]) -> None:
    script = Counting(tmp_path, words)
    for number in SENT:
        send(script, number)
        settle(script.process.pid)
    assert script.counts() == ONCE_EACH


@pytest.mark.parametrize("words", [python(), RUN], ids=["alone", "watched"])
def test_signals_soon_one_after_the_other_are_not_taken_for_each_other(tmp_path: Path, words: list[str]) -> None:
    script = Counting(tmp_path, words)
    for number in range(6):
        (to_the_group if number % 2 else to_the_process)(script, signal.SIGUSR1)
        settle(script.process.pid)
    os.kill(script.process.pid, signal.SIGUSR2)
    os.killpg(script.process.pid, signal.SIGTERM)
    assert script.counts() == {signal.SIGUSR1: 6, signal.SIGUSR2: 1, signal.SIGTERM: 1}


@pytest.mark.skipif(shutil.which("pkill") is None, reason="no pkill")
@pytest.mark.parametrize("name", ["{0}/counts.py", "forgather_mem run {0}/counts.py", "python {0}/counts.py"])
def test_who_goes_by_names_reaches_the_script_once(tmp_path: Path, name: str) -> None:
    script = Counting(tmp_path, RUN)
    for _ in range(2):
        assert not subprocess.run(["pkill", "-USR1", "-f", name.format(tmp_path)]).returncode
        settle(script.process.pid)
    to_the_process(script, signal.SIGUSR1)
    assert script.counts() == {signal.SIGUSR1: 3}


@pytest.mark.skipif(shutil.which("timeout") is None, reason="no timeout")
def test_timeout_which_signals_the_process_and_then_its_group_is_one_signal(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTS.replace("sys.stdin.readline()", UNTIL_A_SIGNAL))
    command = ["timeout", "-s", "USR1", "2", *RUN, "counts.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=60)
    assert (done.returncode, counted(tmp_path)) == (124, {signal.SIGUSR1: 1})


# ---- a terminal ----


class Terminal:
    """A script that leads the session of a terminal, as a shell that is replaced by it, or `ssh -t`, has it."""

    def __init__(self, folder: Path, words: Sequence[str], text: str) -> None:
        (folder / "counts.py").write_text(text)
        self.pid, self.file = pty.fork()
        if not self.pid:
            try:
                os.chdir(folder)
                os.execve(words[0], [*words, "counts.py"], environment())
            finally:
                os._exit(1)
        self._read_until(b"ready\r\n")

    def _read_until(self, wanted: bytes) -> None:
        told = b""
        while wanted not in told:
            told += os.read(self.file, 1024)

    def interrupt(self) -> None:
        """Press Ctrl-C. The terminal shows it when it has sent the signal."""
        os.write(self.file, b"\x03")
        self._read_until(b"^C")
        settle(self.pid)

    def close(self) -> int:
        """The exit code."""
        os.close(self.file)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("words", [python(), RUN], ids=["alone", "watched"])
def test_ctrl_c_twice_is_twice(tmp_path: Path, words: list[str]) -> None:
    terminal = Terminal(tmp_path, words, COUNTS)
    terminal.interrupt()
    terminal.interrupt()
    os.write(terminal.file, b"\n")
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.glob("counts.txt")):  # closing it is a signal, too
        assert time.monotonic() < deadline
        time.sleep(0.05)
    terminal.close()
    assert counted(tmp_path) == {signal.SIGINT: 2}


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("words", [python(), RUN], ids=["alone", "watched"])
def test_a_terminal_that_is_closed_is_told_to_the_script(tmp_path: Path, words: list[str]) -> None:
    """The kernel tells the leader of the session alone, which is the parent; without us it is the script."""
    Terminal(tmp_path, words, COUNTS.replace("sys.stdin.readline()", UNTIL_A_SIGNAL)).close()
    assert counted(tmp_path) == {signal.SIGHUP: 1}


# ---- stopped and continued ----


def state_of(pid: int) -> str:
    """ "T" is stopped, "S" sleeps, "R" runs."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until_all(pids: Sequence[int], states: str) -> None:
    deadline = time.monotonic() + 30
    while not all(state_of(pid) in states for pid in pids):
        assert time.monotonic() < deadline, [state_of(pid) for pid in pids]
        time.sleep(0.01)


@pytest.mark.parametrize("send", [to_the_group, to_the_process])
def test_stopping_and_continuing_reaches_the_parent_and_the_script(
    tmp_path: Path, send: Callable[[Counting, int], None]
) -> None:
    script = Counting(tmp_path, RUN, is_job=True)
    both = [script.process.pid, children(script.process.pid)[0]]
    for _ in range(3):
        send(script, signal.SIGTSTP)
        wait_until_all(both, "T")
        send(script, signal.SIGCONT)
        wait_until_all(both, "SR")
    send(script, signal.SIGUSR1)
    settle(script.process.pid)
    assert script.counts() == {signal.SIGUSR1: 1}


@pytest.mark.parametrize("words", [python(), RUN], ids=["alone", "watched"])
@pytest.mark.parametrize("send", WAYS)
def test_a_script_that_handles_stopping_itself_gets_each_once_and_goes_on(
    tmp_path: Path, words: list[str], send: Callable[[Counting, int], None]
) -> None:
    handled = [*SENT, signal.SIGTSTP, signal.SIGCONT]
    script = Counting(tmp_path, words, COUNTS.replace(str([*map(int, SENT)]), str([*map(int, handled)])))
    for number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGTSTP):
        send(script, number)
        settle(script.process.pid)
        assert state_of(script.process.pid) != "T", "who is not stopped looks so from outside"
    assert script.counts() == {signal.SIGTSTP: 2, signal.SIGCONT: 1}


def test_a_script_that_is_stopped_alone_stops_nobody_else(tmp_path: Path) -> None:
    script = Counting(tmp_path, RUN)
    child = children(script.process.pid)[0]
    os.kill(child, signal.SIGSTOP)
    wait_until_all([child], "T")
    settle(script.process.pid)
    assert state_of(script.process.pid) != "T"
    os.kill(child, signal.SIGCONT)
    assert script.counts() == {}


def test_what_is_blocked_for_the_parent_is_not_for_the_script(tmp_path: Path) -> None:
    code = "print([line for line in open('/proc/self/status') if line[:3] in ('Sig', 'Shd') and line[:4] != 'SigQ'])"
    (tmp_path / "looks.py").write_text(code)
    alone, watched = (
        subprocess.run([*words, "looks.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True).stdout
        for words in (python(), RUN)
    )
    assert alone == watched
    assert alone.startswith("[")
