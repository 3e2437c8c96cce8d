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
    return torch.zeros(1000 if number < 50 else 9000)


def test_a_bounded_cache_says_where_it_will_stop() -> None:
    (top, *_) = suspects_after(lambda step: bounded(step))
    assert str(top.held_by).endswith(".bounded")
    assert "50 at most" in str(top.bounded)
    _ = [*map(bounded, range(50))]
    (top, *_) = suspects_after(lambda step: bounded(50 + step))
    assert f"the entries of the cache {top.held_by} get longer" in str(top.bounded)


def test_what_a_variable_has_of_the_newest_item_makes_none_smaller() -> None:
    holder: Any = Holder()
    holder.seen = []

    def add(step: int) -> None:
        holder.last = torch.zeros(1000)
        holder.seen.append({"last": holder.last})

    (top, *_) = suspects_after(add, 5)
    assert top.held_by == "Holder.seen"
    assert top.bytes_per_step == pytest.approx(4400, rel=0.1)


def test_what_is_made_anew_and_longer_is_suspected_and_no_text_beside_it() -> None:
    for make, steps in ((torch.zeros, 10), (np.zeros, 10), (np.zeros, 11)):  # also at the place of a shorter one
        holder: Any = Holder()
        holder.title, holder.seen = "a title", make(1)
        (top, *_) = suspects_after(lambda step: setattr(holder, "seen", make(2000 * (step + 2))), steps)  # noqa: B023
        assert (top.kind, top.held_by) == ("size", "Holder.seen")
        assert top.bytes_per_step == pytest.approx(holder.seen.nbytes / steps, rel=0.1)


def test_a_sum_too_long_to_be_followed_to_its_beginning_is_suspected() -> None:
    holder: Any = Holder()
    weight = torch.ones(3, requires_grad=True)
    holder.total = weight.sum()
    for _ in range(30_000):
        holder.total = holder.total + weight.sum()

    def grow(step: int) -> None:
        holder.total = holder.total + weight.sum()

    assert any((one.kind, one.held_by) == ("graph", "Holder.total") for one in suspects_after(grow))


def test_what_a_function_replaces_by_a_longer_one_and_the_graph_behind_it_are_no_leak() -> None:
    weight: Any = torch.ones(3, requires_grad=True)
    batch = loss = weight

    def train(step: int) -> None:
        nonlocal batch, loss
        batch, loss = torch.zeros(1000 + 400 * step), sum(weight * step for _ in range(10 + 2 * step))

    train(0)
    for one, (name, rate) in zip(suspects_after(train), (("loss", 4 * 650), ("batch", 1600)), strict=True):
        assert (name in (one.held_by or ""), "by longer ones" in (one.bounded or "")) == (True, True)
        assert one.bytes_per_step == pytest.approx(rate, rel=0.3)


def test_what_is_written_in_memory_grows_by_what_is_written() -> None:
    holder: Any = Holder()
    for file, unit in ((io.BytesIO(), b"x"), (io.StringIO(), "x")):
        holder.file = file
        file.write(unit * 900_000)  # type: ignore[arg-type]  # with spare room for more
        (top, *_) = suspects_after(lambda step: file.write(unit * 1000))  # type: ignore[arg-type]  # noqa: B023
        assert (top.held_by, round(top.bytes_per_step)) == ("Holder.file", 1000)
        assert "truncate()" in (top.cure or "")
