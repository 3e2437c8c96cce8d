"""Where a holder's items are counted again: in its container, and in the others that have grown with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from forgather_mem.heap.containers import length_of
from forgather_mem.heap.object_size import Sorts
from forgather_mem.heap.reachable import ReachableGraph

# The line of a function that runs changes
LINES = re.compile(r"(\([^():]*):\d+(?=\))")


@dataclass(slots=True)
class Place:
    """The place of a holder's items; numbers and names only.

    Attributes:
        names: The paths to its containers, by their `id`; the first one stands for all.
        has_items: Whether it has more of them, not one that is longer.
    """

    names: dict[int, str]
    has_items: bool

    @classmethod
    def of(cls, walk: ReachableGraph, positions: Sequence[int], has_items: bool) -> Place:
        """Of the containers at these positions."""
        return cls({id(walk.nodes[at]): _name(walk, at) for at in positions}, has_items)

    def find(self, walk: ReachableGraph, over: bool) -> dict[int, object]:
        """What is there now, by `id`: when the training is `over`, only under its name."""
        known = ((key, walk.position(key), name) for key, name in self.names.items())
        return {
            key: walk.nodes[at] for key, at, name in known if at is not None and (not over or _name(walk, at) == name)
        }

    def measure(self, walk: ReachableGraph) -> Callable[[], float]:
        """What gives the number of items, or else the bytes of the texts and arrays in it; it keeps the container."""
        own = next(iter(self.find(walk, over=False).values()), None)
        return (lambda: float(length_of(own) or 0)) if self.has_items else partial(Sorts().own_bytes, own)

    def length(self, there: Mapping[int, object]) -> int | None:
        """How many items there are now; None if a container is gone."""
        lengths = [length_of(there.get(key)) for key in self.names]
        return sum(length or 0 for length in lengths) if None not in lengths else None


def _name(walk: ReachableGraph, position: int) -> str:
    return LINES.sub(r"\1", walk.holder(position))
