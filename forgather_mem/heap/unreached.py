"""Containers that have grown though nothing near the user's code leads to them, and who holds them.

What only the evaluation stack or C code holds has no name: the list that a comprehension is filling, the iterator of a
`for` statement, what a library's C code calls back. The collector knows it all the same.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Collection, Sized
from types import FrameType

from forgather_mem.heap.containers import CONTAINERS
from forgather_mem.heap.owner_paths import FRAMES, has_attributes, suspended_frame
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.source.source_lines import is_user_file

_KINDS = frozenset(kind for kind in CONTAINERS if issubclass(kind, Sized))


class Unreached:
    """The lengths of the containers that a walk has not reached: numbers only, nothing is kept alive."""

    def __init__(self, walk: ReachableGraph) -> None:
        there = _there(walk, 0)
        self._ids, self._lengths = array("Q", map(id, there)), array("Q", map(len, there))

    def grown(self, walk: ReachableGraph, least: float) -> list[tuple[Collection[object], int]]:
        """Those that a later walk has not reached either and that are longer by so many items, with their lengths then.

        The one that has grown most comes first.
        """
        now = {id(thing): thing for thing in _there(walk, least)}
        then = zip(self._ids, self._lengths, strict=True)
        found = [(now[key], length) for key, length in then if key in now and len(now[key]) >= length + least]
        return sorted(found, key=lambda one: one[1] - len(one[0]))


def lead_to(thing: object, walk: ReachableGraph, passed_over: set[int], most_levels: int = 4) -> bool:
    """Add to a walk the way down to this from the nearest object with attributes, or from as far up as is known.

    False for what only the variables of a library's suspended function hold, as the order of an epoch's rows.

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
    label = label or f"a {type(way[0]).__name__} that no variable holds"
    if type(way[0]) in FRAMES:
        label = ""  # the path names the variable and its place
        frame = suspended_frame(way[0])
        if frame is None or not is_user_file(frame.f_code.co_filename):
            return False
    walk.lead(label, way)
    return True


def _there(walk: ReachableGraph, least: float) -> list[Collection[object]]:
    own = set(map(id, vars(walk).values()))  # of a later walk they may stand where those of the first one stood
    found = [one for one in gc.get_objects() if type(one) in _KINDS and id(one) not in own]
    return [one for one in found if len(one) >= least and walk.position(id(one)) is None]
