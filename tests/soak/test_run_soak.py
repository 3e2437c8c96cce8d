"""Fifty watched trainings that are killed at random moments."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.launch.test_trainings import Killed

pytestmark = pytest.mark.soak
NUM_KILLS, AT_ONCE = 50, 4


def test_killed_fifty_times_the_last_step_is_known_each_time(tmp_path: Path) -> None:
    for begin in range(0, NUM_KILLS, AT_ONCE):
        numbers = range(begin, min(begin + AT_ONCE, NUM_KILLS))
        trainings = [Killed(tmp_path / str(number), number % 3 == 2, 1000 + number) for number in numbers]
        with ThreadPoolExecutor() as pool:
            list(pool.map(Killed.kill, trainings))
        for training in trainings:
            training.check()
