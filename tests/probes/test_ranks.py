"""Memory over the ranks, on a real store of torch.distributed; both ranks in this process."""

import math
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from forgather_mem.probes.ranks import RankProbe, spread
from forgather_mem.system import rank_store
from forgather_mem.system.memory_limit import limit_facts
from forgather_mem.telemetry.records import Sample, Work


@pytest.fixture(autouse=True)
def _no_answers_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_store, "_ASKER", rank_store._Asker())


@pytest.fixture
def _store() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def probe_of(rank: int, world_size: int) -> Work:
    run: Any = SimpleNamespace(rank=rank, world_size=world_size, store_key=lambda what: f"{what}/this training")
    return RankProbe().begin(run)


def read(probe: Work, step: int = 1, **values: float) -> dict[str, float]:
    moment: Any = SimpleNamespace(run=SimpleNamespace(latest=lambda name: None))
    readings = {name.replace("_", "/", 1): value for name, value in values.items()}
    return dict(probe(moment, Sample("step_end", step, None, 0.0, readings)))


def read_again(probe: Work, step: int = 1, num_ranks: int = 2, **values: float) -> dict[str, float]:
    """What it tells when the store has answered: at each call it is what the call before has asked for."""
    deadline_s = time.monotonic() + 30
    told: dict[str, float] = {}
    while told.get("ranks/count") != num_ranks and time.monotonic() < deadline_s:
        told = read(probe, step, **values)
        time.sleep(0.002)
    return told


@pytest.mark.usefixtures("_store")
def test_the_first_rank_alone_tells_of_those_that_have_written() -> None:
    first, second = probe_of(0, 2), probe_of(1, 2)
    alone = read_again(first, host_rss_bytes=5.0, num_ranks=1)
    assert (alone["ranks/rss_min_bytes"], alone["ranks/rss_max_bytes"]) == (5.0, 5.0)
    assert read(second, host_rss_bytes=7.0, device_allocated_bytes=1.0, device_reserved_bytes=4.0) == {}
    for _ in range(2):
        told = read_again(first, host_rss_bytes=5.0, device_allocated_bytes=3.0, device_reserved_bytes=6.0)
    assert told.pop("ranks/host_sum_frac") == pytest.approx(12.0 / limit_facts().limit_bytes)
    assert told == {
        "ranks/rss_min_bytes": 5.0, "ranks/rss_max_bytes": 7.0, "ranks/allocated_min_bytes": 1.0,
        "ranks/allocated_max_bytes": 3.0, "ranks/reserved_min_bytes": 4.0, "ranks/reserved_max_bytes": 6.0,
        "ranks/argmax": 0.0, "ranks/count": 2.0, "ranks/host_sum_bytes": 12.0,
    }  # fmt: skip


@pytest.mark.usefixtures("_store")
def test_a_rank_that_writes_no_more_is_left_out_after_three_periods() -> None:
    ranks = [probe_of(rank, 3) for rank in range(3)]
    for probe in ranks:
        read(probe, 10, host_rss_bytes=4.0)
    assert read_again(ranks[0], 10, num_ranks=3, host_rss_bytes=4.0)["ranks/host_sum_bytes"] == 12.0
    for step in range(20, 60, 10):
        for probe in ranks[:2]:
            read(probe, step, host_rss_bytes=4.0)
        rank_store.count("what was put before")  # its answer comes after theirs
    told = read_again(ranks[0], 60, num_ranks=2, host_rss_bytes=4.0)
    assert (told["ranks/count"], told["ranks/host_sum_bytes"]) == (2.0, 8.0)


def test_alone_or_without_a_store_there_is_nothing_to_tell() -> None:
    assert read(probe_of(0, 1), host_rss_bytes=5.0) == {}
    assert read(probe_of(0, 2), host_rss_bytes=5.0) == {}


def test_what_a_rank_does_not_have_is_absent_and_device_memory_decides_who_is_highest() -> None:
    nan = math.nan
    assert spread([(nan, nan, 5.0), (nan, nan, 9.0), (nan, nan, 7.0)]) == {
        "ranks/rss_min_bytes": 5.0, "ranks/rss_max_bytes": 9.0, "ranks/argmax": 1.0,
    }  # fmt: skip
    assert spread([(4.0, 8.0, 5.0), (nan, nan, 9.0), (2.0, 9.0, 5.0)])["ranks/argmax"] == 0.0
    assert spread([(nan, nan, nan)] * 2) == {}
