"""200 trainings that end at a random moment, and leave the collector, the trainer and the model as they were."""

import random
import time
from pathlib import Path

import pytest

from tests.callbacks.interruptions import assert_restored_after_interruption

# What the timer raises in a finaliser or a callback of the interpreter is swallowed there, and the training goes on.
pytestmark = [
    pytest.mark.soak,
    pytest.mark.usefixtures("nothing_frozen"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def usual_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long a training takes that nobody interrupts, once everything is imported."""
    for _ in range(2):
        began_s = time.perf_counter()
        assert_restored_after_interruption(0, tmp_path_factory.mktemp("whole"))
    return time.perf_counter() - began_s


@pytest.mark.parametrize("seed", range(100))
def test_everything_is_restored_after_an_interruption_at_an_event(tmp_path: Path, seed: int) -> None:
    assert_restored_after_interruption(1000 + seed, tmp_path)


@pytest.mark.parametrize("seed", range(100))
def test_everything_is_restored_after_an_interruption_at_any_moment(tmp_path: Path, seed: int, usual_s: float) -> None:
    after_s = random.Random(seed).uniform(0.0, usual_s)
    assert_restored_after_interruption(2000 + seed, tmp_path, after_s=after_s)
