"""The objects that a construction and the partials it made share, one for each node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forgather_mem.config.graph.nodes import Node

MISSING: Final = object()
"""It is not built yet."""


class Cell:
    """The one object of a node, shared by a construction and the partials that it made."""

    __slots__ = ("node", "value")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.value: object = MISSING

    def fill(self, singletons: Mapping[int, object]) -> None:
        """Take the object from those of a construction, if it is there and this is empty."""
        if self.value is MISSING:
            self.value = singletons.get(id(self.node), MISSING)


def filled_cells(cells: Mapping[int, Cell]) -> dict[int, object]:
    """The objects that are built already, by id of their node."""
    return {key: cell.value for key, cell in cells.items() if cell.value is not MISSING}
