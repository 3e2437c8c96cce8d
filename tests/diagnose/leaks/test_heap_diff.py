"""Who holds what grows between two looks, and at which line: real memory."""

import queue
import tracemalloc
from typing import Any

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
    told = ("Keeps.kept", "graph", "Tensor [] float32 on cpu with its graph")
    assert [(one.held_by, one.kind, one.each) for one in found] == [told]


def test_hooks_that_fill_a_list_each_are_one_holder_of_all_that_grows() -> None:
    layer = torch.nn.Linear(8, 8)

    def step() -> None:
        captured = []
        layer.register_forward_hook(lambda *_: captured.append(torch.zeros(5_000)))
        layer(torch.zeros(8))

    for _ in range(20):
        step()
    look = CloserLook(20)
    for _ in range(10):
        step()
    (one,) = look.finish(30, 25 * 20_000.0)
    assert (one.kind, str(one.held_by)[-14:], one.count, one.count_per_step) == ("hooks", "_forward_hooks", 30, 1)
    assert one.bytes_per_step == pytest.approx(25 * 20_000, rel=0.1)
    assert ("handle.remove()" in str(one.cure), one.bytes) == (True, None), "its items go on growing"
    assert ("captured.append(" in one.source_line, one.where, one.each) == (True, "tensors", "")


def test_what_is_new_in_the_place_of_one_that_is_gone_has_its_own_size() -> None:
    keeps, holder, other = Keeps(), Holder(), Holder()
    holder.by_name["gone"], state = [1, 2], {"weights": 1}
    places = id(holder.by_name["gone"]), id(state)
    walk = ReachableGraph.walk(budget_s=10.0)
    before, _taken = look(walk, 0), [{number: 0} for number in range(99)]  # Python keeps 80 free ones
    walk.forget()
    del holder.by_name["gone"], state
    other.kept, state = [*range(1000, 3000)], {"weights": torch.zeros(5_000)}  # type: ignore[dict-item]
    assert (id(other.kept), id(state)) == places, "Python gives it to the next"
    other.by_name["states"] = state  # type: ignore[assignment]
    keeps.keep(torch.zeros(5_000))
    before.known.add(id(keeps.kept[0]))
    walk = ReachableGraph.walk(budget_s=10.0)
    found = {walk.holder(one.position): one.each_bytes for one in grown(before, walk, 10)}
    assert found["Keeps.kept"] == pytest.approx(20_000, rel=0.05)
    assert found["Holder.by_name"] == pytest.approx(20_000, rel=0.1)
    assert "Holder.kept" not in found


def test_a_holder_of_items_of_two_sizes_is_weighed_whole_and_told_with_the_line_that_adds_most() -> None:
    kept: queue.Queue[Any] = queue.Queue()

    def steps(first: int, last: int) -> None:
        for step in range(first, last):
            kept.put("x" * 4000 + str(step))
            if step % 25 == 24:
                kept.put({"weights": torch.zeros(400_000)})

    steps(0, 101)
    look = CloserLook(101)
    steps(101, 111)  # without a large one
    (top, *_) = look.finish(111, 68_000.0)
    assert top.bytes_per_step == pytest.approx(68_000, rel=0.15)
    assert top.bytes == pytest.approx(4 * 1_600_000 + 111 * 4050, rel=0.15)
    look = CloserLook(111, far=True, held=top.place)
    steps(111, 126)
    found = look.finish(126, 68_000.0)
    assert found[0].source_line == 'kept.put({"weights": torch.zeros(400_000)})'


def test_steps_between_two_evaluations_are_not_taken_for_all_of_them() -> None:
    kept = Holder().by_name.setdefault("losses", [torch.zeros(5_000) for _ in range(92)])  # 4 are of evaluations
    look = CloserLook(88)
    kept += [torch.zeros(5_000) for _ in range(12)]
    assert look.finish(100, 20_000.0, is_even=False)[0].count_per_step == pytest.approx(1.04)


def test_lists_by_name_are_one_holder_only_where_their_items_are_alike() -> None:
    holder = Holder()
    holder.by_name = {"loss": [], "logits": []}
    look = CloserLook(0)
    for step in range(10):
        holder.by_name["loss"].append(0.5 * step)
        holder.by_name["logits"].append(torch.zeros(5_000))
    (top, *_) = look.finish(10, 20_000.0)
    assert (top.held_by, top.count, top.count_per_step) == ("Holder.by_name['logits']", 10, 1.0)
