"""What is one leak in many places is told as one."""

import pytest

from forgather_mem.diagnose.leaks.heap_diff import merge_similar
from forgather_mem.diagnose.leaks.snapshot import grown, look
from forgather_mem.heap.reachable import ReachableGraph
from tests.heap.test_reachable import Holder


def test_what_differs_by_a_key_is_told_as_one() -> None:
    holder = Holder()
    for name in "abcdefghij":
        holder.by_name[name] = []

    def grow(step: int) -> None:
        for rows in holder.by_name.values():
            rows.append(bytes(1000))

    walk = ReachableGraph.walk(budget_s=10.0)
    before = look(walk, 0)
    walk.forget()
    for step in range(10):
        grow(step)
    walk = ReachableGraph.walk(budget_s=10.0)
    (one, *_) = merge_similar(grown(before, walk, 10), walk)
    assert one.name == "Holder.by_name[...]"
    assert one.count_per_step == 11
    assert one.bytes_per_step == pytest.approx(11_000, rel=0.1)
