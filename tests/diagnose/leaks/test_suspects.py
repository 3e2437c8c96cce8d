"""A suspect as the report has it."""

import pytest
import torch

from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.reporting.problems import _suspect_lines
from tests.heap.test_reachable import Holder, suspects_after

pytestmark = pytest.mark.alone(forked=True)  # each looks through the heap, of which all tests have more


def test_a_signature_tells_nothing_of_sizes_keys_or_places_in_a_run() -> None:
    holder = Holder()

    def keep(name: str, size: int) -> Suspect:
        holder.by_name[name] = []

        def grow(step: int) -> None:
            holder.by_name[name].append(torch.zeros(size))

        (top, *_) = suspects_after(grow)
        return top

    first, second = keep("run 1", 5000), keep("run 2", 7000)
    assert first.each != second.each
    assert first.held_by != second.held_by
    assert first.reported().signature == second.reported().signature
    assert "Holder.by_name[...]" in first.reported().signature


def test_where_items_differ_one_of_them_is_an_example_and_their_size_a_mean() -> None:
    kept = Holder().by_name.setdefault("both", [])
    (top, *_) = suspects_after(lambda step: kept.append(torch.zeros(4000 if step % 2 else 12_000)))
    assert top.each.startswith("e.g. Tensor [")
    assert f"{top.each}, on average" in "\n".join(_suspect_lines(top.reported(), 80))
