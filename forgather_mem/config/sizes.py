"""How large is what a construction builds, with everything that stands in several places counted in each?

Whoever prints, compares or hashes an object walks it written out. Parsing bounds what stands in the text. Here the
objects are counted that factories make anew, and what parsing can't see: the items of a `range`, the one call that
gives more than it is given, and texts that are built or come from variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forgather_mem.config.nodes import Node


class TooLarge(Exception):
    """A construction is larger than its limit; the message is one for people."""


class Sizes:
    """The sizes in one run of a construction.

    Args:
        limit: How many objects may be built, and how many items one of them may have. A text has one for each 64
            characters.
        items: Items in what earlier runs built, by id of the node; it is added to.
    """

    def __init__(self, limit: int, items: dict[int, int]) -> None:
        self._limit = limit
        self._left = limit
        self._items = items

    def add(self, node: Node, parts: Callable[[Node], Sequence[Node]], made: object) -> None:
        """Count an object that was made of a node, and of what `parts` says.

        Raises:
            TooLarge: when there are too many objects, or too many items in this one.
        """
        self._left -= 1
        if self._left < 0:
            raise TooLarge(f"more than {self._limit:,} objects are built, each copy of a !factory counted")
        own = len(made) if type(made) is range else len(made) >> 6 if type(made) is str else 0
        if not own and not self._items:
            return
        items = own + sum(self._items.get(id(part), 0) for part in parts(node))
        if items:
            self._items[id(node)] = items
        if items > self._limit:
            raise TooLarge(f"this has more than {self._limit:,} items, each alias counted as a copy")
