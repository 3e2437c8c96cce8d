"""Everything that can be found out about a construction without building anybody's objects, values included.

The only objects made are plain values, and our own callbacks and their parts, whose constructors check their
arguments and do nothing else; they are dropped again.
"""

from __future__ import annotations

import ast
import collections
import inspect
import re
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from forgather_mem.config.construction.construct import Builder
from forgather_mem.config.construction.resolve import MAX_NAMES, Callee, Resolver, is_file, meant_arguments
from forgather_mem.config.construction.signature_check import python_function
from forgather_mem.config.construction.sizes import TooLarge
from forgather_mem.config.graph.nodes import TEXT, CallNode, DictNode, ListNode, Node, Value, VarNode, shortened_text
from forgather_mem.errors import TemplateError, did_you_mean
from forgather_mem.units import is_number_text

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
        self._unbuildable: set[int] = set()  # by id of the node
        self._users: dict[int, list[Node]] = {}  # the nodes that have a node among their parts, by its id

    def run(self, roots: Sequence[Value]) -> list[TemplateError]:
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
        if isinstance(node, VarNode):
            if not node.has_default and node.variable not in self._resolver.variables:
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
            return not isinstance(error.__cause__, TooLarge)
        return True

    def _check_values(self, node: CallNode, callee: Callee) -> None:
        is_compared = callee.parameters and not callee.is_value and node.kind != "meta"
        accepted = accepted_by(callee.function) if is_compared else {}
        for name, value in _arguments(node, callee) if accepted else ():
            if name in accepted and (problem := accepted[name].problem(value)):
                hint = problem[1] or meant_arguments(node, callee)
                raise self._resolver.error(node, f"{name} of {node.constructor} {problem[0]}", name, hint)
        is_ours = isinstance(callee.function, type) and f"{callee.function.__module__}.".startswith(_OURS)
        is_tried = is_ours and not is_file(node) and node.kind in ("singleton", "factory")
        if not is_tried and (not callee.is_value or node.kind == "meta"):
            self._unbuildable.add(id(node))

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


def _arguments(node: CallNode, callee: Callee) -> Iterator[tuple[str, Value]]:
    """The values given, each with the name of its parameter."""
    takes = callee.parameters
    if takes is not None:
        yield from zip(takes.positional, node.args, strict=False)
        yield from ((name, value) for name, value in node.kwargs.items() if name in takes.named)


_KINDS: Mapping[object, str] = {
    int: "int", float: "float", bool: "bool", str: "str", None: "None", NoneType: "None",
    list: "list", tuple: "list", dict: "dict", Mapping: "dict", MutableMapping: "dict",
}  # fmt: skip
_NAMES: dict[str, object] = {
    "typing": typing, "t": typing, "collections": collections,
    **{name: getattr(typing, name) for name in ("Annotated", "Dict", "List", "Literal", "Optional", "Tuple", "Union")},
    **{kind.__name__: kind for kind in (int, float, bool, str, list, dict, tuple, Mapping, MutableMapping)},
}  # fmt: skip
"""What is meant by the names in an annotation."""
_PARTS = (
    ast.Expression, ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.BitOr,
    ast.Load,
)  # fmt: skip
_TYPING = re.compile(r"\b(typing|collections\.abc)\.")


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a parameter accepts.

    Attributes:
        text: The annotation as written.
        types: "int", "float", "bool", "str", "None", "list" (or tuple), "dict".
        literals: Single values, of `Literal`.
    """

    text: str
    types: frozenset[str]
    literals: tuple[object, ...] = ()

    def problem(self, value: Value) -> tuple[str, str | None] | None:
        """Why a value can't be meant: half a sentence and a hint; None if it may be."""
        if isinstance(value, VarNode):
            return None
        if isinstance(value, ListNode | DictNode):
            kind = _KINDS.get(value.maker, "")
            said = {"list": "this is a list", "dict": "this is a mapping"}.get(kind, f"this is !{value.form}")
            return None if kind in self.types else (f"takes {self.text}; {said}", None)
        if isinstance(value, str):
            return self._problem_of_text(value)
        if type(value) not in (bool, int, float) or self.types & {"str", "bool"}:
            return None  # any number has a text and a truth
        number = "bool" if isinstance(value, bool) else "number"
        if not self.types & {"int", "float"}:
            return None if value in self.literals else (f"takes {self.text}; this is a {number}", None)
        is_whole = not isinstance(value, float) or value.is_integer()
        return None if is_whole or "float" in self.types else (f"takes {self.text}; {value!r} is not whole", None)

    def _problem_of_text(self, text: str) -> tuple[str, str | None] | None:
        if "str" in self.types or text in self.literals:
            return None
        if self.types & {"int", "float"} and is_number_text(text):
            return None
        choices = [choice for choice in self.literals if isinstance(choice, str)]
        hint = did_you_mean(text, choices) or ("a mapping is written {name: value}" if "dict" in self.types else None)
        return f"takes {self.text}; {shortened_text(text)!r} is text", hint


def accepted_by(function: Callable[..., object]) -> dict[str, Accepted]:
    """What each annotated parameter accepts, as far as that is certain; nothing for what is not written in Python."""
    found = python_function(function)
    is_stated = isinstance(function, type) and getattr(function, "__signature__", None) is not None
    if found is None or is_stated or hasattr(found, "__wrapped__"):
        return {}
    annotated = {name: _read(annotation) for name, annotation in inspect.get_annotations(found).items()}
    return {name: accepted for name, accepted in annotated.items() if accepted is not None}


def _read(annotation: object) -> Accepted | None:
    """The plain types of an annotation, or None if it names anything else.

    >>> sorted(_read("Optional[int] | Literal['auto']").types), _read("Path | int")
    (['None', 'int'], None)
    """
    types: set[str] = set()
    literals: list[object] = []
    todo = [_type_of(annotation) if isinstance(annotation, str) else annotation]
    while todo:
        part = todo.pop()
        origin = get_origin(part) or part
        if origin in (Union, UnionType):
            todo += get_args(part)
        elif origin is Annotated:
            todo.append(get_args(part)[0])
        elif origin is Literal:
            literals += get_args(part)
        elif isinstance(origin, Hashable) and origin in _KINDS:
            types.add(_KINDS[origin])
        else:
            return None
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return Accepted(_TYPING.sub("", text), frozenset(types), tuple(literals))


def _type_of(text: str) -> object:
    """The type of an annotation that is made of Python's own names; `object` for any other. Nothing is computed."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        is_plain = all(isinstance(part, _PARTS) for part in ast.walk(tree))
        return eval(compile(tree, "annotation", "eval"), {**_NAMES, "__builtins__": {}}) if is_plain else object
    except (SyntaxError, NameError, AttributeError, TypeError, RecursionError):
        return object
