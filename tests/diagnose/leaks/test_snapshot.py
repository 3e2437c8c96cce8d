"""What has grown between two looks, and by how much."""

import functools
import io
from typing import Any

import numpy as np
import pytest
import torch

from tests.heap.test_reachable import Holder, suspects_after

pytestmark = pytest.mark.alone(forked=True)


@functools.lru_cache(maxsize=50)
def bounded(number: int) -> torch.Tensor:
    return torch.zeros(1000)


def test_a_bounded_cache_says_where_it_will_stop() -> None:
    (top, *_) = suspects_after(lambda step: bounded(step))
    assert top.held_by is not None
    assert top.held_by.endswith(".bounded")
    assert top.bounded is not None
    assert "50 at most" in top.bounded


def test_a_tensor_that_is_made_longer_is_suspected() -> None:
    holder: Any = Holder()
    holder.seen = torch.zeros(1)

    def grow(step: int) -> None:
        holder.seen = torch.cat([holder.seen, torch.zeros(2000)])

    (top, *_) = suspects_after(grow)
    assert (top.kind, top.held_by) == ("size", "Holder.seen")
    assert top.bytes_per_step == pytest.approx(8000, rel=0.1)


def test_an_array_in_the_place_of_a_shorter_one_is_suspected_and_no_text_beside_it() -> None:
    holder: Any = Holder()
    holder.title, holder.seen = "a title", np.zeros(1)

    def grow(step: int) -> None:
        holder.seen = np.zeros(2000 * (step + 2))

    assert {suspects_after(grow, steps)[0].held_by for steps in (10, 11)} == {"Holder.seen"}


def test_a_sum_too_long_to_be_followed_to_its_beginning_is_suspected() -> None:
    holder: Any = Holder()
    weight = torch.ones(3, requires_grad=True)
    holder.total = weight.sum()
    for _ in range(30_000):
        holder.total = holder.total + weight.sum()

    def grow(step: int) -> None:
        holder.total = holder.total + weight.sum()

    assert any((one.kind, one.held_by) == ("graph", "Holder.total") for one in suspects_after(grow))


def test_losses_of_one_step_reach_back_to_no_other() -> None:
    holder: Any = Holder()
    weight = torch.ones(3, requires_grad=True)
    holder.last = weight.sum()

    def grow(step: int) -> None:
        holder.last = (weight * step).sum().exp()

    assert not any(one.kind == "graph" for one in suspects_after(grow))


def test_what_a_function_replaces_by_a_longer_one_and_the_graph_behind_it_are_no_leak() -> None:
    weight = torch.ones(3, requires_grad=True)
    batch, loss = torch.zeros(1000), weight.sum()

    def train(step: int) -> None:
        nonlocal batch, loss
        batch, loss = torch.zeros(1000 + 400 * step), sum(weight * step for _ in range(10 + 2 * step))

    train(0)
    found = suspects_after(train)
    for name, rate in (("loss", 4 * 650), ("batch", 1600)):
        (one,) = [one for one in found if one.held_by and name in one.held_by]
        assert one.bytes_per_step == pytest.approx(rate, rel=0.3)
        assert one.bounded is not None
        assert "replaced by longer ones" in one.bounded


@pytest.mark.parametrize(("kind", "unit"), [(io.BytesIO, b"x"), (io.StringIO, "x")])
def test_what_is_written_in_memory_grows_by_what_is_written(kind: Any, unit: Any) -> None:
    holder: Any = Holder()
    holder.file = kind()
    holder.file.write(unit * 900_000)  # with spare room for more

    def grow(step: int) -> None:
        holder.file.write(unit * 1000)

    (top, *_) = suspects_after(grow)
    assert top.held_by == "Holder.file"
    assert top.bytes_per_step == pytest.approx(1000, rel=0.1)
    assert "truncate()" in (top.cure or "")
