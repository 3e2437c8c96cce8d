"""What sinks promise when the disk, the folder or the process goes away."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sinks import faults

REPETITIONS = [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 50))]
KINDS = pytest.mark.parametrize("kind", ["tensorboard", "jsonl"])


@KINDS
@pytest.mark.parametrize("seed", REPETITIONS)
@pytest.mark.parametrize("fault", [faults.disk_full, faults.read_only, faults.folder_deleted, faults.killed])
def test_it_costs_counted_records_and_nothing_else(
    fault: Callable[[str, Path, int], None], kind: str, tmp_path: Path, seed: int
) -> None:
    fault(kind, tmp_path, seed)


@pytest.mark.parametrize("seed", REPETITIONS)
def test_slow_writes_are_counted_and_gathered_into_batches(tmp_path: Path, seed: int) -> None:
    faults.slow_reader(tmp_path, seed)


@KINDS
@pytest.mark.parametrize("seed", REPETITIONS)
def test_a_forked_child_writes_nothing_and_does_not_hang(kind: str, tmp_path: Path, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        faults.forked(kind, tmp_path, seed)
