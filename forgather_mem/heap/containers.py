"""The kinds of containers whose growth is measured: a new kind is a row of this table."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import sys
from array import array
from collections import deque
from collections.abc import Callable, Reversible
from queue import SimpleQueue
from typing import Any, NamedTuple

from forgather_mem.errors import ours

LRU_CACHE = type(functools.lru_cache(len))
TEE, _BLOCK = vars(itertools)["_tee"], vars(itertools)["_tee_dataobject"]
_QUEUE_HAS_A_LIST = sys.version_info < (3, 13)


class ContainerKind(NamedTuple):
    """One kind of container.

    Attributes:
        length: How many items there are.
        newest: So many that were added last, as far as there is an order.
        bound: The maximum number of items; None if unlimited.
        has_parts: Whether its items may be in a container of its own, which is not told beside it.
        place_bytes: What it takes itself for each item, about; of raw numbers that is all.
    """

    length: Callable[..., int]
    newest: Callable[..., list[object]]
    bound: Callable[..., int | None] = lambda container: None
    has_parts: bool = False
    place_bytes: Callable[..., int] = lambda container: 100


def container_kind(kind: type) -> ContainerKind | None:
    """The row of a class; None for what is no container."""
    return CONTAINERS.get(kind) or next((row for base, row in CONTAINERS.items() if issubclass(kind, base)), None)


def length_of(node: object) -> int | None:
    """The number of items in a container; None for anything else."""
    row = container_kind(type(node))
    try:
        return None if row is None else row.length(node)
    except ours(Exception):  # somebody's own __len__
        return None


def newest(node: Any, count: int) -> list[object]:
    """The items added last to a container or a tuple."""
    row = container_kind(type(node))
    return _last(node, count) if row is None else row.newest(node, count)


def _last(node: Reversible[object], count: int) -> list[object]:
    return list(itertools.islice((item for item in reversed(node) if item is not None), count))


def _last_cached(node: functools._lru_cache_wrapper[object], count: int) -> list[object]:
    held = [thing for thing in gc.get_referents(node) if not isinstance(thing, type)]
    size = node.cache_info().currsize
    if node.cache_info().maxsize is not None:  # keys and results alternate, oldest first
        newest_held = held[: 2 * size][-2 * count :]
        return list(zip(newest_held[::2], newest_held[1::2], strict=True))
    caches = [thing for thing in held if type(thing) is dict and len(thing) == size]
    return [pair for cache in caches[:1] for pair in itertools.islice(reversed(cache.items()), count)]


def _last_put(node: SimpleQueue[object], count: int) -> list[object]:
    held = gc.get_referents(node)
    return _last(held[0] if _QUEUE_HAS_A_LIST else held[: node.qsize()], count)


def _behind(node: object) -> list[object]:
    """What an iterator of `itertools.tee` has not taken yet, oldest first; none of it where that is in one block."""
    held, blocks = gc.get_referents(node), list[list[object]]()
    while led_to := [one for one in held if type(one) is _BLOCK]:
        held = gc.get_referents(*led_to)
        blocks.append([one for one in held if type(one) is not _BLOCK and not isinstance(one, type)][1:])  # read from
    return [*itertools.chain(*blocks)] if blocks[1:] else []


def _filled(places: list[object]) -> int:
    """Without those that hold None: what is made at once may be filled one after the other."""
    # Of more it takes over 8 ms
    return len(places) - (len(places) <= 2**17 and sum(map(operator.is_, places, itertools.repeat(None))))


def _pointer(container: object) -> int:
    return 8


def _entry(container: dict[object, object]) -> int:
    """Of its table, without the pair that stands for the entry, which is ours."""
    return dict.__sizeof__(container) // max(1, len(container)) - 64


# The first that a class is derived from counts.
CONTAINERS: dict[type, ContainerKind] = {
    list: ContainerKind(_filled, _last, place_bytes=_pointer),
    # The values of a weak dictionary are references
    dict: ContainerKind(len, lambda it, num: [(key, dict.get(it, key)) for key in _last(it, num)], place_bytes=_entry),
    set: ContainerKind(len, lambda node, count: list(itertools.islice(iter(node), count))),
    deque: ContainerKind(len, _last, lambda node: node.maxlen, place_bytes=_pointer),
    LRU_CACHE: ContainerKind(
        lambda it: it.cache_info().currsize, _last_cached, lambda it: it.cache_info().maxsize, has_parts=True
    ),
    array: ContainerKind(len, lambda node, count: [], place_bytes=lambda node: node.itemsize),
    TEE: ContainerKind(lambda it: len(_behind(it)), lambda it, count: _behind(it)[-count:], has_parts=True),
    _BLOCK: ContainerKind(lambda it: 0, lambda it, count: [], has_parts=True),
    SimpleQueue: ContainerKind(SimpleQueue.qsize, _last_put, has_parts=True, place_bytes=_pointer),
}
# Those that have no name of their own for what is in them
PLAIN = (tuple, *(kind for kind, row in CONTAINERS.items() if not row.has_parts))
