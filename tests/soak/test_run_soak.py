"""Fifty watched trainings that are killed at random moments; signals on a busy machine, and to torchrun."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.launch.commands import RUN, environment, python
from tests.launch.processes import APART_S, ONCE_EACH, SENT, Counting
from tests.launch.test_trainings import TORCHRUN, Killed
from tests.launch.test_waiting import WAYS

pytestmark = pytest.mark.soak
NUM_KILLS, AT_ONCE = 50, 4
RANK = """
import os, signal, time
def told(number, frame):
    with open(f"rank{os.environ['RANK']}", "a") as file:
        file.write(signal.Signals(number).name + " ")
signal.signal(signal.SIGTERM, told)
open(f"ready{os.environ['RANK']}", "w").close()
end = time.monotonic() + 60
while not os.path.exists(f"rank{os.environ['RANK']}") and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(1.0)
"""


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
                time.sleep(2 * APART_S)
            assert script.counts() == ONCE_EACH, number
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize("words", [[], RUN], ids=["alone", "watched"])
@pytest.mark.parametrize("signal_to", [os.killpg, os.kill])
def test_a_launcher_gets_each_signal_once(
    tmp_path: Path, words: list[str], signal_to: Callable[[int, int], None]
) -> None:
    """torchrun's ranks have sessions of their own; torchrun hands them what ends them, and tells of it once."""
    (tmp_path / "rank.py").write_text(RANK)
    process = subprocess.Popen(
        [*words, *TORCHRUN, "rank.py"], cwd=tmp_path, env=environment(), start_new_session=True, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("ready?"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    signal_to(process.pid, signal.SIGTERM)
    err = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert sorted(path.read_text() for path in tmp_path.glob("rank?")) == ["SIGTERM ", "SIGTERM "]
    assert err.count("got signal: 15") == 1
