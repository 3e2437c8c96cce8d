"""Puts built objects in the place of nodes among the parts of another object.

The values are in the order of a node's children: positional before keyword, each in written order. A `!meta` call gets
its arguments unbuilt: plain lists and mappings, with nodes in them for what would be built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forgather_mem.config.graph.nodes import CallNode, DictNode, ListNode, Node, Value


def filled_list(node: ListNode, values: Sequence[object]) -> object:
    """The list or tuple of a sequence."""
    items = _filled(node.items, values)
    return tuple(items) if node.form == "tuple" else items


def filled_mapping(node: DictNode, values: Sequence[object]) -> object:
    """The dict of a mapping, or the list of a `!dlist`."""
    if node.form == "dlist":
        return _filled([value for value in node.entries.values() if value is not None], values)
    pending = iter(values)
    return {key: next(pending) if isinstance(value, Node) else value for key, value in node.entries.items()}


def filled_arguments(node: CallNode, values: Sequence[object]) -> tuple[Sequence[object], Mapping[str, object], object]:
    """Positional and keyword arguments of a call, and what is merged over them; None for nothing."""
    if node.kind == "meta":
        known: dict[int, object] = {}
        return [unbuilt(arg, known) for arg in node.args], {k: unbuilt(v, known) for k, v in node.kwargs.items()}, None
    if not values:  # nothing to fill in
        return node.args, node.kwargs, node.latent
    pending = iter(values)
    args = [next(pending) if isinstance(value, Node) else value for value in node.args]
    kwargs = {key: next(pending) if isinstance(v, Node) else v for key, v in node.kwargs.items()}
    return args, kwargs, next(pending) if isinstance(node.latent, Node) else node.latent


def unbuilt(value: Value, known: dict[int, object]) -> object:
    """A part of the graph with plain lists, tuples and dicts; calls and variables stay nodes.

    Args:
        value: A node or a scalar.
        known: What was made already, by id of the node: an alias is the same object in each place. Extended in place.
    """
    stack = [value]
    while stack:  # no recursion: aliases make chains of any length
        node = stack[-1]
        if not isinstance(node, ListNode | DictNode) or id(node) in known:
            stack.pop()
            continue
        inner = [part for part in node.children if isinstance(part, ListNode | DictNode) and id(part) not in known]
        stack += inner
        if not inner:
            parts = [known.get(id(part), part) for part in node.children]
            known[id(node)] = filled_list(node, parts) if isinstance(node, ListNode) else filled_mapping(node, parts)
    return known.get(id(value), value)


def _filled(items: Sequence[Value], values: Sequence[object]) -> list[object]:
    if not values:
        return list(items)
    pending = iter(values)
    return [next(pending) if isinstance(item, Node) else item for item in items]
