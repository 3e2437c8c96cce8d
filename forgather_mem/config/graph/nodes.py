"""The graph that a template describes: lists, mappings, calls and variables, each with its location.

A graph is plain data. Scalars are Python values; everything else is a node. An alias is the same node in two places.
Nothing writes to a node after it is made; it is not a frozen dataclass, because making one of those takes three times
as long, a tenth of a load. Nothing here recurses, so a chain of thousands of nodes is no problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from forgather_mem.config.source.rendered import SourceLocation

Mark: TypeAlias = int
"""A position in the rendered text, packed by `mark_at`: the garbage collector does not track an int."""

Value: TypeAlias = object
"""A `Node`, or a scalar: str, int, float, bool, None, a date, or an object that came from outside."""

Kind: TypeAlias = Literal["singleton", "factory", "partial", "meta"]


NO_DEFAULT: Final = Ellipsis
"""The default of a variable that has none: no YAML means it, and a copy of it is itself."""

TEXT: Final = 0
"""Key of the position of an unquoted text; other keys are names."""

LINE = 1 << 24  # more than any line has columns


def mark_at(line: int, column: int) -> Mark:
    """Packs a line and a column, both counted from 1.

    >>> line_and_column(mark_at(3, 7))
    (3, 7)
    """
    return line * LINE + column


def line_and_column(mark: Mark) -> tuple[int, int]:
    """The line and column that a mark packs."""
    return divmod(mark, LINE)


@dataclass(frozen=True, slots=True)
class Shown:
    """Characters shown of one step of a path, of a path, and of a value in a tree; and items of a list: a
    stranger may have made each as long as a file."""

    step: int = 100
    path: int = 400
    value: int = 500
    items: int = 10


SHOWN: Final = Shown()


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """The base of all nodes.

    Attributes:
        mark: Its position in the rendered text.
        children: The nodes among its parts, in building order.
        name: From `@name` in its tag.
        per_use: Each place it occurs in gets an object of its own: it is a factory, or a list that contains one.
        is_singleton: It has one object per construction, also for a partial that is called repeatedly: a singleton, or
            a list or mapping with a tag.
        marks: Positions of the keys of its mapping; at TEXT that of an unquoted text, if that is all it is given.
        written: Its mapping as written, for merge keys; None if it is written as a list.
    """

    mark: Mark
    children: tuple[Node, ...] = ()
    name: str | None = None
    per_use: bool = False
    is_singleton: bool = False
    marks: Mapping[object, Mark] = field(default_factory=dict)
    written: Mapping[object, Value] | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class ListNode(Node):
    """A sequence. `form` is the word of its tag, one of `SEQUENCES`, or "" for none."""

    items: tuple[Value, ...] = ()
    form: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class DictNode(Node):
    """A mapping. `form` is the word of its tag, one of `MAPPINGS`, or "" for none. "dlist" becomes a list of its values
    other than None."""

    entries: Mapping[object, Value] = field(default_factory=dict)
    form: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class CallNode(Node):
    """A call of `constructor`.

    Attributes:
        kind: "singleton": built once; "factory": built anew in each place; "partial": becomes a callable; "meta":
            called with its arguments unbuilt.
        constructor: The name as written in the tag: `module:name`, `path.py:name`, a built-in.
        args: Positional arguments.
        kwargs: Keyword arguments.
        latent: A mapping that is built last and merged over `kwargs` (Forgather's `latent_args`).
        searchpath: Folders for the relative imports of a `path.py:name` (`submodule_searchpath`).
    """

    kind: Kind
    constructor: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    latent: Value = None
    searchpath: tuple[str, ...] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class VarNode(Node):
    """A variable whose value is given at construction."""

    variable: str
    default: Value = NO_DEFAULT

    @property
    def has_default(self) -> bool:
        return self.default is not NO_DEFAULT


@dataclass(frozen=True, slots=True)
class Redeclared:
    """A key given twice in one mapping; the last one counts.

    Attributes:
        what: The key.
        mark: Its last position.
        first: Its earlier position.
        node: The mapping it belongs to.
    """

    what: object
    mark: Mark
    first: Mark
    node: Node


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A parsed template.

    Attributes:
        root: The whole document, without the entries of a root mapping that start with a dot.
        definitions: These entries, in order; a key may repeat.
        redeclared: Keys given twice.
        vain: What is written in vain: its mark, and why it has no effect.
        locate: Maps a line and column of the rendered text to the location in the original file.
    """

    root: Value
    definitions: Sequence[tuple[str, Value]] = ()
    redeclared: Sequence[Redeclared] = ()
    vain: Sequence[tuple[Mark, str]] = ()
    locate: Callable[[int, int], SourceLocation] | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets."""
        if isinstance(self.root, DictNode) and self.root.form == "":
            return tuple(key for key in self.root.entries if isinstance(key, str))
        return ()

    def target(self, name: str) -> Value:
        """The part of the graph that a target refers to."""
        assert isinstance(self.root, DictNode)
        return self.root.entries[name]

    def items(self, target: str, text: str) -> list[tuple[Value, SourceLocation]]:
        """What is in a list, and where: of a `!dlist` the keys. The rendered text has the places of texts."""
        value, lines = self.target(target), text.split("\n")
        if isinstance(value, DictNode):
            return [(item, self.place(value.marks[key])) for key, item in value.entries.items() if item is not None]
        mark = value.mark if isinstance(value, Node) else mark_at(1, 1)
        found, at = [], line_and_column(mark)[0] - 1
        for item in items_of(value) or ():
            if not isinstance(item, Node):  # behind one that isn't found as written none is: each would search all
                at = next((line for line in range(at, len(lines)) if str(item) in lines[line]), len(lines))
                mark = mark_at(at + 1, 1 + lines[at].find(str(item))) if at < len(lines) else mark
            found.append((item, self.place(item.mark if isinstance(item, Node) else mark)))
        return found

    def place(self, mark: Mark) -> SourceLocation:
        """The location of a mark in the original files."""
        line, column = line_and_column(mark)
        return self.locate(line, column) if self.locate else SourceLocation("<graph>", line, column)

    def place_of(self, target: str) -> SourceLocation:
        """The location of a target's key."""
        assert isinstance(self.root, DictNode)
        return self.place(self.root.marks[target])


class Paths:
    """The paths to all nodes of a graph, found in one walk: targets first, in written order."""

    def __init__(self, graph: Graph) -> None:
        self._found: dict[int, str] = {}
        self._graph = graph  # keeps the ids from being reused
        hidden = [(value, f"$[{shortened_text(key)!r}]") for key, value in reversed(graph.definitions)]
        stack: list[tuple[Value, str]] = [*hidden, (graph.root, "$")]
        while stack:
            node, path = stack.pop()
            if isinstance(node, Node) and id(node) not in self._found:
                self._found[id(node)] = path
                parts = [(value, _extended(path, way)) for way, value in edges(node) if isinstance(value, Node)]
                stack.extend(reversed(parts))

    def of(self, node: Node) -> str | None:
        """The path to one node, or None."""
        return self._found.get(id(node))


def _extended(path: str, way: str) -> str:
    """A path and one step more, cut at some hundred characters."""
    if len(path) + len(way) <= SHOWN.path:
        return path + way
    return path if path.endswith("...") else path[: SHOWN.path] + "..."


def items_of(value: Value) -> list[Value] | None:
    """What is in a sequence or a `!dlist`; None for anything else."""
    if isinstance(value, ListNode):
        return list(value.items)
    if isinstance(value, DictNode) and value.form == "dlist":
        return [item for item in value.entries.values() if item is not None]
    return None


def shortened_text(text: str, limit: int = SHOWN.step) -> str:
    """A text as people are shown it in one line.

    >>> shortened_text("abcdefgh", 5), shortened_text("abc", 5)
    ('abcde... (8 characters)', 'abc')
    """
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


def edges(node: Value) -> Iterator[tuple[str, Value]]:
    """The parts of a node in written order, each with its path step: `.key`, `[0]`.

    >>> list(edges(ListNode(mark=0, items=("a", 2))))
    [('[0]', 'a'), ('[1]', 2)]
    """
    if isinstance(node, ListNode):
        yield from ((f"[{i}]", value) for i, value in enumerate(node.items))
    elif isinstance(node, DictNode):
        yield from ((step(key), value) for key, value in node.entries.items())
    elif isinstance(node, CallNode):
        yield from ((f"[{i}]", value) for i, value in enumerate(node.args))
        yield from ((step(key), value) for key, value in node.kwargs.items())
        if node.latent is not None:
            yield ".latent_args", node.latent
    elif isinstance(node, VarNode) and node.has_default:
        yield ".default", node.default


def step(key: object) -> str:
    """One step of a path.

    >>> step("gc"), step("a b"), step(3)
    ('.gc', "['a b']", '[3]')
    """
    if isinstance(key, str):
        key = shortened_text(key)
        return f".{key}" if key.isidentifier() else f"[{key!r}]"
    return f"[{key!r}]"


def walk_nodes(roots: Iterable[Value], parts: Callable[[Node], Sequence[Node]] | None = None) -> Iterator[Node]:
    """Every node reachable from the given ones, once, in written order. `parts` gives the successors of a node; by
    default all nodes among its parts."""
    seen: set[int] = set()
    stack = [root for root in reversed(list(roots)) if isinstance(root, Node)]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        stack.extend(reversed(node.children if parts is None else parts(node)))


def tree(graph: Graph, targets: Sequence[str] | None = None) -> Iterator[tuple[int, str, str, str]]:
    """The graph line by line, in written order: depth, label, what it is, and a note ("redeclared, first at ...", "the
    same as $.PATH") or "". A node that occurs in several places is shown in full once.

    Args:
        graph: The graph.
        targets: Show only these; None for all.
    """
    notes = {(id(r.node), step(r.what)): f"redeclared, first at {graph.place(r.first)}" for r in graph.redeclared}
    paths, shown = Paths(graph), set[int]()
    stack: list[tuple[int, str, Value, str]] = []
    if targets is None and not graph.targets:
        stack.append((0, "$", graph.root, ""))
    for name in reversed(graph.targets if targets is None else targets):
        stack.append((0, shortened_text(name), graph.target(name), notes.get((id(graph.root), step(name)), "")))
    while stack:
        depth, label, value, note = stack.pop()
        if isinstance(value, Node) and id(value) in shown:
            yield depth, label, in_a_line(value), f"the same as {paths.of(value)}"
            continue
        shown.add(id(value))
        yield depth, label, in_a_line(value), note
        for way, part in reversed(list(edges(value))):
            stack.append((depth + 1, way.removeprefix("."), part, notes.get((id(value), way), "")))


def built_of(value: Value) -> str:
    """What a part of the graph becomes, in a few words; of a list what is in it.

    >>> built_of(ListNode(mark=0, items=(CallNode(mark=0, kind="singleton", constructor="random:Random"), 3)))
    'Random, 3'
    """
    if isinstance(value, CallNode):
        return shortened_text(value.constructor.rpartition(":")[2].rpartition(".")[2])
    if (items := items_of(value)) is None:
        return in_a_line(value)
    names = [built_of(item) if isinstance(item, CallNode) else in_a_line(item) for item in items[: SHOWN.items]]
    return ", ".join([*names, "..."] if len(items) > SHOWN.items else names) or "nothing"


def in_a_line(value: Value) -> str:
    """A scalar, or what a node is.

    >>> in_a_line(CallNode(mark=0, kind="factory", constructor="random:Random", name="dice"))
    '!factory:random:Random @dice'
    """
    if isinstance(value, str):
        return repr(shortened_text(value, SHOWN.value))
    name = f" @{value.name}" if isinstance(value, Node) and value.name else ""
    if isinstance(value, CallNode):
        return shortened_text(f"!{value.kind}:{value.constructor}{name}", SHOWN.value)
    if isinstance(value, VarNode):
        return shortened_text(f"!var {value.variable}", SHOWN.value)
    if isinstance(value, ListNode | DictNode):
        if value.form:
            return f"!{value.form}{shortened_text(name)}"
        return f"list of {len(value.items)}" if isinstance(value, ListNode) else f"mapping of {len(value.entries)}"
    from yaml.representer import SafeRepresenter  # the policy needs no YAML

    return str(SafeRepresenter.yaml_representers[type(value)](SafeRepresenter(), value).value)
