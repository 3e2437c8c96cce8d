"""Each kind of container: how many items it has, which are new, and its maximum."""

import functools
import queue
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from forgather_mem.heap.containers import CONTAINERS, LRU_CACHE, container_kind, length_of, newest
from forgather_mem.heap.object_size import CONTAINER, Sorts, big_bytes, deep_bytes


def bounded_cache() -> Any:
    return functools.lru_cache(maxsize=7)(bytes)


def cache_for_ever() -> Any:
    return functools.cache(bytes)


# An empty one, how an item is added, the item as it is found again, and the bound
CASES: list[tuple[Callable[[], Any], Callable[[Any, int], object], Callable[[int], object], int | None]] = [
    (list, list.append, lambda item: item, None),
    (dict, lambda it, item: it.setdefault(item, -item), lambda item: (item, -item), None),
    (set, set.add, lambda item: item, None),
    (deque, deque.append, lambda item: item, None),
    (lambda: deque(maxlen=5), deque.append, lambda item: item, 5),
    (bounded_cache, lambda it, item: it(item), lambda item: (item, bytes(item)), 7),
    (cache_for_ever, lambda it, item: it(item), lambda item: (item, bytes(item)), None),
    (lambda: array("d"), array.append, lambda item: item, None),
    (queue.SimpleQueue, queue.SimpleQueue.put, lambda item: item, None),
]


@pytest.mark.parametrize(("make", "add", "found", "bound"), CASES)
def test_its_length_its_bound_and_its_newest_items(make: Any, add: Any, found: Any, bound: int | None) -> None:
    container = make()
    for item in range(1000, 1004):
        add(container, item)
    row = container_kind(type(container))
    assert (length_of(container), row.bound(container)) == (4, bound)
    last = newest(container, 2)
    is_raw = type(container) is array  # its numbers are no objects
    assert len(last) == (0 if is_raw else 2)
    assert is_raw or type(container) is set or found(1003) in last
    assert found(1000) not in last or type(container) is set


def test_each_kind_is_tried() -> None:
    assert {type(make()) for make, *_ in CASES} == {kind for kind in CONTAINERS if "tee" not in kind.__name__}
    assert type(bounded_cache()) is LRU_CACHE
    assert all(Sorts()[kind] == CONTAINER for kind in CONTAINERS), "its growth is of another sort: heap/object_size.py"


@pytest.mark.parametrize(("make", "add"), [case[:2] for case in CASES if case[3] is None])
def test_each_size_is_that_of_what_it_holds(make: Any, add: Any) -> None:
    container, count = make(), 10_000
    for item in range(1000, 1000 + count):
        add(container, item)
    last, row = newest(container, 1), container_kind(type(container))
    each = row.place_bytes(container) + sum(deep_bytes(item, set(), set()) for item in last)
    assert 1 / 3 < deep_bytes(container, set(), set()) / (count * each) < 3
    assert big_bytes(container) == (0 if last else pytest.approx(count * each, rel=0.2)), "of raw numbers alone"
    assert Sorts().own_bytes([container]) == 0, "it is told by its items"


def test_others_have_no_length() -> None:
    assert [length_of(thing) for thing in ("text", 5, (1, 2), iter([]))] == [None] * 4


def test_a_length_of_somebodys_own_that_fails_is_none() -> None:
    class Broken(list[int]):
        def __len__(self) -> int:
            raise RuntimeError

    assert length_of(Broken()) is None
