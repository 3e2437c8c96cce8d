"""What callbacks of ours change for the time of a training is as before, however the training ends.

Each way once; 100 of them, on an unfrozen heap, and at random moments: tests/soak/test_restoration.py.
"""

from pathlib import Path

import pytest

from tests.callbacks.interruptions import WAYS, assert_restored_after_interruption


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("seed", range(len(WAYS)))
def test_everything_is_restored_after_an_interruption(tmp_path: Path, seed: int) -> None:
    assert_restored_after_interruption(seed, tmp_path)
