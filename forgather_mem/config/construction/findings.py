"""Everything that can be found out about a construction without building anybody's objects.

The only objects made are our own callbacks and their parts, whose constructors check their arguments and do nothing
else; they are dropped again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forgather_mem.config.clock import OutOfTime
from forgather_mem.config.construction.construct import Builder
from forgather_mem.config.construction.resolve import MAX_NAMES, Callee, Resolver, is_file
from forgather_mem.config.construction.sizes import TooLarge
from forgather_mem.config.construction.value_types import accepted_by
from forgather_mem.config.graph.nodes import NO_DEFAULT, TEXT, CallNode, Node, Value, VarNode, shortened_text
from forgather_mem.errors import TemplateError

_OURS = tuple(f"forgather_mem.{part}." for part in ("callbacks", "telemetry", "probes", "actions", "sinks"))
"""Where our classes are defined whose constructors do no work; a test watches them."""


def misfits(resolver: Resolver, roots: Sequence[Value]) -> list[TemplateError]:
    """Names that can't be imported, arguments that don't fit, and values that a parameter or a class of ours refuses.

    Names that the policy allows are imported, refused ones are skipped.
    """
    return _Search(resolver).run(roots)


class _Search:
    """One search: what was found, and which nodes can't be built because of it."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._builder = Builder(resolver, {}, {})
        self._found: list[TemplateError] = []
        self._ours: list[CallNode] = []
        self._unbuildable: set[int] = set()  # by id of the node
        self._users: dict[int, list[Node]] = {}  # the nodes that have a node among their parts, by its id

    def run(self, roots: Sequence[Value]) -> list[TemplateError]:
        with self._builder.clock:
            names: set[str] = set()
            for node in self._resolver.reached(roots):
                if max(len(self._found), len(names)) >= MAX_NAMES:
                    return self._found
                if isinstance(node, CallNode):
                    names.add(node.constructor)
                if not self._look_at(node):
                    return self._found
            self._try_ours()
        return self._found

    def _look_at(self, node: Node) -> bool:
        """Compare a call with its callable; False if that has to end here."""
        for part in self._resolver.parts(node):
            self._users.setdefault(id(part), []).append(node)
        if isinstance(node, VarNode):
            if node.default is NO_DEFAULT and node.variable not in self._resolver.variables:
                self._unbuildable.add(id(node))
            return True
        if not isinstance(node, CallNode):
            return True
        if not self._resolver.allows(node):
            self._unbuildable.add(id(node))
            return True
        try:
            callee = self._builder.callee(node)
            if hint := self._resolver.missing_colon(node, callee):
                message = f"the only argument of {node.constructor} is the text {shortened_text(str(node.args[0]))!r}"
                raise self._resolver.error(node, message, TEXT, hint)
            self._builder.check_ahead(node)
            self._check_values(node, callee)
        except TemplateError as error:
            self._found.append(error)
            self._unbuildable.add(id(node))
            return not isinstance(error.__cause__, TooLarge | OutOfTime)
        return True

    def _check_values(self, node: CallNode, callee: Callee) -> None:
        is_compared = callee.parameters and not callee.is_value and node.kind != "meta"
        accepted = accepted_by(callee.function) if is_compared else {}
        for name, value in _arguments(node, callee) if accepted else ():
            if name in accepted and (problem := accepted[name].problem(value)):
                raise self._resolver.error(node, f"{name} of {node.constructor} {problem[0]}", name, problem[1])
        if _is_ours(callee.function) and not is_file(node) and node.kind in ("singleton", "factory"):
            self._ours.append(node)
        elif not callee.is_value or node.kind == "meta":
            self._unbuildable.add(id(node))

    def _try_ours(self) -> None:
        """Build those of our classes that need nothing else, inner ones first: what contains one that fails is left."""
        self._spread(list(self._unbuildable))
        failed: dict[str, TemplateError] = {}  # what several contain fails in each of them alike
        for node in reversed(self._ours):
            if id(node) in self._unbuildable:
                continue
            try:
                self._builder.value(node)
            except TemplateError as error:
                failed.setdefault(str(error), error)
                self._spread([id(node)])
                if isinstance(error.__cause__, TooLarge | OutOfTime) or len(failed) >= MAX_NAMES:
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


def _is_ours(function: object) -> bool:
    return isinstance(function, type) and f"{function.__module__}.".startswith(_OURS)


def _arguments(node: CallNode, callee: Callee) -> Iterator[tuple[str, Value]]:
    """The values given, each with the name of its parameter."""
    takes = callee.parameters
    if takes is not None:
        yield from zip(takes.positional, node.args, strict=False)
        yield from ((name, value) for name, value in node.kwargs.items() if name in takes.named)
