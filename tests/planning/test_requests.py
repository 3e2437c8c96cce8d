"""The allocations of a planned training, against what torch is asked for."""

from pathlib import Path

import torch

import forgather_mem
from forgather_mem.planning.storage_log import StorageLog, StorageRequest
from tests.training import make_trainer


def test_each_allocation_stands_beside_what_there_was_before_it() -> None:
    log = StorageLog()
    first = torch.empty(1000)
    log.saw(first)
    log.begin("forward", 1)
    second = torch.empty(500)
    log.saw(second)
    del first
    log.saw(third := torch.empty(250))
    assert list(log.trace.requests()) == [
        StorageRequest(1, "data", 4000, 0),
        StorageRequest(1, "forward", 2000, 4000),
        StorageRequest(1, "forward", 1000, 2000),
    ]
    del third


def test_a_plan_has_them_and_its_json_has_not(tmp_path: Path) -> None:
    plan = forgather_mem.plan(make_trainer(tmp_path))
    highest = max(plan.trace.requests(), key=lambda one: one.before_bytes + one.size)
    assert highest.before_bytes + highest.size == plan.peak_bytes
    assert (highest.step, highest.phase) == (plan.step, plan.phase)
    assert "requests" not in plan.to_dict()
