"""Finds recently created objects, and those among them that are garbage waiting for a collection."""

from __future__ import annotations

import gc
import operator
import sys
from collections import Counter
from functools import partial

MAX_YOUNG = 60_000


class Mark:
    """An object placed in the collector's list; the objects behind it there are younger."""

    def __init__(self) -> None:
        self._mark: list[object] = []
        self._mark.append(self._mark)  # tracked as long as it lives; `drop` breaks the cycle
        self._full = _full_collections()

    def younger(self) -> list[object] | None:
        """The objects created since; None if that is no longer known, after a full collection.

        After a `gc.freeze()` the mark is no longer in the collector's lists: all in them is younger than that.
        """
        # No closure in here: its cell would be in the list that it holds
        found: list[object] = []
        mark = self._mark
        for generation in (0, 1, 2):
            objects = gc.get_objects(generation)
            at = max((number for number, one in enumerate(objects) if one is mark), default=None)
            if at is not None and generation == 2 and _full_collections() != self._full:
                return None  # a full collection has mixed them
            found += objects[0 if at is None else at + 1 :]
            if at is not None or generation == 2:
                break
        kept = list(filter(partial(operator.is_not, found), found))
        found.clear()  # it contains itself
        return kept[:MAX_YOUNG]

    def drop(self) -> None:
        self._mark.clear()


def garbage_among(young: list[object]) -> list[object]:
    """Those objects that only garbage refers to, found with the collector's algorithm but without collecting.

    Args:
        young: Objects; nobody but the caller may hold this list.
    """
    inside: Counter[int] = Counter()
    places = set(map(id, young))
    for thing in young:
        for held in gc.get_referents(thing):
            if id(held) in places:
                inside[id(held)] += 1
    alive: list[object] = []
    # Counted in C: what a loop of Python's adds depends on its version. The list refers to each, and so does map()
    for thing, count in zip(young, list(map(sys.getrefcount, young)), strict=True):
        if count - 2 > inside[id(thing)]:
            alive.append(thing)  # a comprehension is a closure here
    reached = {id(thing) for thing in alive}
    while alive:
        for held in gc.get_referents(alive.pop()):
            if id(held) in places and id(held) not in reached:
                reached.add(id(held))
                alive.append(held)
    return [thing for thing in young if id(thing) not in reached]


def _full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])
