"""Where a holder's items are counted again: in its container, and in those that lie beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forgather_mem.heap.containers import PLAIN, length_of
from forgather_mem.heap.reachable import MANY, ReachableGraph
from forgather_mem.probes.tensors import values_of

# The line of a function that runs changes
LINES = re.compile(r"(\([^():]*):\d+(?=\))")


@dataclass(slots=True)
class Place:
    """The place of a holder's items; numbers and names only.

    Attributes:
        kind: The container's class.
        key: Its `id`; 0 where several have grown.
        above: The `id` of the dictionary or list that has it, and maybe others of its class; 0 without.
        beside: Items in those that had not grown at the look.
        parts: How many containers there were.
        names: What leads to it, by `id`.
        has_more_parts: Whether there are more of them by now.
    """

    kind: type
    key: int
    above: int
    beside: int
    parts: int
    names: dict[int, str]
    has_more_parts: bool = False

    @classmethod
    def of(cls, walk: ReachableGraph, position: int, count: int, path: str, *, several: bool) -> Place:
        """Of the container at this position, which goes by `path` and has so many items, with all that have grown."""
        container, above = walk.nodes[position], walk.parent(position)
        key = 0 if several else id(container)
        place = cls(type(container), key, 0, 0, 1, {key: place_name(walk, position)})
        is_item = above >= 0 and path.endswith("]") and path.count("[...]") == several and not walk.is_namespace(above)
        if is_item and isinstance(walk.nodes[above], PLAIN) and len(walk.nodes[above]) <= MANY:
            lengths = place._lengths(walk.nodes[above])
            place.above, place.beside, place.parts = id(walk.nodes[above]), sum(lengths) - count, len(lengths)
            place.names[place.above] = place_name(walk, above)
        return place

    def find(self, walk: ReachableGraph, over: bool) -> dict[int, object]:
        """What is there now, by `id`: when the training is `over`, only under its name."""
        found = {}
        for key, name in self.names.items():
            position = walk.position(key)
            if position is not None and (not over or place_name(walk, position) == name):
                found[key] = walk.nodes[position]
        return found

    def length(self, there: Mapping[int, object]) -> int | None:
        """How many items there are now; None if they are gone."""
        own, above = length_of(there.get(self.key)), there.get(self.above)
        if above is None:
            return own
        lengths = self._lengths(above)
        total = sum(lengths) - self.beside
        if own is not None and total <= own:
            return own
        self.has_more_parts, self.parts, self.key = len(lengths) > self.parts, len(lengths), 0
        return max(0, total)

    def _lengths(self, above: Any) -> list[int]:
        parts = values_of(above) if isinstance(above, dict) else list(above)
        return [length_of(part) or 0 for part in parts if type(part) is self.kind]


def place_name(walk: ReachableGraph, position: int) -> str:
    """The path to it, without the number of a line that runs."""
    return LINES.sub(r"\1", walk.holder(position))
