"""What sinks promise when the disk, the folder or the process goes away."""

import warnings
from pathlib import Path

import pytest

from tests.sinks import faults

REPETITIONS = [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 50))]
KINDS = pytest.mark.parametrize("kind", ["tensorboard", "jsonl"])


@KINDS
@pytest.mark.parametrize("seed", REPETITIONS)
def test_a_full_disk_costs_counted_records_and_nothing_else(kind: str, tmp_path: Path, seed: int) -> None:
    faults.disk_full(kind, tmp_path, seed)


@KINDS
@pytest.mark.parametrize("seed", REPETITIONS)
def test_a_read_only_folder_costs_counted_records_until_it_can_be_written(kind: str, tmp_path: Path, seed: int) -> None:
    faults.read_only(kind, tmp_path, seed)


@KINDS
@pytest.mark.parametrize("seed", REPETITIONS)
def test_a_deleted_folder_is_noticed_and_made_again(kind: str, tmp_path: Path, seed: int) -> None:
    faults.folder_deleted(kind, tmp_path, seed)


@pytest.mark.parametrize("seed", REPETITIONS)
def test_slow_writes_are_counted_and_gathered_into_batches(tmp_path: Path, seed: int) -> None:
    faults.slow_reader(tmp_path, seed)


@KINDS
@pytest.mark.parametrize("seed", REPETITIONS)
def test_every_acknowledged_record_survives_kill_9(kind: str, tmp_path: Path, seed: int) -> None:
    faults.killed(kind, tmp_path, seed)


@KINDS
@pytest.mark.parametrize("seed", REPETITIONS)
def test_a_forked_child_writes_nothing_and_does_not_hang(kind: str, tmp_path: Path, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
        faults.forked(kind, tmp_path, seed)
