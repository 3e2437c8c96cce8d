"""What has grown between two looks, and by how much."""

import functools
from collections import deque

from forgather_mem.diagnose.leaks.snapshot import bound_of, length_of, newest


def test_lengths_are_of_containers_only() -> None:
    assert [length_of(thing) for thing in ([1, 2], {1: 2}, deque([1]), "text", 5)] == [2, 1, 1, None, None]


@functools.lru_cache(maxsize=7)
def cached(number: int) -> bytes:
    return bytes(number)


@functools.cache
def cached_for_ever(number: int) -> bytes:
    return bytes(number)


def test_what_a_container_can_not_exceed_is_its_bound() -> None:
    assert [bound_of(thing) for thing in (cached, deque(maxlen=5), cached_for_ever, deque(), [1])] == [
        7, 5, None, None, None,
    ]  # fmt: skip


def test_the_newest_items_are_those_that_were_added_last() -> None:
    assert newest([1, 2, 3], 2) == [3, 2]
    assert newest(deque([1, 2, 3]), 1) == [3]
    assert newest({"a": 1, "b": 2}, 1) == [("b", 2)]
    assert newest({5}, 3) == [5]
    for number in range(4):
        cached(number)
        cached_for_ever(number)
    assert cached(3) in newest(cached, 1)
    assert newest(cached_for_ever, 2) == [(3, bytes(3)), (2, bytes(2))]


def test_a_length_of_somebodys_own_that_fails_is_none() -> None:
    class Broken(list[int]):
        def __len__(self) -> int:
            raise RuntimeError

    assert length_of(Broken()) is None
