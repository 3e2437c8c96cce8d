"""How large is what a construction builds, with everything that stands in several places counted in each?

Whoever prints, compares or hashes an object walks it written out. Parsing bounds what stands in the text; here the
objects are counted that factories make anew, and the items of a `range`, the one call that gives more than it is
given.
"""

from __future__ import annotations

from collections.abc import Sequence

from forgather_mem.config.nodes import Node


class TooLarge(Exception):
    """A construction is larger than its limit; the message is one for people."""


class Sizes:
    """The sizes in one run of a construction.

    Args:
        limit: How many objects may be built, and how many items of ranges may stand in one of them.
        items: Items of ranges in what earlier runs built, by id of the node; it is added to.
    """

    def __init__(self, limit: int, items: dict[int, int]) -> None:
        self._limit = limit
        self._left = limit
        self._items = items

    def add(self, node: Node, parts: Sequence[Node], made: object) -> None:
        """Count an object that was made of some parts.

        Raises:
            TooLarge: when there are too many objects, or too many items in this one.
        """
        self._left -= 1
        if self._left < 0:
            raise TooLarge(f"more than {self._limit:,} objects are built, each copy of a !factory counted")
        if type(made) is not range and not self._items:
            return
        items = sum(self._items.get(id(part), 0) for part in parts)
        if type(made) is range:
            items += len(made)
        if items:
            self._items[id(node)] = items
        if items > self._limit:
            raise TooLarge(f"more than {self._limit:,} items of ranges stand here, each alias counted as a copy")
