"""Shows a graph as YAML that parses to an equal graph, and as a tree for people."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import yaml
from yaml.representer import SafeRepresenter

from forgather_mem.config.graph.nodes import (
    NO_DEFAULT,
    SHOWN,
    CallNode,
    DictNode,
    Graph,
    ListNode,
    Mark,
    Node,
    Value,
    VarNode,
    edges,
    extended,
    items_of,
    shortened_text,
    step,
    walk_nodes,
)
from forgather_mem.config.graph.scalars import resolve
from forgather_mem.config.graph.tags import is_shorthand

_Dumper = getattr(yaml, "CDumper", yaml.Dumper)
_REPRESENTER = SafeRepresenter()
_ANCHOR = re.compile(r"[A-Za-z0-9_-]+")


def encode(graph: Graph, targets: Sequence[str] | None = None) -> str:
    """YAML that parses to an equal graph: aliases, names and defaults are kept; overridden keys are dropped.

    Args:
        graph: The graph.
        targets: Write only these; None for all.
    """
    root = graph.root
    if targets is not None:
        chosen: dict[object, Value] = {name: graph.target(name) for name in targets}
        nodes = tuple(value for value in chosen.values() if isinstance(value, Node))
        root = DictNode(mark=0, children=nodes, entries=chosen)
    events = [
        yaml.StreamStartEvent(),
        yaml.DocumentStartEvent(explicit=False),
        *_events(root),
        yaml.DocumentEndEvent(explicit=False),
        yaml.StreamEndEvent(),
    ]
    return str(yaml.emit(events, Dumper=_Dumper, width=120, allow_unicode=True))


def _events(root: Value) -> Iterator[yaml.Event]:
    anchors = _anchors(root)
    written: set[int] = set()
    stack: list[Value] = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, yaml.Event):
            yield item
        elif not isinstance(item, Node):
            yield _scalar(item)
        elif id(item) in written:
            yield yaml.AliasEvent(anchors[id(item)])
        else:
            written.add(id(item))
            start, *rest = _node(item, anchors.get(id(item)))
            assert isinstance(start, yaml.Event)
            yield start
            stack.extend(reversed(rest))


def _anchors(root: Value) -> dict[int, str]:
    """A name for each node that occurs in several places: its own if it has one."""
    nodes = list(walk_nodes([root]))
    times = Counter(id(child) for node in nodes for child in node.children)
    names = {node.name for node in nodes}
    numbered = (name for i in itertools.count(1) if (name := f"a{i}") not in names)
    return {
        id(node): node.name if node.name and _ANCHOR.fullmatch(node.name) else next(numbered)
        for node in nodes
        if times[id(node)] > 1
    }


def _node(node: Node, anchor: str | None) -> list[Value]:
    """The events of one node, with its parts inserted unchanged."""
    tag = _tag(node)
    if isinstance(node, ListNode):
        return _sequence(node.items, anchor, tag)
    if isinstance(node, DictNode):
        return _mapping(_pairs(node.entries.items()), anchor, tag)
    if isinstance(node, VarNode):
        default = {} if node.default is NO_DEFAULT else {"default": node.default}
        return _mapping(_pairs({"name": node.variable, **default}.items()), anchor, tag)
    assert isinstance(node, CallNode)
    named = _pairs(node.kwargs.items())
    if node.latent is not None:
        named += [_scalar("latent_args"), node.latent]
    if node.searchpath:
        named += [_scalar("submodule_searchpath"), *_sequence(node.searchpath, None, None)]
    if not named:
        return _sequence(node.args, anchor, tag)
    if not node.args and is_shorthand(node.kwargs):
        return _mapping(named, anchor, tag)
    args = [_scalar("args"), *_sequence(node.args, None, None)] if node.args else []
    return _mapping([*args, _scalar("kwargs"), *_mapping(named, None, None)], anchor, tag)


def _pairs(entries: Iterable[tuple[object, Value]]) -> list[Value]:
    return [part for key, value in entries for part in (_scalar(key), value)]


def _mapping(parts: Sequence[Value], anchor: str | None, tag: str | None) -> list[Value]:
    start = yaml.MappingStartEvent(anchor, tag, tag is None, flow_style=not parts)
    return [start, *parts, yaml.MappingEndEvent()]


def _sequence(items: Sequence[Value], anchor: str | None, tag: str | None) -> list[Value]:
    start = yaml.SequenceStartEvent(anchor, tag, tag is None, flow_style=not items)
    return [start, *items, yaml.SequenceEndEvent()]


def _tag(node: Node) -> str | None:
    if isinstance(node, CallNode):
        word = f"!{node.kind}:{node.constructor}"
    elif isinstance(node, VarNode):
        return "!var"
    else:
        assert isinstance(node, ListNode | DictNode)
        word = f"!{node.form}" if node.form else ""
    at = "@" if isinstance(node, CallNode) else ":@"
    return f"{word}{at}{node.name}" if node.name else word or None


def _scalar(value: Value) -> yaml.ScalarEvent:
    if isinstance(value, str):
        style = "|" if "\n" in value else None
        return yaml.ScalarEvent(None, None, (_is_plain(value), True), value, style=style)
    return yaml.ScalarEvent(None, None, (True, False), _text(value))


def _is_plain(text: str) -> bool:
    """Whether YAML without quotes would read the same text."""
    try:
        return text != "<<" and resolve(text) == text and resolve(text.strip()) == text.strip()
    except ValueError:
        return False


def _text(value: Value) -> str:
    return str(SafeRepresenter.yaml_representers[type(value)](_REPRESENTER, value).value)


class Branch(NamedTuple):
    """One line of the tree.

    Attributes:
        depth: 0 for a target.
        label: Key, index or keyword.
        text: The value of a scalar, or a description of the node.
        mark: Its position in the rendered text; None for a scalar in a list.
        note: "redeclared, first at FILE:LINE:COLUMN", "the same as $.PATH", or "".
    """

    depth: int
    label: str
    text: str
    mark: Mark | None = None
    note: str = ""


def tree(graph: Graph, targets: Sequence[str] | None = None) -> Iterator[Branch]:
    """The graph line by line, in written order. A node that occurs in several places is shown in full once.

    Args:
        graph: The graph.
        targets: Show only these; None for all.
    """
    notes = {(id(r.node), step(r.what)): f"redeclared, first at {graph.place(r.first)}" for r in graph.redeclared}
    shown: dict[int, str] = {}
    stack: list[tuple[int, str, Value, str, str, Mark | None]] = []
    if targets is None and not graph.targets:
        stack.append((0, "$", graph.root, "$", "", None))
    root_marks = _marks(graph.root)
    for name in reversed(graph.targets if targets is None else targets):
        way = step(name)
        note = notes.get((id(graph.root), way), "")
        stack.append((0, shortened_text(name), graph.target(name), extended("$", way), note, root_marks.get(way)))
    while stack:
        depth, label, value, path, note, mark = stack.pop()
        if not isinstance(value, Node):
            yield Branch(depth, label, in_a_line(value), mark, note)
            continue
        first = shown.setdefault(id(value), path)
        if first != path:
            yield Branch(depth, label, _described(value), mark or value.mark, f"the same as {first}")
            continue
        yield Branch(depth, label, _described(value), mark or value.mark, note)
        marks = _marks(value)
        for way, part in reversed(list(edges(value))):
            note = notes.get((id(value), way), "") if notes else ""
            inner = extended(path, way) if isinstance(part, Node) else ""
            stack.append((depth + 1, way.removeprefix("."), part, inner, note, marks.get(way)))


def _marks(node: Value) -> dict[str, Mark]:
    """Positions of a mapping's keys, by path step."""
    marks = node.marks if isinstance(node, DictNode | CallNode | VarNode) else {}
    return {step(key): mark for key, mark in marks.items()}


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
