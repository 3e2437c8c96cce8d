"""Builds the objects that the nodes of a graph describe.

Everything that can be checked is checked first, for all nodes that the requested targets reach: variables are bound,
names are allowed, modules can be imported, arguments fit. Only then is the first object built: depth first, in written
order, with an explicit stack. The values of a node's parts are in the order of its children: positional before keyword,
each in written order.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from forgather_mem.config.construction.resolve import Callee, Resolver, in_words, is_file
from forgather_mem.config.construction.value_builtins import FUNCTIONS, Values
from forgather_mem.config.graph.nodes import CallNode, DictNode, ListNode, Node, Value, VarNode, walk_nodes
from forgather_mem.config.limits import Limits
from forgather_mem.config.policy.remote_code import ArgumentCheck
from forgather_mem.config.source.syntax import MAPPINGS, SEQUENCES
from forgather_mem.errors import TemplateError, ours

_T = TypeVar("_T")


class MISSING:
    """It is not built yet; a class, which is itself in a copy, too."""


class Cell:
    """The one object of a node, shared by a construction and the partials that it made."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: object = MISSING


Cells = dict[Node, Cell]


class Construction:
    """The objects built from one graph: one node is one object.

    It keeps every object it built. A partial made by it keeps only what its own arguments refer to.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._singletons: Cells = {}
        self._memo: dict[int, object] = {}
        self._items: dict[int, int] = {}

    def build(self, roots: Sequence[Value]) -> list[object]:
        """The objects for some parts of the graph.

        Raises:
            TemplateError: before anything is built, if something is unbound, refused, missing or does not fit; later if
                a constructor raises, with its exception as the cause.
        """
        run = Builder(self._resolver, self._singletons, self._memo, self._items)
        for node in self._resolver.calls(roots):
            if not is_file(node):  # an earlier call of the template may write the file
                run.check_ahead(node)
        return [run.value(root) for root in roots]


class Partial:
    """The callable that a `!partial` becomes. Arguments of a call are added to those of the template, which are built
    anew for each call, except for singletons.

    Exceptions of the callable itself pass through, with a note that names the partial's location.

    Args:
        resolver: Of its construction; it keeps only the variables that its arguments refer to.
        node: What it calls, and with what.
        singletons: Of its construction; it keeps those that its arguments refer to, also ones that are built later.
    """

    def __init__(self, resolver: Resolver, node: CallNode, singletons: Cells) -> None:
        def parts(part: Node) -> Sequence[Node]:
            cell = singletons.get(part)
            return resolver.parts(part) if cell is None or cell.value is MISSING else ()

        needed = list(walk_nodes([node], parts))
        self._resolver = resolver.narrowed([part.variable for part in needed if isinstance(part, VarNode)])
        self._node = node
        self._cells = {part: singletons.setdefault(part, Cell()) for part in needed if part.is_singleton}

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        return Builder(self._resolver, self._cells, {}).call_partial(self._node, args, kwargs)

    def __repr__(self) -> str:
        return f"<!partial:{self._node.constructor} at {self._resolver.graph.place(self._node.mark)}>"

    @property
    def __signature__(self) -> inspect.Signature:
        """The parameters that may still be given."""
        function = Builder(self._resolver, {}, {}).callee(self._node).function
        return inspect.signature(functools.partial(function, *self._node.args, **self._node.kwargs))


class Builder:
    """One construction of some targets, or one call of a partial.

    Args:
        singletons: Objects that exist once per construction.
        memo: The other lists and mappings, which are shared by all their aliases, by id of their node.
        items: Collects the `Sizes` of what is built.
    """

    def __init__(
        self, resolver: Resolver, singletons: Cells, memo: dict[int, object], items: dict[int, int] | None = None
    ) -> None:
        self._singletons = singletons
        self._resolver = resolver
        self._memo = memo
        self._values = Values()
        self._limit_s = resolver.budgets.cpu_s(resolver.num_chars)
        self._ends_s = time.thread_time() + self._limit_s
        self._arguments_check = ArgumentCheck(resolver.allows_address)
        self._ahead = Sizes(resolver.budgets, {})
        self._sizes = Sizes(resolver.budgets, {} if items is None else items)

    def callee(self, node: CallNode) -> Callee:
        """The callee of a call, imported if necessary."""
        if function := self._values.function(node.constructor):
            return Callee(function, is_value=node.constructor != "call")
        try:
            return self._outside(self._resolver.callee, [node], {})
        except TemplateError:
            raise
        except ours(Exception) as error:
            raise self._resolver.error(node, f"importing {node.constructor} raised {in_words(error)}") from error

    def check_ahead(self, node: CallNode) -> None:
        """Import the callee of a call and check its arguments, before anything is built."""
        more_come = node.kind == "partial" or node.latent is not None
        callee = self.callee(node)
        try:
            self._look()
            if not callee.is_value and node.kind != "partial":
                self._ahead.add_call()
            if node.kind == "meta":  # its arguments are no parts that are built
                filled_arguments(node, ())
        except (TooLarge, TypeError, ValueError) as error:
            raise self._resolver.error(node, str(error)) from error
        self._resolver.check(node, callee, node.args, node.kwargs, more_come=more_come)
        named = node.kwargs if node.latent is None else {**node.kwargs, "latent_args": node.latent}
        self._resolver.guard(node, callee, node.args, named, self._arguments_check)

    def value(self, root: Value) -> object:
        """The object for a part of the graph."""
        if not isinstance(root, Node):
            return root
        made = self._known(root)
        if made is not MISSING:
            return made
        stack: list[tuple[Node, Iterator[Node], list[object]]] = [(root, iter(self._needs(root)), [])]
        while stack:
            node, pending, values = stack[-1]
            for child in pending:
                made = self._known(child)
                if made is MISSING:
                    stack.append((child, iter(self._needs(child)), []))
                    break
                values.append(made)
            else:
                stack.pop()
                made = self._make(node, values)
                if stack:
                    stack[-1][2].append(made)
        return made

    def call_partial(self, node: CallNode, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Build the arguments of a partial, add those of the call, and call."""
        own, named = self._arguments(node, [self.value(child) for child in self._resolver.parts(node)])
        callee = self.callee(node)
        if node.children:
            self._resolver.guard(node, callee, own, named, self._arguments_check)
        own, named = [*own, *args], {**named, **kwargs}
        self._resolver.check(node, callee, own, named)
        try:
            return callee.function(*own, **named)
        except ours(Exception) as error:
            error.add_note(f"in {node.constructor}, a !partial at {self._resolver.graph.place(node.mark)}")
            raise

    def _needs(self, node: Node) -> Sequence[Node]:
        return () if isinstance(node, CallNode) and node.kind == "partial" else self._resolver.parts(node)

    def _known(self, node: Node) -> object:
        if not node.is_singleton:
            return self._memo.get(id(node), MISSING)
        cell = self._singletons.get(node)
        return MISSING if cell is None else cell.value

    def _make(self, node: Node, values: Sequence[object]) -> object:
        made: object
        try:
            self._look()
            if isinstance(node, CallNode):
                made = self._call(node, values)
            elif isinstance(node, ListNode | DictNode):
                made = filled_node(node, values)
            else:
                assert isinstance(node, VarNode)
                default = values[0] if values else node.default  # one without has a value: checked ahead
                made = self._resolver.variables.get(node.variable, default)
            self._sizes.add(node, self._resolver.parts, made)
        except TemplateError:
            raise
        except (TooLarge, TypeError, ValueError) as error:  # the latter of a tag, as of a set whose items have no hash
            raise self._resolver.error(node, str(error)) from error
        if node.is_singleton:
            self._singletons.setdefault(node, Cell()).value = made
        elif not node.per_use:
            self._memo[id(node)] = made
        return made

    def _outside(self, function: Callable[..., _T], args: Sequence[object], kwargs: Mapping[str, object]) -> _T:
        """Call something whose time is not ours, and does not count."""
        began_s = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            self._ends_s += time.thread_time() - began_s

    def _look(self) -> None:
        """Stop what no count foresaw.

        Raises:
            TooLarge: when the time is up.
        """
        if time.thread_time() > self._ends_s:
            raise TooLarge(f"this template takes more than {self._limit_s:.2g} s of CPU time")

    def _call(self, node: CallNode, values: Sequence[object]) -> object:
        if node.kind == "partial":
            return Partial(self._resolver, node, self._singletons)
        callee = self.callee(node)
        args, kwargs = self._arguments(node, values)
        if callee.is_checked_late or node.latent is not None:
            self._resolver.check(node, callee, args, kwargs)
        if values:  # the others were looked at ahead
            self._resolver.guard(node, callee, args, kwargs, self._arguments_check)
        if not callee.is_value:
            self._sizes.add_call()
        try:
            if callee.is_value:
                return callee.function(*args, **kwargs)
            return self._outside(callee.function, args, kwargs)
        except ours(Exception) as error:
            raise self._resolver.raised(node, callee, args, kwargs, error) from error

    def _arguments(self, node: CallNode, values: Sequence[object]) -> tuple[Sequence[object], Mapping[str, object]]:
        args, kwargs, latent = filled_arguments(node, values)
        if latent is None or node.kind == "meta":
            return args, kwargs
        if not isinstance(latent, Mapping):
            message = f"latent_args of {node.constructor} is a mapping; here it is of type {type(latent).__name__}"
            raise self._resolver.error(node, message, "latent_args")
        return args, {**kwargs, **latent}


class TooLarge(Exception):
    """A construction exceeds its limit; the message is for people."""


class Sizes:
    """The sizes within one run of a construction, shared parts counted at each occurrence: printing, comparing or
    hashing an object visits them each time.

    Parsing limits what the text contains. What is counted here are the objects that factories make, and what parsing
    can't see: the items of a `range`, the only call that returns more than it is given, and texts that are built or
    come from variables.

    Args:
        budgets: How many objects may be built (a third of `nodes`), how many of them by calls (`objects`), and how many
            items one of them may have (`expanded_nodes`). A text has one for each 64 characters.
        items: Items in what earlier runs built, by id of the node; extended in place.
    """

    def __init__(self, budgets: Limits, items: dict[int, int]) -> None:
        self._limit = budgets.expanded_nodes
        self._left = self._objects = min(budgets.expanded_nodes, budgets.nodes // 3)  # as many as can be written
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


def filled_node(node: ListNode | DictNode, values: Sequence[object]) -> object:
    """What a sequence or a mapping becomes: of a `!dlist` the list of its values.

    Raises:
        TypeError, ValueError: if that can't have these items.
    """
    if isinstance(node, ListNode):
        return _made(SEQUENCES[node.form or "list"], _filled(node.items, iter(values)))
    if node.form == "dlist":
        return _filled([value for value in node.entries.values() if value is not None], iter(values))
    entries = dict(zip(node.entries, _filled(node.entries.values(), iter(values)), strict=True))
    return _made(MAPPINGS[node.form or "dict"], entries)


def _made(make: Callable[..., object], items: list[object] | dict[object, object]) -> object:
    return items if make is type(items) else FUNCTIONS.get(make.__name__, make)(items)


def filled_arguments(node: CallNode, values: Sequence[object]) -> tuple[Sequence[object], Mapping[str, object], object]:
    """Positional and keyword arguments of a call, and what is merged over them; None for nothing."""
    if node.kind == "meta":
        known: dict[int, object] = {}
        return [unbuilt(arg, known) for arg in node.args], {k: unbuilt(v, known) for k, v in node.kwargs.items()}, None
    if not values:  # nothing to fill in
        return node.args, node.kwargs, node.latent
    pending = iter(values)
    args = _filled(node.args, pending)
    kwargs = dict(zip(node.kwargs, _filled(node.kwargs.values(), pending), strict=True))
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
            known[id(node)] = filled_node(node, [known.get(id(part), part) for part in node.children])
    return known.get(id(value), value)


def _filled(items: Iterable[Value], pending: Iterator[object]) -> list[object]:
    return [next(pending) if isinstance(item, Node) else item for item in items]
