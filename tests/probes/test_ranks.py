"""Memory over the ranks, on a real store of torch.distributed; both ranks in this process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from forgather_mem.probes.ranks import RankProbe, spread
from forgather_mem.telemetry.records import Sample


@pytest.fixture
def _store() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def probe_of(rank: int, world_size: int) -> RankProbe:
    probe = RankProbe()
    run: Any = SimpleNamespace(rank=rank, world_size=world_size, store_key=lambda what: f"{what}/this training")
    probe.begin(run)
    return probe


def read(probe: RankProbe, **values: float) -> dict[str, float]:
    moment: Any = None  # it looks at the record alone
    readings = {name.replace("_", "/", 1): value for name, value in values.items()}
    return dict(probe(moment, Sample("step_end", 1, None, 0.0, readings)))


@pytest.mark.usefixtures("_store")
def test_the_first_rank_alone_tells_and_never_waits_for_the_others() -> None:
    first, second = probe_of(0, 2), probe_of(1, 2)
    assert read(first, host_rss_bytes=5.0) == {}, "the other one has not written yet"
    assert read(second, host_rss_bytes=7.0, device_allocated_bytes=1.0) == {}
    assert read(first, host_rss_bytes=6.0, device_allocated_bytes=3.0) == {
        "ranks/rss_min_bytes": 6.0,
        "ranks/rss_max_bytes": 7.0,
        "ranks/allocated_min_bytes": 1.0,
        "ranks/allocated_max_bytes": 3.0,
        "ranks/argmax": 0.0,
    }


def test_alone_or_without_a_store_there_is_nothing_to_tell() -> None:
    assert read(probe_of(0, 1), host_rss_bytes=5.0) == {}
    assert read(probe_of(0, 2), host_rss_bytes=5.0) == {}


def test_what_a_rank_does_not_have_is_absent_and_device_memory_decides_who_is_highest() -> None:
    nan = math.nan
    assert spread([(nan, nan, 5.0), (nan, nan, 9.0), (nan, nan, 7.0)]) == {
        "ranks/rss_min_bytes": 5.0,
        "ranks/rss_max_bytes": 9.0,
        "ranks/argmax": 1.0,
    }
    assert spread([(4.0, 8.0, 5.0), (nan, nan, 9.0), (2.0, 9.0, 5.0)])["ranks/argmax"] == 0.0
    assert spread([(nan, nan, nan)] * 2) == {}
