"""The line of a dataset that keeps something in each data worker is found, without a look into the workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from forgather_mem.diagnose.leaks.worker_code import worker_suspects

SEEN: list[int] = []


class Keeps(torch.utils.data.Dataset[int]):
    def __init__(self) -> None:
        self.cache: dict[int, bytes] = {}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        rows = []
        rows.append(index)
        self.cache[index] = bytes(1000)  # is kept
        return index


class KeepsNothing(Keeps):
    def __getitem__(self, index: int) -> int:
        return index


def collate(rows: list[int]) -> list[int]:
    SEEN.extend(rows)
    return rows


def test_an_attribute_of_the_dataset_and_a_variable_of_the_module_are_named_with_their_lines() -> None:
    suspects = worker_suspects(DataLoader(Keeps(), collate_fn=collate), 5000.0)
    assert {one.held_by for one in suspects} == {"Keeps.cache", f"{__name__}.SEEN"}
    by_holder = {one.held_by: one for one in suspects}
    kept = by_holder["Keeps.cache"]
    assert kept.source_line.startswith("self.cache[index] = bytes(1000)")
    assert (kept.allocated_at or "").startswith("test_worker_code.py:")
    assert (kept.kind, kept.where, kept.bytes_per_step) == ("workers", "workers", 5000.0)
    assert kept.cure


def test_the_dataset_inside_of_others_and_behind_accelerates_loader_is_found() -> None:
    loader: Any = SimpleNamespace(base_dataloader=DataLoader(Subset(Keeps(), [1, 2])))
    assert [one.held_by for one in worker_suspects(loader, 1.0)] == ["Keeps.cache"]


def test_a_list_that_a_call_makes_and_drops_is_no_suspect() -> None:
    assert worker_suspects(DataLoader([1, 2, 3]), 1.0) == []
    assert worker_suspects(None, 1.0) == []
