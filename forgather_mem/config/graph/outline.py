"""Shows a graph to people: as a tree, and in a few words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from yaml.representer import SafeRepresenter

from forgather_mem.config.graph.nodes import (
    SHOWN,
    CallNode,
    DictNode,
    Graph,
    ListNode,
    Node,
    Value,
    VarNode,
    edges,
    extended,
    items_of,
    shortened_text,
    step,
)

_REPRESENTER = SafeRepresenter()


class Branch(NamedTuple):
    """One line of the tree.

    Attributes:
        depth: 0 for a target.
        label: Key, index or keyword.
        text: The value of a scalar, or a description of the node.
        note: "redeclared, first at FILE:LINE:COLUMN", "the same as $.PATH", or "".
    """

    depth: int
    label: str
    text: str
    note: str = ""


def tree(graph: Graph, targets: Sequence[str] | None = None) -> Iterator[Branch]:
    """The graph line by line, in written order. A node that occurs in several places is shown in full once.

    Args:
        graph: The graph.
        targets: Show only these; None for all.
    """
    notes = {(id(r.node), step(r.what)): f"redeclared, first at {graph.place(r.first)}" for r in graph.redeclared}
    shown: dict[int, str] = {}
    stack: list[tuple[int, str, Value, str, str]] = []
    if targets is None and not graph.targets:
        stack.append((0, "$", graph.root, "$", ""))
    for name in reversed(graph.targets if targets is None else targets):
        way = step(name)
        note = notes.get((id(graph.root), way), "")
        stack.append((0, shortened_text(name), graph.target(name), extended("$", way), note))
    while stack:
        depth, label, value, path, note = stack.pop()
        first = shown.setdefault(id(value), path) if isinstance(value, Node) else path
        yield Branch(depth, label, in_a_line(value), note if first == path else f"the same as {first}")
        for way, part in reversed(list(edges(value))) if first == path else ():
            note = notes.get((id(value), way), "") if notes else ""
            inner = extended(path, way) if isinstance(part, Node) else ""
            stack.append((depth + 1, way.removeprefix("."), part, inner, note))


def built_of(value: Value) -> str:
    """What a part of the graph becomes, in a few words; of a list what is in it.

    >>> built_of(ListNode(mark=0, items=(CallNode(mark=0, kind="singleton", constructor="random:Random"), 3)))
    'Random, 3'
    """
    if isinstance(value, CallNode):
        return shortened_text(value.constructor.rpartition(":")[2].rpartition(".")[2])
    items = items_of(value)
    if items is None:
        return in_a_line(value)
    names = [built_of(item) if isinstance(item, CallNode) else in_a_line(item) for item in items[: SHOWN.items]]
    return ", ".join([*names, "..."] if len(items) > SHOWN.items else names) or "nothing"


def in_a_line(value: Value) -> str:
    """A scalar, or what a node is."""
    if isinstance(value, Node):
        return _described(value)
    return repr(shortened_text(value, SHOWN.value)) if isinstance(value, str) else _text(value)


def _described(node: Node) -> str:
    """Describes a node in one line.

    >>> _described(CallNode(mark=0, kind="factory", constructor="random:Random", name="dice"))
    '!factory:random:Random @dice'
    """
    name = f" @{node.name}" if node.name else ""
    if isinstance(node, CallNode):
        return shortened_text(f"!{node.kind}:{node.constructor}{name}", SHOWN.value)
    if isinstance(node, VarNode):
        return shortened_text(f"!var {node.variable}", SHOWN.value)
    name = shortened_text(name)
    if isinstance(node, ListNode):
        return f"!{node.form}{name}" if node.form else f"list of {len(node.items)}"
    assert isinstance(node, DictNode)
    return f"!{node.form}{name}" if node.form else f"mapping of {len(node.entries)}"


def _text(value: Value) -> str:
    return str(SafeRepresenter.yaml_representers[type(value)](_REPRESENTER, value).value)
