"""A suspect as the report has it."""

from typing import Any

import pytest
import torch

from forgather_mem.diagnose.leaks.suspects import Suspect, count_again
from forgather_mem.reporting.problems import _suspect_lines
from forgather_mem.telemetry.report import NOT_JUDGED
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
    assert (first.each != second.each, first.held_by != second.held_by) == (True, True)
    assert first.reported().signature == second.reported().signature
    assert "Holder.by_name[...]" in first.reported().signature


def test_where_items_differ_one_of_them_is_an_example_and_their_size_a_mean() -> None:
    kept = Holder().by_name.setdefault("both", [])
    (top, *_) = suspects_after(lambda step: kept.append(torch.zeros(4000 if step % 2 else 12_000)))
    assert top.each.startswith("e.g. Tensor [")
    assert f"{top.each}, on average" in "\n".join(_suspect_lines(top.reported(), 80, NOT_JUDGED))


def test_a_tuple_in_a_list_is_an_item_and_no_pair_of_a_key_and_what_is_new() -> None:
    kept = Holder().by_name.setdefault("pairs", [])
    (top, *_) = suspects_after(lambda step: kept.append((step, torch.zeros(9000))))
    assert top.each == "tuple of 2 with Tensor [9000] float32 on cpu"


def test_memory_is_that_of_tensors_where_most_of_the_bytes_are_theirs() -> None:
    kept, texts = Holder().by_name.setdefault("both", []), [0, 4000, 40_000, 400_000]
    tops = [suspects_after(lambda step, n=n: kept.append([torch.zeros(9000), f"{step}" * n]))[0] for n in texts]
    tops += suspects_after(lambda step: kept.append((lambda one: lambda: one)(torch.zeros(9000))))[:1]
    assert [top.where for top in tops] == ["tensors", "tensors", "host", "python", "host"]


def test_at_the_end_what_still_has_its_name_is_counted_and_not_what_came_after_the_last_step() -> None:
    holder, other = Holder(), Holder()
    (top, *_) = suspects_after(lambda step: holder.kept.append(torch.zeros(5000)), 30)
    then = top.count or 0
    (once, *_) = suspects_after(lambda step: other.kept.append(torch.zeros(5000)))
    count_again([once], 300, 0)
    assert (once.bytes_per_step, once.bounded) == (0, None), "it has not grown since"
    holder.kept += [torch.zeros(5000) for _ in range(3)]
    top.seen_at, top.count_per_step = 100, then / 100  # as in the callback of the last step, before it has ended
    count_again([top], 100, 0, over=True)
    assert (top.count, top.count_per_step, top.bounded) == (then + 3, pytest.approx((then + 3) / 100), None)
    holder.kept += [0] * 9000
    count_again([top], 101, 0, over=True)
    assert top.count == then + 3, "no step has added so much"
    other.by_name["rows"], holder.kept = holder.kept, []  # as where a list was made at the address of a freed one
    count_again([top], 101, 0, over=True)
    assert (top.count, top.bytes, top.bounded) == (None, None, None), "there may be more by now"
    (top, *_) = suspects_after(lambda step: other.kept.extend(torch.zeros(3, 5000).unbind()), 30)
    top.count, top.seen_at, top.count_per_step = len(other.kept), 100, 3.0
    other.kept += [torch.zeros(5000) for _ in range(3 * 50 + 2)]
    count_again([top], 150, 0, over=True)
    assert top.count_per_step == 3.0, "two came in a step that has not ended"


def test_a_list_in_an_attribute_is_told_with_code_that_can_be_typed() -> None:
    holder: Any = Holder()  # its class is in another module
    holder.told = {"rows": []}
    (top, *_) = suspects_after(lambda step: holder.told["rows"].append(torch.zeros(5000)))
    assert top.reported().cure == 'keep only the last ones, del holder.told["rows"][:-10], or a running mean of it'
