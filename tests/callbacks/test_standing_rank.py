"""Rank 0 keeps the store, since nobody has started the ranks with torchrun, and stands still, or is gone."""

import logging
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from forgather_mem import Every, Rule, TrainingLoop
from forgather_mem.callbacks import MemoryAlert, MemoryCallback, ScheduledGarbageCollector, TBMemoryLogger
from forgather_mem.telemetry.records import Moment, Sample
from tests.programs import free_port

pytestmark = pytest.mark.fresh
LIMIT_S = 60.0  # for what takes a second


class Rank:
    """One rank's training: at each step it writes down how far it is, and looks whether it is to end."""

    def __init__(self, folder: Path, rank: int, *, full_from: int = 10**9, together: bool = False) -> None:
        self.folder, self.rank, self.full_from, self.together = folder, rank, full_from, together
        self.saves: list[int] = []

    def level(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        is_full = moment.step >= self.full_from or (self.folder / f"full{self.rank}").exists()
        return {"mine/level_frac": 0.95 if is_full else 0.2}

    def train(self, name: str, max_steps: int = 100_000) -> None:
        alert = MemoryAlert({"mine/level_frac": "90%"}, {}, None, save=True, stop=True)
        callbacks = [
            MemoryCallback([Rule(Every(steps=1), [self.level])]),
            alert,
            ScheduledGarbageCollector(every_steps=2),
            TBMemoryLogger(rank_steps=2),
        ]
        place = str(self.folder / f"out{self.rank}")
        args = SimpleNamespace(process_index=self.rank, world_size=2, output_dir=place)
        loop = TrainingLoop(torch.nn.Linear(2, 2), args=args, callbacks=callbacks)
        with loop.train(), loop.epoch():
            while loop.state.global_step < max_steps and not loop.should_stop:
                with loop.step():
                    time.sleep(0.003)
                    if self.together:
                        dist.all_reduce(torch.zeros(1))
                if loop.control.should_save:
                    loop.control.should_save = False
                    self.saves.append(loop.state.global_step)
                write(self.folder / f"{name}.rank{self.rank}", str(loop.state.global_step))
                if (self.folder / f"end.{name}").exists():
                    break
        write(self.folder / f"{name}.done{self.rank}", f"{loop.state.global_step} {self.saves}")


def write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)


@contextmanager
def two_ranks(folder: Path, body: Callable[[int], None]) -> Iterator[list[int]]:
    """Both ranks in forks of this process; rank 0 keeps the store. What a rank logs stands in `log<rank>`."""
    address = f"tcp://127.0.0.1:{free_port()}"
    pids = []
    for rank in (0, 1):
        pid = os.fork()
        if not pid:
            try:
                logging.basicConfig(filename=folder / f"log{rank}", level=logging.WARNING, force=True)
                dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
                body(rank)
            except BaseException:
                (folder / f"error{rank}").write_text(traceback.format_exc())
            os._exit(0)
        pids.append(pid)
    try:
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def step_of(folder: Path, name: str) -> int:
    path = folder / name
    return int(path.read_text()) if path.exists() else 0


def wait_for(folder: Path, what: Callable[[], Any], why: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not what():
        errors = [path.read_text() for path in folder.glob("error*")]
        assert not errors, errors
        assert time.monotonic() < deadline_s, why
        time.sleep(0.01)


@pytest.mark.slow
def test_steps_go_on_while_the_rank_with_the_store_stands_and_afterwards_all_agree(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        Rank(tmp_path, rank).train("alone")
        Rank(tmp_path, rank, full_from=9 if rank else 10**9, together=True).train("together", 60)

    with two_ranks(tmp_path, body) as (rank_0, _):
        wait_for(tmp_path, lambda: min(step_of(tmp_path, f"alone.rank{r}") for r in (0, 1)) > 5, "both train")
        os.kill(rank_0, signal.SIGSTOP)
        stood_at = step_of(tmp_path, "alone.rank1")
        wait_for(tmp_path, lambda: step_of(tmp_path, "alone.rank1") > stood_at + 200, "rank 1 goes on")
        assert step_of(tmp_path, "alone.rank0") < stood_at + 100
        os.kill(rank_0, signal.SIGCONT)
        (tmp_path / "end.alone").touch()
        wait_for(tmp_path, lambda: len(list(tmp_path.glob("together.done*"))) == 2, "both end")
    ends = [(tmp_path / f"together.done{rank}").read_text() for rank in (0, 1)]
    assert ends[0] == ends[1]
    steps, _, saves = ends[0].partition(" ")
    assert 9 < int(steps) < 60
    assert saves == f"[{steps}]"


def test_a_rank_that_hears_late_of_what_was_agreed_on_does_it_once(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        Rank(tmp_path, rank).train("alone")

    with two_ranks(tmp_path, body) as (rank_0, _):
        wait_for(tmp_path, lambda: step_of(tmp_path, "alone.rank1") > 5, "both train")
        os.kill(rank_0, signal.SIGSTOP)
        (tmp_path / "full0").touch()  # which it finds when it goes on
        wait_for(tmp_path, lambda: step_of(tmp_path, "alone.rank1") > 300, "rank 1 is far ahead")
        os.kill(rank_0, signal.SIGCONT)
        wait_for(tmp_path, lambda: len(list(tmp_path.glob("alone.done*"))) == 2, "both have stopped")
    ends = [(tmp_path / f"alone.done{rank}").read_text().partition(" ") for rank in (0, 1)]
    assert int(ends[1][0]) > 300
    for steps, _, saves in ends:
        assert saves == f"[{steps}]", "saved once, and stopped there"


@pytest.mark.slow
def test_a_rank_goes_on_when_the_one_with_the_store_is_gone_and_says_so_once(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        Rank(tmp_path, rank, full_from=20).train("alone", 400)

    with two_ranks(tmp_path, body) as (rank_0, _):
        wait_for(tmp_path, lambda: step_of(tmp_path, "alone.rank1") > 5, "both train")
        os.kill(rank_0, signal.SIGKILL)
        wait_for(tmp_path, lambda: (tmp_path / "alone.done1").exists(), "rank 1 trains to its end")
    told = (tmp_path / "log1").read_text()
    assert told.count("the store of torch.distributed does not answer") == 1
