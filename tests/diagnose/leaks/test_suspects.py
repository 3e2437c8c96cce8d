"""A suspect as the report has it."""

import torch

from forgather_mem.diagnose.leaks.suspects import Suspect, count_again
from tests.heap.test_reachable import Holder, suspects_after


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


def test_at_the_end_what_still_has_its_name_is_counted_and_not_what_took_its_place() -> None:
    holder, other = Holder(), Holder()
    (top, *_) = suspects_after(lambda step: holder.kept.append(torch.zeros(5000)))
    then = top.count or 0
    holder.kept.append(torch.zeros(5000))
    count_again([top], 100, 0, over=True)
    assert (top.count, top.bounded) == (then + 1, None)
    other.by_name["rows"], holder.kept = holder.kept, []  # as where a list was made at the address of a freed one
    del other.by_name["rows"][2:]
    count_again([top], 101, 0, over=True)
    assert (top.count, top.bytes, top.bounded) == (None, None, None)
