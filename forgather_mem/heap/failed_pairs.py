"""Recognises differences of all pairs of rows, made by broadcasting."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import FrameType

from forgather_mem.heap.failed_statement import scope_of
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.syntax import without_inner

_TO_DISTANCES = frozenset({"pow", "square", "abs", "norm"})


def pairs_made(frame: FrameType, number: int) -> tuple[int, int, int] | None:
    """The sizes of `left[:, None] - right[None]` in the function, of (rows, numbers) each; None without such.

    Only where distances are made of it, which `torch.cdist` makes without it.
    """
    scope = scope_of(frame, number)
    parts = list(without_inner(scope)) if scope is not None else []
    makes = {getattr(part, "attr", None) for part in parts} & _TO_DISTANCES
    if not makes and not any(isinstance(part, ast.Pow) for part in parts):
        return None
    variables = frame_variables(frame)
    for part in parts:
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and part.lineno <= number:
            sides = [_broadcast(side, variables) for side in (part.left, part.right)]
            left, right = sides
            if left is not None and right is not None and left[1] == right[1] not in (left[0], right[0]):
                return left[0], right[0], left[1]
    return None


def _broadcast(node: ast.expr, variables: Mapping[str, object]) -> tuple[int, int] | None:
    """The shape of the variable that this gives one more dimension."""
    adds = any(_is_unsqueeze(part) for part in ast.walk(node)) or any(_is_none_index(part) for part in ast.walk(node))
    shapes = (getattr(variables.get(name), "shape", None) for name in _names(node))
    shape = next((tuple(shape) for shape in shapes if shape is not None), ())
    return (shape[0], shape[1]) if adds and len(shape) == 2 else None


def _is_unsqueeze(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "unsqueeze"


def _is_none_index(node: ast.AST) -> bool:
    if not isinstance(node, ast.Subscript):
        return False
    parts = getattr(node.slice, "elts", [node.slice])
    return any(isinstance(part, ast.Constant) and part.value is None for part in parts)


def _names(node: ast.AST) -> Iterator[str]:
    return (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
