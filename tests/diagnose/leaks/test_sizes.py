"""What data workers copy of the heap that they share, in real forked workers."""

import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from forgather_mem.diagnose.leaks.sizes import CopiedPages
from forgather_mem.diagnose.leaks.verdict import with_copied
from forgather_mem.diagnose.leaks.worker_code import copied_suspect
from forgather_mem.telemetry.report import LeakReport
from forgather_mem.units import KIB, MIB

NUM_ROWS = 200_000


class Listed(Dataset[int]):
    """Rows as Python objects: reading one writes its reference count."""

    def __init__(self) -> None:
        self.names = [f"row {number}" for number in range(2_000)]
        self.rows = [{"text": f"row {number}", "numbers": [float(number)]} for number in range(NUM_ROWS)]

    def __len__(self) -> int:
        return NUM_ROWS // 100

    def __getitem__(self, index: int) -> int:
        for number in range(index * 100, index * 100 + 100):
            sum(self.rows[number]["numbers"])  # type: ignore[arg-type]
        return index


class AsArray(Listed):
    """The same rows as one tensor."""

    def __init__(self) -> None:
        self.rows = torch.arange(NUM_ROWS, dtype=torch.float32)  # type: ignore[assignment]

    def __getitem__(self, index: int) -> int:
        self.rows[index * 100 : index * 100 + 100].sum()  # type: ignore[attr-defined]
        return index


def copied_by(data: Dataset[int], num_steps: int = 40) -> Any:
    """Read in the first half of the steps, as on a busy machine, and at the last one."""
    loader = DataLoader(data, batch_size=32, num_workers=2, multiprocessing_context="fork")
    pages = CopiedPages(every_s=0.1, early_frac=1.0)
    for step, _ in enumerate(loader):
        if step <= num_steps // 2:
            pages.read(step)
        if step == num_steps:
            before = pages.found()
            pages.read_last(step)  # while its workers are alive
            break
        time.sleep(0.05)
    found = pages.found()
    assert before is None or found is None or found.bytes > before.bytes
    return found


@pytest.mark.slow
def test_pages_that_workers_copy_by_reading_python_objects_are_told_with_bound_holder_and_cure() -> None:
    data = Listed()
    copied = copied_by(data)
    # at most: all that was on the heap at the fork, for each worker
    assert copied.bytes > 16 * MIB
    assert 16 * KIB < copied.per_step < 20 * MIB
    assert 0 < copied.most_bytes < 2 * 1024 * MIB
    suspect = copied_suspect(DataLoader(data), copied)
    assert (suspect.held_by, suspect.type, suspect.count) == ("Listed.rows", "list", NUM_ROWS)
    assert suspect.source_line.startswith('self.rows = [{"text"')
    assert "as one array" in str(suspect.cure)
    leak = with_copied(LeakReport(verdict="no leak", judged=True, bytes_per_step_high=4096.0), suspect, 8)
    assert (leak.verdict, leak.undecided, leak.where) == ("copied pages", "copied pages", "workers")
    assert leak.since_step == 8
    why = str(leak.why)
    assert why.startswith("data workers copy pages they share with the main process as reference counts are written: ")
    assert "more in 2 workers. Nothing else grows (under 4.0 KiB a step)" in why


def test_workers_that_read_an_array_copy_no_pages() -> None:
    assert copied_by(AsArray()) is None


def test_copied_pages_stand_beside_a_leak_and_behind_another_reason() -> None:
    copied = copied_by(Listed())
    suspect = copied_suspect(None, copied)
    assert suspect.held_by is None
    leak = with_copied(LeakReport(verdict="leak", bytes_per_step=1e6, judged=True), suspect, 8)
    assert (leak.verdict, [one.kind for one in leak.suspects]) == ("leak", ["copied pages"])
    undecided = with_copied(LeakReport(judged=True, why="grows, slowing down: x", undecided="slowing"), suspect, 8)
    assert (undecided.undecided, str(undecided.why)[:37]) == ("slowing", "grows, slowing down: x. Data workers ")
