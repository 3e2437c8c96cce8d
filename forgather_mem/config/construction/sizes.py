"""The size of what a construction builds, with shared parts counted at each occurrence.

Printing, comparing or hashing an object visits shared parts each time. Parsing limits what the text contains. What is
counted here are the objects that factories make, and what parsing can't see: the items of a `range`, the only call that
returns more than it is given, and texts that are built or come from variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forgather_mem.config.graph.nodes import Node
from forgather_mem.config.limits import Limits


class TooLarge(Exception):
    """A construction exceeds its limit; the message is for people."""


class Sizes:
    """The sizes within one run of a construction.

    Args:
        budgets: How many objects may be built (a third of `nodes`), how many of them by calls (`objects`), and how many
            items one of them may have (`expanded_nodes`). A text has one for each 64 characters.
        items: Items in what earlier runs built, by id of the node; extended in place.
    """

    def __init__(self, budgets: Limits, items: dict[int, int]) -> None:
        self._limit = budgets.expanded_nodes
        self._objects = min(budgets.expanded_nodes, budgets.nodes // 3)  # as many as can be written
        self._left = self._objects
        self._calls = self._calls_left = budgets.objects
        self._items = items

    def add_call(self) -> None:
        """Count an object that a call is about to build.

        Raises:
            TooLarge: if there are too many.
        """
        self._calls_left -= 1
        if self._calls_left < 0:
            raise TooLarge(f"more than {self._calls:,} objects are built by calls, each copy of a !factory counted")

    def add(self, node: Node, parts: Callable[[Node], Sequence[Node]], made: object) -> None:
        """Count an object made from a node and from what `parts` returns.

        Raises:
            TooLarge: if there are too many objects, or too many items in this one.
        """
        self._left -= 1
        if self._left < 0:
            raise TooLarge(f"more than {self._objects:,} objects are built, each copy of a !factory counted")
        own = len(made[: self._limit + 1]) if type(made) is range else len(made) >> 6 if type(made) is str else 0
        if not own and not self._items:
            return
        items = own + sum(self._items.get(id(part), 0) for part in parts(node))
        if items:
            self._items[id(node)] = items
        if items > self._limit:
            raise TooLarge(f"this has more than {self._limit:,} items, each alias counted as a copy")
