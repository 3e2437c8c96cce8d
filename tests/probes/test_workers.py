from __future__ import annotations

import mmap
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from forgather_mem.engine.run import Run
from forgather_mem.planning.isolation.child import begun_in_a_child
from forgather_mem.probes import WorkerProbe
from forgather_mem.system.procfs import PLANNER, child_pids, is_named
from forgather_mem.telemetry.records import Work
from forgather_mem.units import MIB
from tests.memory import touched

Read = Callable[..., dict[str, float]]
NUM_WORKERS = 2


class Rows(Dataset):
    """Work for data workers: `row` is called in a worker with this data set."""

    def __init__(self, row: Callable[[Rows], Any]) -> None:
        self.row = row
        self.kept: list[Any] = []
        self.inherited = touched(64)

    def __len__(self) -> int:
        return NUM_WORKERS

    def __getitem__(self, index: int) -> torch.Tensor:
        self.row(self)
        return torch.tensor(index)


def does_nothing(rows: Rows) -> None:
    pass


def allocates_32_mib(rows: Rows) -> None:
    rows.kept.append(touched(32))


def writes_to_64_mib_of_the_parent(rows: Rows) -> None:
    for offset in range(0, len(rows.inherited), mmap.PAGESIZE):
        rows.inherited[offset] = 2


def reading(read: Read, probe: Work) -> dict[str, float]:
    """The next reading, as soon as the probe's budget allows one."""
    while not (values := read(probe)):
        time.sleep(0.001)
    return values


@contextmanager
def loader(row: Callable[[Rows], Any]) -> Iterator[DataLoader]:
    """A loader whose forked workers stay; each worker gets one row an epoch."""
    rows = Rows(row)
    loader = DataLoader(rows, num_workers=NUM_WORKERS, persistent_workers=True, multiprocessing_context="fork")
    yield loader
    del loader
    rows.inherited.close()


@pytest.fixture
def probe(run: Run) -> Work:
    return WorkerProbe(every_s=1e-6, budget_frac=1.0).begin(run)


def an_epoch_of(loader: DataLoader) -> None:
    assert sorted(int(row) for row in loader) == [0, 1]


def test_what_workers_allocate_is_their_own(probe: Work, read: Read) -> None:
    with loader(allocates_32_mib) as data:
        iterator = iter(data)
        started = reading(read, probe)  # the workers have been forked; at most one has begun its row
        assert sorted(int(row) for row in iterator) == [0, 1]
        first = reading(read, probe)
        an_epoch_of(data)
        second = reading(read, probe)
    assert started["workers/count"] == first["workers/count"] == NUM_WORKERS
    grown = second["workers/own_bytes"] - first["workers/own_bytes"]
    assert grown == pytest.approx(NUM_WORKERS * 32 * MIB, abs=4 * MIB)
    assert second["workers/cow_bytes"] - first["workers/cow_bytes"] < 8 * MIB


def test_pages_of_the_parent_that_workers_write_to_are_copy_on_write(probe: Work, read: Read) -> None:
    with loader(does_nothing) as data:
        an_epoch_of(data)
        before = reading(read, probe)
    with loader(writes_to_64_mib_of_the_parent) as data:
        iterator = iter(data)
        reading(read, probe)
        assert sorted(int(row) for row in iterator) == [0, 1]
        after = reading(read, probe)
    assert after["workers/cow_bytes"] > NUM_WORKERS * 60 * MIB
    assert after["workers/cow_bytes"] - before["workers/cow_bytes"] > NUM_WORKERS * 60 * MIB
    assert after["workers/own_bytes"] - before["workers/own_bytes"] < 16 * MIB


def test_pages_that_the_parent_writes_to_are_copy_on_write_too(probe: Work, read: Read) -> None:
    with loader(does_nothing) as data:
        an_epoch_of(data)
        before = reading(read, probe)
        writes_to_64_mib_of_the_parent(data.dataset)
        after = reading(read, probe)
    assert after["workers/own_bytes"] - before["workers/own_bytes"] < 4 * MIB
    # both workers still share the old pages with each other: private to nobody
    assert after["workers/cow_bytes"] - before["workers/cow_bytes"] < 16 * MIB


def test_shared_pages_are_not_counted_twice(probe: Work, read: Read) -> None:
    with loader(does_nothing) as data:
        an_epoch_of(data)
        pss = reading(read, probe)["host/children_pss_bytes"]
        children = psutil.Process().children(recursive=True)
        of_psutil = sum(child.memory_full_info().pss for child in children)
        resident = sum(child.memory_info().rss for child in children)
    assert pss == pytest.approx(of_psutil, abs=4 * MIB)
    assert pss < 0.8 * resident


def test_children_that_are_no_data_workers_are_other_children(probe: Work, read: Read) -> None:
    script = f"import sys; x = b'x' * {48 * MIB}; print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script]
    others = reading(read, probe)["host/other_children"]  # multiprocessing's own, of earlier tests
    with loader(allocates_32_mib) as data, multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(abs, range(4))
        an_epoch_of(data)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            values = reading(read, probe)
            process.communicate("")
    assert (values["workers/count"], values["host/other_children"] - others) == (NUM_WORKERS, 3)
    assert 48 * MIB < values["host/other_children_pss_bytes"] < values["host/children_pss_bytes"]
    both = values["workers/pss_bytes"] + values["host/other_children_pss_bytes"]
    assert both == pytest.approx(values["host/children_pss_bytes"])


class Spawned(Dataset):
    """Rows for workers that are started anew; all that they hold is their own."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        self.kept = touched(48)
        return torch.tensor(index)


@pytest.mark.slow
def test_a_worker_that_was_not_forked_inherits_nothing(probe: Work, read: Read) -> None:
    data = DataLoader(Spawned(), num_workers=1, persistent_workers=True, multiprocessing_context="spawn")
    assert [int(row) for row in data] == [0]
    values = reading(read, probe)
    assert values["workers/count"] == 1
    assert values["workers/own_bytes"] > 48 * MIB
    assert values["workers/cow_bytes"] < MIB


class Starts(Spawned):
    """Rows whose worker starts a process of its own."""

    def __init__(self, process: Callable[[], None]) -> None:
        self.process = process

    def __getitem__(self, index: int) -> torch.Tensor:
        self.process()
        return torch.tensor(index)


def test_what_a_worker_starts_belongs_to_the_workers(probe: Work, read: Read) -> None:
    begun, done = multiprocessing.get_context("fork").Event(), multiprocessing.get_context("fork").Event()

    def starts() -> None:
        pid = os.fork()
        if not pid:
            begun.set()
            done.wait(20)
            os._exit(0)
        begun.wait(20)

    others = reading(read, probe)["host/other_children"]  # multiprocessing's own, of earlier tests
    data = DataLoader(Starts(starts), num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    assert [int(row) for row in data] == [0]
    values = reading(read, probe)
    done.set()
    assert (values["workers/count"], values["host/other_children"]) == (2, others)


def test_without_children_nothing_is_told_where_zeros_are_not_wanted(run: Run, tmp_path: Path, read: Read) -> None:
    (tmp_path / "self" / "task").mkdir(parents=True)
    probe = WorkerProbe(every_s=1e-6, zeros=False, proc_root=str(tmp_path)).begin(run)
    assert [read(probe) for _ in range(3)] == [{}] * 3


def test_without_children_the_sums_are_zero(run: Run, tmp_path: Path, read: Read) -> None:
    values = reading(read, WorkerProbe(every_s=1e-6, proc_root=str(tmp_path)).begin(run))
    assert values == {
        "workers/count": 0, "workers/own_bytes": 0, "workers/cow_bytes": 0, "workers/pss_bytes": 0,
        "host/children_pss_bytes": 0, "host/other_children": 0, "host/other_children_pss_bytes": 0,
    }  # fmt: skip


def test_readings_are_rare(run: Run, read: Read) -> None:
    probe = WorkerProbe().begin(run)
    assert read(probe)
    assert read(probe) == {}


def test_between_two_whole_readings_what_workers_allocate_is_added(run: Run, read: Read) -> None:
    probe = WorkerProbe(every_s=3.0, budget_frac=1.0).begin(run)
    with loader(allocates_32_mib) as data:
        an_epoch_of(data)
        first = read(probe)
        an_epoch_of(data)
        second = reading(read, probe)  # the next whole one is due in 3 s
    grown = second["workers/pss_bytes"] - first["workers/pss_bytes"]
    assert grown == pytest.approx(NUM_WORKERS * 32 * MIB, abs=4 * MIB)
    assert second["workers/cow_bytes"] == first["workers/cow_bytes"], "to read it takes long"


def test_a_process_of_ours_that_plans_is_no_child_of_the_training(probe: Work, read: Read) -> None:
    before = reading(read, probe)["host/other_children"]  # of multiprocessing, where another test has started it
    begun = begun_in_a_child(lambda: time.sleep(60))
    try:
        deadline_s = time.monotonic() + 20
        while not is_named(Path(f"/proc/{begun.pid}"), PLANNER):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert reading(read, probe)["host/other_children"] == before
        assert str(begun.pid) not in child_pids()
    finally:
        begun.end()
