"""Where a holder's items are counted again: in its container, and in those that lie beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from forgather_mem.heap.containers import PLAIN, length_of
from forgather_mem.heap.object_size import Sorts
from forgather_mem.heap.reachable import MANY, ReachableGraph
from forgather_mem.probes.tensors import values_of

# The line of a function that runs changes
LINES = re.compile(r"(\([^():]*):\d+(?=\))")


@dataclass(slots=True)
class Place:
    """The place of a holder's items; numbers and names only.

    Attributes:
        name: The path to the container.
        kind: Its class.
        key: Its `id`.
        several: Whether it is one of several that have grown.
        has_items: Whether it has more of them, not one that is longer.
        above: The `id` of the dictionary or list that has it, and maybe others of its class; 0 without.
        beside: Items in those that had not grown at the look.
    """

    name: str
    kind: type
    key: int
    several: bool
    has_items: bool
    above: int = 0
    beside: int = 0

    @classmethod
    def of(cls, walk: ReachableGraph, position: int, count: int, path: str, *, several: bool) -> Place:
        """Of the container at this position, which goes by `path` and has so many items, with all that have grown."""
        container, above = walk.nodes[position], walk.nodes[walk.parent(position)]
        place = cls(_name(walk, position), type(container), id(container), several, count > 0)
        is_item = (
            place.has_items and walk.parent(position) >= 0 and path.endswith("]") and path.count("[...]") == several
        )
        if is_item and isinstance(above, PLAIN) and (length_of(above) or 0) <= MANY:
            place.above, place.beside = id(above), place._items(above) - count
        return place

    def find(self, walk: ReachableGraph, over: bool) -> dict[int, object]:
        """What is there now, by `id`: when the training is `over`, only under its name."""
        names = {self.key: self.name, self.above: self.name.rpartition("[")[0]}
        known = ((key, walk.position(key), name) for key, name in names.items())
        return {
            key: walk.nodes[at] for key, at, name in known if at is not None and (not over or _name(walk, at) == name)
        }

    def measure(self, walk: ReachableGraph) -> Callable[[], float]:
        """What gives the number of items, or else the bytes of the texts and arrays in it; it keeps the container."""
        own = self.find(walk, over=False).get(self.key)
        return (lambda: float(length_of(own) or 0)) if self.has_items else partial(Sorts().own_bytes, own)

    def length(self, there: Mapping[int, object]) -> int | None:
        """How many items there are now, those of others that have grown since, too; None if they are gone."""
        own, above = length_of(there.get(self.key)), there.get(self.above)
        total = 0 if above is None else max(0, self._items(above) - self.beside)
        if above is not None and total > (own or 0):
            self.several = True
        return total if self.several else own

    def _items(self, above: object) -> int:
        parts = values_of(above) if isinstance(above, dict) else above if isinstance(above, Iterable) else ()
        return sum(length_of(part) or 0 for part in parts if type(part) is self.kind)


def _name(walk: ReachableGraph, position: int) -> str:
    return LINES.sub(r"\1", walk.holder(position))
