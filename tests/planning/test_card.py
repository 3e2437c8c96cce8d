"""The allocator's segments, simulated."""

import random

import pytest
import torch

from forgather_mem.planning.card import context_of, reserved_by_allocator, use_of_card
from forgather_mem.planning.storage_log import Trace
from forgather_mem.units import GIB, MIB


@pytest.mark.parametrize(
    ("sizes", "reserved_mib"),
    [
        ([1], 2), ([MIB], 2), ([MIB, MIB, 1], 4), ([MIB + 1], 20), ([5 * MIB] * 4, 20), ([11 * MIB], 12),
        ([100 * MIB, 100 * MIB], 200), ([0], 0),
    ],
)  # fmt: skip
def test_segments_have_the_allocators_sizes(sizes: list[int], reserved_mib: int) -> None:
    assert reserved_by_allocator(range(len(sizes)), sizes) == reserved_mib * MIB


def test_what_is_given_back_is_used_again() -> None:
    assert reserved_by_allocator([0, ~0, 1, ~1, 2], [64 * MIB, 40 * MIB, 24 * MIB]) == 64 * MIB


def test_neighbours_are_joined() -> None:
    events = [0, 1, 2, ~0, ~2, ~1, 3]
    assert reserved_by_allocator(events, [6 * MIB, 6 * MIB, 6 * MIB, 19 * MIB]) == 20 * MIB


def test_gaps_are_lost() -> None:
    """Every second one is free, and none of these is large enough."""
    events = [*range(8), *(~number for number in range(0, 8, 2)), 8]
    assert reserved_by_allocator(events, [5 * MIB] * 8 + [9 * MIB]) == 60 * MIB


def test_where_there_is_no_more_free_segments_are_given_back() -> None:
    events, sizes = [0, ~0, 1], [64 * MIB, 96 * MIB]
    assert reserved_by_allocator(events, sizes) == 160 * MIB
    assert reserved_by_allocator(events, sizes, 96 * MIB) == 96 * MIB
    assert reserved_by_allocator(events, sizes, 95 * MIB) is None
    split = [0, 1, ~0, 2]  # the segment of the first has another block
    assert reserved_by_allocator(split, [6 * MIB, 6 * MIB, 16 * MIB], 20 * MIB) is None


def test_a_use_is_from_the_tensors_to_what_the_allocator_needs() -> None:
    trace = Trace([0, ~0, 1], [1024 * MIB, 1536 * MIB])
    context = context_of(24 * GIB)
    use = use_of_card(1536 * MIB, 2560 * MIB, trace, 24 * GIB, context)
    assert use.low_bytes == 1536 * MIB + context.low_bytes
    assert 1536 * MIB <= use.high_bytes - context.high_bytes <= 1.02 * 1536 * MIB
    assert use_of_card(1536 * MIB, 2560 * MIB, trace, 1536 * MIB + context.high_bytes, context).high_bytes == (
        1536 * MIB + context.high_bytes
    )


@pytest.mark.parametrize("card_gib", [4, 8, 14.6, 24, 40, 80, 141])
def test_a_context_leaves_less_open_than_a_tenth_of_a_card_of_8_gib(card_gib: float) -> None:
    low, high = context_of(int(card_gib * GIB))
    assert high - low < 0.1 * max(8, card_gib) * GIB
    assert context_of(int(card_gib * GIB), ranks=2).high_bytes > high


@pytest.mark.gpu
def test_it_reserves_what_torchs_allocator_does() -> None:
    random.seed(0)
    sizes, events, alive = [], [], []
    for number in range(300):
        sizes.append(random.choice([300, 70_000, 900_000, 3 * MIB, 9 * MIB, 17 * MIB, 33 * MIB]))
        events.append(number)
        alive.append(number)
        if random.random() < 0.6:
            events.append(~alive.pop(random.randrange(len(alive))))
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    held: dict[int, torch.Tensor] = {}
    for event in events:
        if event >= 0:
            held[event] = torch.empty(sizes[event], dtype=torch.uint8, device="cuda")
        else:
            del held[~event]
    assert torch.cuda.memory_reserved() - before == reserved_by_allocator(events, sizes)
