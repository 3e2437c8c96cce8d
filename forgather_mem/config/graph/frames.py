"""What a composer remembers: open sequences and mappings, anchors, and the entries that a merge key copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from forgather_mem.config.graph.nodes import CallNode, DictNode, ListNode, Mark, Value, VarNode
from forgather_mem.config.graph.tags import Tag, TemplateNodeError

NO_KEY: Final = object()
"""The mapping is waiting for a key."""

Written: TypeAlias = tuple[Mapping[object, Value], Mapping[object, Mark]]
"""The entries of a mapping as written, and the positions of their keys."""


class OpenNode:
    """A sequence or mapping whose end has not been read yet."""

    __slots__ = (
        "anchor", "entries", "is_root", "items", "key", "key_mark", "mark", "marks", "merges", "nodes", "repeats",
        "scalars", "tag",
    )  # fmt: skip

    def __init__(self, tag: Tag | None, anchor: str | None, mark: Mark, is_mapping: bool) -> None:
        self.tag = tag
        self.anchor = anchor
        self.mark = mark
        self.items: list[Value] | None = None if is_mapping else []
        self.entries: dict[object, Value] = {}
        self.marks: dict[object, Mark] = {}
        self.key: object = NO_KEY
        self.key_mark = mark
        self.is_root = False
        self.merges: list[Written] = []
        self.repeats: list[tuple[object, Mark, Mark]] = []
        self.nodes = 0  # the composer's counts when it began
        self.scalars = 0


class Anchor:
    """The value of an anchor, and how much it counts."""

    __slots__ = ("mark", "nodes", "scalars", "value")

    def __init__(self, value: Value, mark: Mark, nodes: int, scalars: int) -> None:
        self.value = value
        self.mark = mark
        self.nodes = nodes
        self.scalars = scalars


def mergeable(value: Value, mark: Mark) -> list[Written]:
    """The mappings that a merge key refers to, lowest precedence first."""
    nodes = reversed(value.items) if isinstance(value, ListNode) and value.form == "" else [value]
    found = [_written(node) for node in nodes]
    if None in found:
        raise TemplateNodeError(mark, "a merge key (<<) takes a mapping, or a list of mappings")
    return [written for written in found if written is not None]


def _written(node: Value) -> Written | None:
    if isinstance(node, DictNode):
        return node.entries, node.marks
    if isinstance(node, CallNode | VarNode) and node.written is not None:
        return node.written, node.marks
    return None
