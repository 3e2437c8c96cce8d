"""A suspect as the report has it."""

import pytest
import torch

from forgather_mem.diagnose.leaks.suspects import Suspect
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
