"""What does a template mean: a graph of lists, mappings, calls and variables, each with its place.

A graph is plain data. Scalars stand in it as Python values; everything else is a node. An alias is the same node
in two places. Nothing writes to a node once it is made; it is no frozen dataclass because making one of these takes
three times as long, a tenth of a load. Nothing here recurses, so a chain of thousands of nodes is as good as a short
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from forgather_mem.config.places import Place

Mark: TypeAlias = int
"""A position in the rendered text, packed by `mark_at`: an int is nothing that the garbage collector looks at."""

Value: TypeAlias = object
"""A `Node`, or a scalar: str, int, float, bool, None, a date, or an object that came from outside."""

Kind: TypeAlias = Literal["singleton", "factory", "partial", "meta"]


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"

    def __reduce__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = _NoDefault()
"""The default of a variable that has none."""

LINE = 1 << 24  # more than the columns of any line


def mark_at(line: int, column: int) -> Mark:
    """The mark of a line and a column, both counted from 1.

    >>> line_and_column(mark_at(3, 7))
    (3, 7)
    """
    return line * LINE + column


def line_and_column(mark: Mark) -> tuple[int, int]:
    """What a mark packs."""
    return divmod(mark, LINE)


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """What all nodes have.

    Attributes:
        mark: Where it stands in the rendered text.
        children: The nodes among its parts, in the order in which they are built.
        name: From `@name` in its tag.
        fresh: Each place where it stands gets an object of its own: it is a factory, or a list with one in it.
        once: There is one object of it in a construction, also for a partial that is called again and again: a
            singleton, or a list or mapping with a tag.
    """

    mark: Mark
    children: tuple[Node, ...] = ()
    name: str | None = None
    fresh: bool = False
    once: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class ListNode(Node):
    """A sequence. `form` is its tag: "" for none, "list" or "tuple"."""

    items: tuple[Value, ...] = ()
    form: Literal["", "list", "tuple"] = ""


@dataclass(slots=True, eq=False, kw_only=True)
class DictNode(Node):
    """A mapping. `form` is its tag: "" for none, "dict", or "dlist", which becomes a list of the values that
    are not None."""

    entries: Mapping[object, Value] = field(default_factory=dict)
    marks: Mapping[object, Mark] = field(default_factory=dict)
    form: Literal["", "dict", "dlist"] = ""


@dataclass(slots=True, eq=False, kw_only=True)
class CallNode(Node):
    """A call of what `constructor` names.

    Attributes:
        kind: "singleton": built once; "factory": built in each place; "partial": becomes a callable;
            "meta": called with its arguments as nodes, not built.
        constructor: The name as the tag writes it: `module:name`, `path.py:name`, a built-in.
        args: Positional arguments.
        kwargs: Keyword arguments.
        latent: A mapping that is built last and merged over `kwargs` (Forgather's `latent_args`).
        searchpath: Folders for the relative imports of a `path.py:name` (`submodule_searchpath`).
        marks: Where the keys of its mapping stand.
        written: Its mapping as written, which is what a merge key takes; None when it is written as a list.
    """

    kind: Kind
    constructor: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    latent: Value = None
    searchpath: tuple[str, ...] = ()
    marks: Mapping[object, Mark] = field(default_factory=dict)
    written: Mapping[object, Value] | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class VarNode(Node):
    """A variable, to be given at construction."""

    variable: str
    default: Value = NO_DEFAULT
    marks: Mapping[object, Mark] = field(default_factory=dict)
    written: Mapping[object, Value] | None = None


@dataclass(frozen=True, slots=True)
class Redeclared:
    """A key that stands twice in one mapping, or an anchor that is given twice; the last one counts.

    Attributes:
        what: The key; for an anchor "&" and its name.
        mark: Where it stands the last time.
        first: Where it stood before.
        node: The mapping it belongs to; None for an anchor.
    """

    what: object
    mark: Mark
    first: Mark
    node: Node | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A parsed template.

    Two graphs are equal when they would build the same: same nodes, same names, and the same sharing. Places and
    overridden keys don't count.

    Attributes:
        root: The whole document, without the entries of a root mapping that start with a dot.
        definitions: These entries, in order; a key may repeat.
        redeclared: Keys and anchors that stand twice.
        locate: Takes a line and column of the rendered text to the place in the original file.
    """

    root: Value
    definitions: tuple[tuple[str, Value], ...] = ()
    redeclared: tuple[Redeclared, ...] = ()
    locate: Callable[[int, int], Place] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and same(self.root, other.root)

    __hash__ = None  # type: ignore[assignment]

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of what can be asked for."""
        if isinstance(self.root, DictNode) and self.root.form == "":
            return tuple(key for key in self.root.entries if isinstance(key, str))
        return ()

    def target(self, name: str) -> Value:
        """The part of the graph that a target names."""
        assert isinstance(self.root, DictNode)
        return self.root.entries[name]

    def place(self, mark: Mark) -> Place:
        """Where in the original files something stands."""
        line, column = line_and_column(mark)
        return self.locate(line, column) if self.locate else Place("<graph>", line, column)

    def path(self, node: Node) -> str | None:
        """The way from the root to a node, as `$.trainer_callbacks.gc`; None when nothing leads to it any more."""
        return Paths(self).of(node)


class Paths:
    """The ways to all nodes of a graph, found in one walk: targets first, in written order."""

    def __init__(self, graph: Graph) -> None:
        self._came: dict[int, tuple[int | None, str]] = {}
        self._graph = graph  # keeps the ids from being used again
        hidden = [(value, f"$[{key!r}]") for key, value in graph.definitions]
        stack: list[tuple[Value, int | None, str]] = [(value, None, label) for value, label in reversed(hidden)]
        stack.append((graph.root, None, "$"))
        while stack:
            node, parent, label = stack.pop()
            if isinstance(node, Node) and id(node) not in self._came:
                self._came[id(node)] = (parent, label)
                stack.extend((value, id(node), label) for label, value in reversed(list(edges(node))))

    def of(self, node: Node) -> str | None:
        """The way to one node, None when there is none."""
        if id(node) not in self._came:
            return None
        steps = []
        at: int | None = id(node)
        while at is not None:
            at, label = self._came[at]
            steps.append(label)
        return "".join(reversed(steps))


def edges(node: Value) -> Iterator[tuple[str, Value]]:
    """The parts of a node in written order, each with its step of the path: `.key`, `[0]`.

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
    elif isinstance(node, VarNode) and node.default is not NO_DEFAULT:
        yield ".default", node.default


def step(key: object) -> str:
    """One step of a path.

    >>> step("gc"), step("a b"), step(3)
    ('.gc', "['a b']", '[3]')
    """
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def children_of(node: Node) -> Sequence[Node]:
    """All nodes among the parts of a node."""
    return node.children


def walk(roots: Iterable[Value], parts: Callable[[Node], Sequence[Node]] = children_of) -> Iterator[Node]:
    """Every node that the given ones lead to, once, in written order. `parts` says where a node leads."""
    seen: set[int] = set()
    stack = [root for root in reversed(list(roots)) if isinstance(root, Node)]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        stack.extend(reversed(parts(node)))


def same(left: Value, right: Value) -> bool:
    """Whether two graphs would build the same, sharing included."""
    partner: dict[int, Node] = {}
    back: dict[int, Node] = {}
    stack = [(left, right)]
    while stack:
        a, b = stack.pop()
        if not (isinstance(a, Node) and isinstance(b, Node)):
            if type(a) is not type(b) or not (a == b or (a != a and b != b)):
                return False
            continue
        if id(a) in partner or id(b) in back:
            if partner.get(id(a)) is not b or back.get(id(b)) is not a:
                return False
            continue
        partner[id(a)], back[id(b)] = b, a
        if _shape(a) != _shape(b):
            return False
        stack.extend(zip((value for _, value in edges(a)), (value for _, value in edges(b)), strict=True))
    return True


def _shape(node: Node) -> tuple[object, ...]:
    """What two equal nodes have in common, apart from the values."""
    if isinstance(node, ListNode):
        return ListNode, node.form, node.name, len(node.items)
    if isinstance(node, DictNode):
        return DictNode, node.form, node.name, [(type(key), key) for key in node.entries]
    if isinstance(node, CallNode):
        keys = [*node.kwargs, node.latent is None]
        return CallNode, node.kind, node.constructor, node.name, node.searchpath, len(node.args), keys
    assert isinstance(node, VarNode)
    return VarNode, node.variable, node.default is NO_DEFAULT
