"""Differences of all pairs that a function makes."""

from __future__ import annotations

import inspect
from types import FrameType

import torch

from forgather_mem.heap.failed_pairs import pairs_made


def made(frame: FrameType | None) -> tuple[int, int, int] | None:
    assert frame is not None
    return pairs_made(frame, frame.f_lineno)


def test_distances_by_way_of_differences_are_known() -> None:
    left, right = torch.ones(6, 3), torch.ones(5, 3)
    distances = (left[:, None, :] - right[None]).square().sum(-1)
    assert made(inspect.currentframe()) == (6, 5, 3)
    assert distances.shape == (6, 5)


def test_so_are_those_with_a_name_of_their_own() -> None:
    rows = torch.ones(6, 3)
    differences = rows.unsqueeze(1) - rows.unsqueeze(0)
    distances = (differences**2).sum(-1)
    assert made(inspect.currentframe()) == (6, 6, 3)
    assert distances.shape == (6, 6)


def test_differences_of_distances_are_something_else() -> None:
    distances = torch.ones(6, 6).square()
    margins = distances.unsqueeze(2) - distances.unsqueeze(1)
    assert made(inspect.currentframe()) is None
    assert margins.shape == (6, 6, 6)


def test_differences_that_become_no_distances_are_something_else() -> None:
    left, right = torch.ones(6, 3), torch.ones(5, 3)
    order = (left[:, None] - right[None]).sum(-1)
    assert made(inspect.currentframe()) is None
    assert order.shape == (6, 5)
