"""Who holds what grows between two looks, and at which line: real memory."""

import tracemalloc

import pytest
import torch
from PIL import Image

from forgather_mem.diagnose.leaks.heap_diff import CloserLook
from forgather_mem.diagnose.leaks.snapshot import grown, look
from forgather_mem.heap.object_size import array_bytes
from forgather_mem.heap.reachable import ReachableGraph
from tests.heap.test_reachable import Holder, suspects_after

pytestmark = pytest.mark.alone(forked=True)


def test_pictures_are_as_large_as_their_memory() -> None:
    assert array_bytes(Image.new("RGB", (300, 200))) == 4 * 300 * 200
    assert array_bytes(Image.new("L", (300, 200))) == 300 * 200
    holder = Holder()
    (top, *_) = suspects_after(lambda step: holder.kept.append(Image.new("RGB", (300, 200))))
    assert (top.held_by, round(top.bytes_per_step, -4)) == ("Holder.kept", 240_000)


class Keeps:
    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def keep(self, x: torch.Tensor) -> None:
        self.kept.append(x)


def test_the_line_is_the_one_that_adds_and_nobody_traces_for_it() -> None:
    keeps = Keeps()
    look = CloserLook(0)
    for _ in range(10):
        keeps.keep(torch.zeros(5_000))
    (top, *_) = look.finish(10, 20_000.0)
    assert (top.held_by, top.source_line) == ("Keeps.kept", "self.kept.append(x)")
    assert not tracemalloc.is_tracing()
    look.drop()


@pytest.mark.parametrize(
    ("first", "more", "a_step"), [(95, 5, 1.0), (96, 4, 1.0), (48, 2, 0.5), (190, 10, 2.0), (10, 5, 1.0), (11, 4, 1.0)]
)
def test_where_a_run_ends_within_a_step_nothing_is_counted_twice(first: int, more: int, a_step: float) -> None:
    """The first look was before or after what step 96 keeps; what begins late has no mean over the run."""
    keeps = Keeps()
    for _ in range(first):
        keeps.keep(torch.zeros(5_000))
    look = CloserLook(96)
    for _ in range(more):
        keeps.keep(torch.zeros(5_000))
    (top, *_) = look.finish(100, 20_000.0 * a_step)
    look.drop()
    assert (top.held_by, top.count) == ("Keeps.kept", first + more)
    assert top.count_per_step == pytest.approx(a_step, rel=0.02)
    assert top.bytes_per_step == pytest.approx(20_000 * a_step, rel=0.05)


def test_losses_kept_with_their_graph_are_named_and_not_the_batch_beside_them() -> None:
    keeps, weights = Keeps(), torch.ones(5_000, requires_grad=True)
    look = CloserLook(0)
    for _ in range(10):
        rows = torch.zeros(5_000)
        keeps.keep((rows * weights).sum())
    found = look.finish(10, 20_000.0)
    look.drop()
    assert [(one.held_by, one.kind) for one in found] == [("Keeps.kept", "graph")]


def test_a_new_tensor_in_the_place_of_one_that_is_gone_has_its_size() -> None:
    keeps = Keeps()
    walk = ReachableGraph.walk(budget_s=10.0)
    before = look(walk, 0)
    walk.forget()
    keeps.keep(torch.zeros(5_000))
    before.known.add(id(keeps.kept[0]))  # as Python gives it the place of an object that was freed
    walk = ReachableGraph.walk(budget_s=10.0)
    (one,) = [one for one in grown(before, walk, 10) if walk.holder(one.position) == "Keeps.kept"]
    assert one.each_bytes == pytest.approx(20_000, rel=0.05)
