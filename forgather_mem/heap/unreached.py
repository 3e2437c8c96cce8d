"""What nothing near the user's code leads to: containers that have grown and who holds them, and garbage.

What only the evaluation stack or C code holds has no name: the list that a comprehension is filling, the iterator of a
`for` statement, what a library's C code calls back. The collector knows it all the same.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Sequence, Sized
from functools import partial
from types import FrameType
from typing import Any

from forgather_mem.heap.containers import CONTAINERS
from forgather_mem.heap.owner_paths import FRAMES, has_attributes
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.source.source_lines import is_our_class

_KINDS = frozenset(kind for kind in CONTAINERS if issubclass(kind, Sized))


class Unreached:
    """The lengths of the containers that a walk has not reached: numbers only, nothing is kept alive."""

    def __init__(self, walk: ReachableGraph, near: Sequence[object]) -> None:
        there = _there(walk, near, 0)
        self._ids, self._lengths = array("Q", map(id, there)), array("Q", map(len, there))

    def grown(self, walk: ReachableGraph, near: Sequence[object], least: float) -> list[tuple[Collection[object], int]]:
        """Those that a later walk has not reached either and that are longer by so many items, with their lengths then.

        The one that has grown most comes first.
        """
        now = {id(thing): thing for thing in _there(walk, near, least)}
        then = zip(self._ids, self._lengths, strict=True)
        found = [(now[key], length) for key, length in then if key in now and len(now[key]) >= length + least]
        return sorted(found, key=lambda one: one[1] - len(one[0]))


def lead_to(thing: object, walk: ReachableGraph, passed_over: set[int], most_levels: int = 4) -> bool:
    """Add to a walk the way down to this from the nearest object with attributes, or from as far up as is known.

    False for what only the variables of a library's suspended function hold, as the order of an epoch's rows, and for
    what an object of ours holds.

    Args:
        thing: What is held.
        walk: Gets the way.
        passed_over: The ids of what holds it for the caller.
        most_levels: Each takes 20 ms in a heap of 400,000 objects; 4 is a guess.
    """
    way, label = [thing], ""
    passed_over |= {id(way), id(walk.nodes)}
    while len(way) <= most_levels and not (label or has_attributes(way[0]) or type(way[0]) in (type, *FRAMES)):
        holders = gc.get_referrers(way[0])
        passed_over.add(id(holders))
        known = [one for one in holders if id(one) not in passed_over and type(one) is not FrameType]
        passed_over.add(id(known))
        if not known:
            break
        way.insert(0, min(known, key=lambda one: not (has_attributes(one) or type(one) is type)))
        if isinstance(way[0], dict):
            label = str(way[0].get("__name__", ""))  # a module's variables
    if is_our_class(type(way[0])) or type(way[0]) in FRAMES:
        return False
    walk.lead(label or f"a {type(way[0]).__name__} that no variable holds", way)
    return True


def all_containers() -> list[object]:
    """All containers and suspended functions that the collector knows; of 360,000 objects in some 50 ms."""
    everything = gc.get_objects()
    return list(itertools.compress(everything, map((_KINDS | FRAMES.keys()).__contains__, map(type, everything))))


def _there(walk: ReachableGraph, among: Sequence[object], least: float) -> list[Collection[object]]:
    own = set(map(id, vars(walk).values()))  # of a later walk they may stand where those of the first one stood
    found: list[Any] = [one for one in among if type(one) in _KINDS and id(one) not in own]
    return [one for one in found if len(one) >= least and walk.position(id(one)) is None]


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
