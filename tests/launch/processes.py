"""Scripts that wait or count signals, plain or watched, and what comes of them."""

import ast
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.launch.commands import Result, environment
from tests.launch.scripts import script

SENT = (
    signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM,
    signal.SIGRTMIN + 3,
)  # fmt: skip
COUNTS = f"""
import collections, signal, sys
counts = collections.Counter()
for number in {[int(number) for number in SENT]}:
    signal.signal(number, lambda number, frame: counts.update([number]))
print("ready", flush=True)
sys.stdin.readline()
open("counts.txt", "w").write(str(dict(counts)))
"""
ONCE_EACH = dict.fromkeys(map(int, SENT), 1)
_SIGTIMEDWAIT = ("128", "137")  # its number on x86-64 and ARM: what who watches waits in


class Waiting:
    """The script that waits, plain or watched, and what comes of it."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.process = subprocess.Popen(
            [*words, script(folder, "waits")], cwd=folder, env=environment(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def child(self) -> int:
        script, _ = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(script)

    def result(self) -> Result:
        out, err = self.process.communicate(timeout=60)
        return Result(self.process.returncode, out, err)


def counted(folder: Path) -> dict[int, int]:
    found = ast.literal_eval((folder / "counts.txt").read_text())
    assert isinstance(found, dict)
    return found


class Counting:
    """The script that counts signals, plain or watched."""

    def __init__(self, folder: Path, words: Sequence[str], text: str = COUNTS, *, is_job: bool = False) -> None:
        self.folder = folder
        # A job of a shell has a group of its own in the shell's session; the default action of a SIGTSTP needs that
        place: dict[str, Any] = {"process_group": 0} if is_job else {"start_new_session": True}
        (folder / "counts.py").write_text(text)
        self.process = subprocess.Popen(
            [*words, str(folder / "counts.py")], cwd=folder, env=environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **place,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def all_processes(self) -> list[int]:
        return [self.process.pid, *children(self.process.pid)]

    def counts(self) -> dict[int, int]:
        settle(self.process.pid)
        self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0
        return counted(self.folder)


def settle(pid: int) -> None:
    """Wait until all signals so far have arrived: two of one kind are one to a process that has not taken the first."""
    script, *witness = children(pid) or [pid]
    for process, waits_in in [(pid, _SIGTIMEDWAIT)] * bool(witness) + [(script, ())]:
        deadline = time.monotonic() + 60
        while not _waits(process, waits_in):
            assert time.monotonic() < deadline, f"{process} is busy"
            time.sleep(0.001)


def _waits(pid: int, calls: Sequence[str]) -> bool:
    """Whether it waits, in one of these system calls if there are any, and has nothing to take."""
    folder = Path(f"/proc/{pid}")
    told = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
    is_idle = told["State"][0] in "ST" and not int(told["SigPnd"], 16) | int(told["ShdPnd"], 16)
    return is_idle and (not calls or (folder / "syscall").read_text().split()[0] in calls)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
