"""What is freed with an object, against sizes that are known beforehand."""

import collections
import functools
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any

import numpy as np
import pytest
import torch

from forgather_mem.heap.object_size import (
    Sorts,
    array_bytes,
    big_bytes,
    deep_bytes,
    has_graph,
    inside,
    keeps_frames,
    largest_held,
)

MIB = 2**20


def size(thing: object, known: set[int] | None = None) -> float:
    return deep_bytes(thing, known or set(), set())


class Frame:
    """Says of itself what it holds, as a DataFrame does."""

    def __init__(self) -> None:
        self.values = np.zeros(MIB, dtype=np.uint8)

    def __sizeof__(self) -> int:
        return MIB


@pytest.mark.parametrize(
    "make",
    [
        Frame,
        lambda: bytes(MIB),
        lambda: {"a": [bytes(MIB // 2), (bytes(MIB // 2),)]},
        lambda: collections.deque([torch.zeros(MIB // 4)]),
        lambda: np.zeros(MIB, dtype=np.uint8)[5:9],  # keeps its base
        lambda: functools.partial(print, bytes(MIB)),
        lambda text=bytes(MIB): text,  # in its default arguments
    ],
    ids=["a size that counts what is in it", "bytes", "nested", "tensor", "a view of an array", "partial", "function"],
)
def test_what_leads_to_one_mib_frees_one_mib(make: object) -> None:
    thing = make if getattr(make, "__defaults__", None) else make()  # type: ignore[operator]
    assert size(thing) == pytest.approx(MIB, abs=4000)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [list(range(1000, 2000)) for _ in range(1000)],
        lambda: [[list(range(1000, 1100)) for _ in range(100)] for _ in range(100)],
        lambda: [{"ids": list(range(1000, 1064)), "mask": [1] * 64} for _ in range(3000)],
    ],
)
def test_numbers_in_lists_of_lists_count_with_their_container_also_where_most_are_not_looked_at(make: Any) -> None:
    tracemalloc.start()
    try:
        thing = make()
        assert size(thing) == pytest.approx(tracemalloc.get_traced_memory()[0], rel=0.05)
    finally:
        tracemalloc.stop()


def test_a_number_that_several_hold_counts_in_parts() -> None:
    one = [float(number) for number in range(10_000)]
    other = one[:]
    assert size(one) == pytest.approx(10_000 * (8 + 32 / 2), rel=0.05)
    assert len(other) == len(one)


def test_a_closure_frees_what_it_has_captured_but_not_its_module() -> None:
    captured = bytes(MIB)
    assert size(lambda: captured) == pytest.approx(MIB, abs=4000)


def test_a_frame_frees_its_variables_unless_its_function_runs() -> None:
    def waits() -> Iterator[FrameType]:
        captured = bytes(MIB)
        yield sys._getframe()
        del captured

    generator = waits()
    assert size(next(generator)) == pytest.approx(MIB, abs=1000)
    assert size(sys._getframe()) == 0


def test_what_was_there_before_and_what_everybody_shares_does_not_count() -> None:
    shared = bytes(MIB)
    assert size([shared], {id(shared)}) < 1000
    assert size([np, int, None, 5]) < 1000, "modules and classes stay"
    cycle: list[object] = [bytes(MIB)]
    cycle.append(cycle)
    assert size(cycle) == pytest.approx(MIB, abs=1000)


def test_a_dictionary_at_the_place_of_one_that_was_there_before_is_looked_into() -> None:
    tensor, old = torch.zeros(MIB // 4), [1.5]
    for thing in ({"a": tensor}, [tensor], (tensor,)):
        assert size(thing, {id(thing), id(old)}) == pytest.approx(MIB, abs=1000)
        assert size(thing, {id(thing), id(tensor)}) < 1000
    assert size(tensor, {id(tensor)}) == 0.0
    assert size([[tensor], old], {id(old)}) - size([[tensor]]) < 20, "what is in it may be old"


def test_a_storage_counts_once_over_many_pieces() -> None:
    counted: set[tuple[object, int]] = set()
    base = torch.zeros(MIB // 4)
    sizes = [deep_bytes(piece, set(), counted) for piece in (base, base[3:], base.view(2, -1))]
    assert sizes[0] == pytest.approx(MIB, abs=1000)
    assert sum(sizes[1:]) < 1000


@pytest.mark.parametrize(
    ("make", "num_bytes"),
    [
        (lambda: [float(number) for number in range(20_000)], 20_000 * (8 + 32)),
        (
            lambda: {number: [0.5 * number] for number in range(1_000, 9_000)},
            sys.getsizeof(dict.fromkeys(range(8_000))) + 8_000 * (28 + 64 + 24),
        ),
        (lambda: [[bytes(10_000)] for _ in range(4_000)], 4_000 * 10_100),
        (lambda: [{"x": torch.zeros(1_000)} for _ in range(2_000)], 2_000 * (4_000 + 432)),
        (lambda: [(shared,) for shared in [bytes(MIB)] for _ in range(5_000)], MIB + 5_000 * 56),
        (lambda: [(base,) for base in [torch.zeros(MIB // 4)] for _ in range(5_000)], MIB + 5_000 * 56),
        (lambda: [(base[:9],) for base in [np.zeros(MIB // 8)] for _ in range(5_000)], MIB + 5_000 * (56 + 112)),
        (lambda: np.array([f"{number:0>63}" for number in range(5_000)], dtype=object), 5_000 * (8 + 112)),
    ],
)
def test_thousands_in_one_container_are_all_counted(make: Callable[[], object], num_bytes: int) -> None:
    assert size(make()) == pytest.approx(num_bytes, rel=0.1)


def test_what_an_object_holds_directly_is_told_by_its_sort() -> None:
    sorts = Sorts()
    row = [torch.zeros(1000), np.zeros(100), "x" * 500, [bytes(MIB)], 5]
    assert sorts.own_bytes(row) == 4000 + 800 + sys.getsizeof("x" * 500)
    assert largest_held(row, set()) == [row[0]]
    assert [big_bytes(thing) for thing in (torch.zeros(10), np.zeros(10), b"", 5, [bytes(9)])] == [
        40, 80, sys.getsizeof(b""), 0, 0,
    ]  # fmt: skip
    assert array_bytes(np.zeros(100)[:1]) == 800
    assert array_bytes("text") == 0


def test_graphs_and_frames_are_found_inside_of_pieces() -> None:
    loss = torch.ones(3, requires_grad=True).sum()
    assert has_graph([{"loss": loss}])
    assert not has_graph([{"loss": loss.detach()}])
    with pytest.raises(ValueError, match="kept") as caught:
        raise ValueError("kept")
    assert keeps_frames([(1, caught.value)])
    assert not keeps_frames([caught.value.with_traceback(None)])


def test_of_a_large_piece_a_hundred_objects_are_looked_at() -> None:
    wide = [[[[0] * 20 for _ in range(20)] for _ in range(20)] for _ in range(20)]
    assert 50 < len(list(inside(wide))) < 200  # type: ignore[arg-type]


def test_the_callback_of_a_weak_reference_is_not_inside() -> None:
    model = torch.nn.Identity()
    inside_of = inside(list(weakref.WeakKeyDictionary({model: "known"}).data))
    assert not any(isinstance(part, FunctionType) for part in inside_of)
