"""Whether longer samples will still come, from what a data set keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forgather_mem.diagnose.oom.shapes.batch_shapes import Batch
from forgather_mem.diagnose.oom.shapes.samples_ahead import sizes_of, times_ahead


class Keeps(torch.utils.data.Dataset[Any]):
    """Samples of these lengths, each cut."""

    def __init__(self, lengths: list[int], most: int = 10**6) -> None:
        self.names = ["a"] * len(lengths)
        self.signals = [torch.zeros(2, length) for length in lengths]
        self.most = most

    def __len__(self) -> int:
        return len(self.signals)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.signals[index][:, : self.most]


def ahead(dataset: Any, batches: int, batch: Batch, **more: Any) -> float | None:
    iterator = iter(torch.utils.data.DataLoader(dataset, batch_size=2, collate_fn=list, **more))
    for _ in range(batches):
        next(iterator)
    return times_ahead(batch)


def test_the_longest_is_known_although_samples_may_be_cut() -> None:
    rising = Keeps([10, 20, 30, 40, 50, 100])
    assert ahead(rising, 1, Batch(2, None, (2, 20))) == 5.0
    assert ahead(rising, 2, Batch(2, None, (2, 40))) == 2.5
    assert ahead(rising, 3, Batch(2, None, (2, 100))) == 1.0


def test_samples_that_are_cut_already_become_no_longer() -> None:
    tokens = [{"input_ids": [7] * length} for length in (10, 90, 90, 180)]
    assert ahead(tokens, 1, Batch(2, 90)) == 2.0
    assert ahead(tokens, 1, Batch(2, 50)) == 1.0


def test_what_nobody_keeps_is_not_known() -> None:
    assert sizes_of(range(9)) is None
    assert sizes_of([1, 2, 3]) is None, "numbers may mean anything"
    assert times_ahead(Batch(2, 90)) is None


@pytest.mark.parametrize("sample", [torch.zeros(7), ([0.0] * 7, 3), {"x": [1] * 7, "y": 1}, (torch.zeros(1, 7), 0)])
def test_a_sample_is_as_large_as_its_largest_part(sample: Any) -> None:
    assert sizes_of([sample, sample]) == [7, 7]
