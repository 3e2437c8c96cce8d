"""What was made lately, and which of it is garbage that only waits for a collection?"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import Any

MAX_YOUNG = 60_000


class Mark:
    """An object put into the collector's list; what stands behind it there is younger."""

    def __init__(self) -> None:
        self._mark: list[Any] = []
        self._mark.append(self._mark)  # tracked for as long as it lives; the cycle ends in `drop`
        self._full = _full_collections()

    def younger(self) -> list[Any] | None:
        """What was made since; None when it can't be told any more, after a full collection.

        A `gc.freeze()` has taken the mark out of the collector's lists: what they hold is younger than the freeze.
        """
        # No closure in here: its cell would stand in the list that it holds
        found: list[Any] = []
        for generation in (0, 1, 2):
            objects = gc.get_objects(generation)
            at = _last_place(self._mark, objects)
            if at is not None and generation == 2 and _full_collections() != self._full:
                return None  # such a collection has mixed them
            found += objects[0 if at is None else at + 1 :]
            if at is not None or generation == 2:
                break
        kept = _without(found, found)
        found.clear()  # it holds itself
        return kept[:MAX_YOUNG]

    def drop(self) -> None:
        self._mark.clear()


def garbage_among(young: list[Any]) -> list[Any]:
    """Those objects that only garbage holds, found as the collector does it, without collecting.

    Args:
        young: Objects; nobody but the caller may hold this list.
    """
    inside: Counter[int] = Counter()
    places = set(map(id, young))
    for thing in young:
        for held in gc.get_referents(thing):
            if id(held) in places:
                inside[id(held)] += 1
    alive: list[Any] = []
    for thing in young:
        # Held by this list, by the loop's variable, and by the question itself
        if sys.getrefcount(thing) - 3 > inside[id(thing)]:
            alive.append(thing)  # as above
    reached = {id(thing) for thing in alive}
    while alive:
        for held in gc.get_referents(alive.pop()):
            if id(held) in places and id(held) not in reached:
                reached.add(id(held))
                alive.append(held)
    return [thing for thing in young if id(thing) not in reached]


def _last_place(wanted: object, objects: list[Any]) -> int | None:
    for number in range(len(objects) - 1, -1, -1):
        if objects[number] is wanted:
            return number
    return None


def _without(objects: list[Any], unwanted: object) -> list[Any]:
    kept = []
    for thing in objects:
        if thing is not unwanted:
            kept.append(thing)  # a comprehension is a closure here
    return kept


def _full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])
