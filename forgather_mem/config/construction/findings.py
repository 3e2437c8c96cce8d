"""Everything that can be found out about a construction without building anybody's objects, values included.

The only objects made are plain values, and our own callbacks and their parts, whose constructors check their
arguments and do nothing else; they are dropped again.
"""

from __future__ import annotations

from collections.abc import Sequence

from forgather_mem.config.construction.construct import Builder, TooLarge
from forgather_mem.config.construction.resolve import MAX_NAMES, Resolver, is_file
from forgather_mem.config.graph.nodes import TEXT, CallNode, Node, Value, VarNode, shortened_text
from forgather_mem.errors import TemplateError

_OURS = tuple(f"forgather_mem.{part}." for part in ("callbacks", "telemetry", "probes", "actions", "sinks"))
"""Where our classes are defined whose constructors do no work; a test watches them."""


class Search:
    """One search: what was found, and which nodes can't be built because of it."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._builder = Builder(resolver, {}, {})
        self._found: list[TemplateError] = []
        self._unbuildable: set[int] = set()  # by id of the node
        self._users: dict[int, list[Node]] = {}  # the nodes that have a node among their parts, by its id

    def run(self, roots: Sequence[Value]) -> list[TemplateError]:
        """Names that can't be imported, arguments that don't fit, and values that a parameter or a class of ours
        refuses. Names that the policy allows are imported, refused ones are skipped.
        """
        names: set[str] = set()
        nodes = []
        for node in self._resolver.reached(roots):
            nodes.append(node)
            if max(len(self._found), len(names)) >= MAX_NAMES:
                return self._found
            if isinstance(node, CallNode):
                names.add(node.constructor)
            if not self._look_at(node):
                return self._found
        self._try(nodes)
        return self._found

    def _look_at(self, node: Node) -> bool:
        """Compare a call with its callable; False if that has to end here."""
        for part in self._resolver.parts(node):
            self._users.setdefault(id(part), []).append(node)
        is_open = isinstance(node, VarNode) and not node.has_default and node.variable not in self._resolver.variables
        if is_open or (isinstance(node, CallNode) and not self._resolver.allows(node)):
            self._unbuildable.add(id(node))
        if not isinstance(node, CallNode) or id(node) in self._unbuildable:
            return True
        try:
            callee = self._builder.callee(node)
            if hint := self._resolver.missing_colon(node, callee):
                message = f"the only argument of {node.constructor} is the text {shortened_text(str(node.args[0]))!r}"
                raise self._resolver.error(node, message, TEXT, hint)
            self._builder.check_ahead(node)
        except TemplateError as error:
            self._found.append(error)
            self._unbuildable.add(id(node))
            return not isinstance(error.__cause__, TooLarge)
        is_ours = isinstance(callee.function, type) and f"{callee.function.__module__}.".startswith(_OURS)
        is_tried = is_ours and not is_file(node) and node.kind in ("singleton", "factory")
        if not is_tried and (not callee.is_value or node.kind == "meta"):
            self._unbuildable.add(id(node))
        return True

    def _try(self, nodes: Sequence[Node]) -> None:
        """Build what is ours, values included, and needs nothing else, inner ones first.

        What contains one that fails is left, and what is built for each use is built with who uses it.
        """
        self._spread(list(self._unbuildable))
        failed: dict[str, TemplateError] = {}  # what several contain fails in each of them alike
        for node in reversed(nodes):
            users = self._users.get(id(node), ()) if node.per_use else ()
            if id(node) in self._unbuildable or any(id(user) not in self._unbuildable for user in users):
                continue
            try:
                self._builder.value(node)
            except TemplateError as error:
                failed.setdefault(str(error), error)
                self._spread([id(node)])
                if isinstance(error.__cause__, TooLarge) or len(failed) >= MAX_NAMES:
                    break
        self._found += reversed(failed.values())

    def _spread(self, todo: list[int]) -> None:
        """What contains something that can't be built can't be built either."""
        self._unbuildable.update(todo)
        while todo:
            for user in self._users.get(todo.pop(), ()):
                if id(user) not in self._unbuildable:
                    self._unbuildable.add(id(user))
                    todo.append(id(user))
