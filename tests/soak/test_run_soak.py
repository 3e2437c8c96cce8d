"""Fifty watched trainings that are killed at random moments; signals on a busy machine."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forgather_mem.reporting.run_dir import read_run
from tests.launch.commands import RUN, environment, python
from tests.launch.processes import ONCE_EACH, SENT, Counting, settle
from tests.launch.test_trainings import SCRIPT
from tests.launch.test_waiting import WAYS

pytestmark = pytest.mark.soak
NUM_KILLS, AT_ONCE = 50, 4


class Killed:
    """A long training that is killed at a random moment."""

    def __init__(self, folder: Path, together: bool, seed: int) -> None:
        folder.mkdir()
        self.folder, self.together = folder, together
        self._after = random.Random(seed).uniform(0.0, 2.0)
        self._output = folder / "stdout"
        with self._output.open("wb") as out, (folder / "stderr").open("wb") as err:
            self._process = subprocess.Popen(
                [*RUN, str(SCRIPT), "long", "."], cwd=folder, env=environment(), stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip

    def last_step(self) -> int:
        lines = self._output.read_text().splitlines()
        return max((int(line.split()[1]) for line in lines if line.startswith("step ")), default=0)

    def kill(self) -> None:
        """When a step is over, so that there is a reading, and some time later."""
        deadline = time.monotonic() + 240
        while self.last_step() < 2:
            assert time.monotonic() < deadline, (self.folder / "stderr").read_text()
            assert self._process.poll() is None, (self.folder / "stderr").read_text()
            time.sleep(0.05)
        time.sleep(self._after)
        if self.together:
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
            os.kill(int(children.split()[0]), signal.SIGKILL)
        assert self._process.wait(timeout=60) == -signal.SIGKILL
        time.sleep(0.1)  # killed together, the script may be the later one to go

    def check(self) -> None:
        last = self.last_step()
        report = read_run(self.folder)
        assert report["run"]["end"] == "killed"
        # Without a parent that could add what stands in its memory, it is the state that is in the file every 0.1 s
        assert -1 <= last - report["killed"]["step"] <= (30 if self.together else 1)
        assert report["killed"]["phase"] in ("data", "forward", "backward", "optimizer", "save", "other")
        # Killed together within 0.1 s of the first step, nothing had been written of any
        assert report["host"]["rss_peak_bytes"] > 2**27 or (self.together and not report["steps"])
        if not self.together:
            text = (self.folder / "stderr").read_text()
            assert f"killed (SIGKILL) after {report['steps']:,} step" in text
            assert report["killed"]["signal"] == signal.SIGKILL


def test_killed_fifty_times_the_last_step_is_known_each_time(tmp_path: Path) -> None:
    for begin in range(0, NUM_KILLS, AT_ONCE):
        numbers = range(begin, min(begin + AT_ONCE, NUM_KILLS))
        trainings = [Killed(tmp_path / str(number), number % 3 == 2, 1000 + number) for number in numbers]
        with ThreadPoolExecutor() as pool:
            list(pool.map(Killed.kill, trainings))
        for training in trainings:
            training.check()


@pytest.mark.parametrize("send", WAYS)
def test_each_signal_arrives_once_thirty_times_on_a_busy_machine(
    tmp_path: Path, send: Callable[[Counting, int], None]
) -> None:
    busy = [subprocess.Popen(python("-c", "while True: pass")) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        for number in range(30):
            (folder := tmp_path / str(number)).mkdir()
            script = Counting(folder, RUN)
            for one in SENT:
                send(script, one)
                settle(script.process.pid)
            assert script.counts() == ONCE_EACH, number
    finally:
        for process in busy:
            process.kill()
            process.wait()
