"""Compares the values a template gives with the annotations of the callable it names.

Only what can't be meant is reported: the text "ten" for a number, a list for a flag. Annotations are read as text and
never evaluated; one that names anything but Python's own plain types accepts every value.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forgather_mem.config.construction.signature_check import python_function
from forgather_mem.config.graph.nodes import DictNode, ListNode, Value, VarNode, shortened_text
from forgather_mem.errors import did_you_mean

_SEQUENCES = frozenset({"list", "List", "tuple", "Tuple"})
_MAPPINGS = frozenset({"dict", "Dict", "Mapping", "MutableMapping"})
_SCALARS = frozenset({"int", "float", "bool", "str", "None"})


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
        if isinstance(value, ListNode) or (isinstance(value, DictNode) and value.form == "dlist"):
            return None if "list" in self.types else (f"takes {self.text}; this is a list", None)
        if isinstance(value, DictNode):
            return None if "dict" in self.types else (f"takes {self.text}; this is a mapping", None)
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
        if self.types & {"int", "float"} and _is_number(text):
            return None
        choices = [choice for choice in self.literals if isinstance(choice, str)]
        return f"takes {self.text}; {shortened_text(text)!r} is text", did_you_mean(text, choices)


def accepted_by(function: Callable[..., object]) -> dict[str, Accepted]:
    """What each annotated parameter accepts, as far as that is certain; nothing for what is not written in Python."""
    found = python_function(function)
    is_stated = isinstance(function, type) and getattr(function, "__signature__", None) is not None
    if found is None or is_stated or hasattr(found, "__wrapped__"):
        return {}
    accepted = {}
    for name, annotation in inspect.get_annotations(found).items():
        text = _text(annotation)
        if text is not None and (one := _read(text)) is not None:
            accepted[name] = one
    return accepted


def _text(annotation: object) -> str | None:
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, type) and annotation.__module__ == "builtins" and type(annotation) is type:
        return annotation.__name__
    if annotation is None:
        return "None"
    return repr(annotation) if type(annotation).__module__ in ("typing", "types") else None


def _read(text: str) -> Accepted | None:
    """The plain types of an annotation, or None if it names anything else.

    >>> sorted(_read("Optional[int] | Literal['auto']").types), _read("Path | int")
    (['None', 'int'], None)
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None
    types: set[str] = set()
    literals: list[object] = []
    for part in _parts(tree):
        name = _name(part.value if isinstance(part, ast.Subscript) else part)
        if name == "NoneType" or (isinstance(part, ast.Constant) and part.value is None):
            types.add("None")
        elif name == "Literal" and isinstance(part, ast.Subscript):
            choices = part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
            literals += [choice.value for choice in choices if isinstance(choice, ast.Constant)]
            if not all(isinstance(choice, ast.Constant) for choice in choices):
                return None
        elif name in _SCALARS:
            types.add(name)
        elif name in _SEQUENCES:
            types.add("list")
        elif name in _MAPPINGS:
            types.add("dict")
        else:
            return None
    return Accepted(
        ast.unparse(tree).replace("typing.", "").replace("collections.abc.", ""), frozenset(types), tuple(literals)
    )


def _parts(tree: ast.expr) -> Iterator[ast.expr]:
    """The alternatives of a union."""
    todo = [tree]
    while todo:
        part = todo.pop()
        name = _name(part.value) if isinstance(part, ast.Subscript) else ""
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr):
            todo += [part.left, part.right]
        elif isinstance(part, ast.Subscript) and name == "Optional":
            yield ast.Constant(None)
            todo.append(part.slice)
        elif isinstance(part, ast.Subscript) and name == "Union":
            todo += part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
        elif isinstance(part, ast.Subscript) and name == "Annotated" and isinstance(part.slice, ast.Tuple):
            todo.append(part.slice.elts[0])
        else:
            yield part


def _name(tree: ast.expr) -> str:
    """The name of a type, with or without `typing.` before it."""
    if isinstance(tree, ast.Attribute):
        return tree.attr if ast.unparse(tree.value) in ("typing", "t", "collections.abc", "abc") else ""
    return tree.id if isinstance(tree, ast.Name) else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
