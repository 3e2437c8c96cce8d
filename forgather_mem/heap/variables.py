"""Clears the variables that a running statement assigns to, leaving no references behind."""

from __future__ import annotations

import ast
import ctypes
import itertools
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from forgather_mem.source.frame_variables import drop_snapshot, is_function
from forgather_mem.source.syntax import tree_of

# What is written over a function's variable from outside stays in its frame, for as long as it runs
_FRAMES_KEEP = sys.version_info >= (3, 14)


def empty_assigned(frame: FrameType, objects: Sequence[object]) -> list[str]:
    """Sets to None the targets of the calling assignment statement that hold one of these objects.

    In `model, opt = release_memory(model, opt)` the caller's variables keep both objects alive until the call has
    returned, so collecting or clearing inside the call can't free them. The source of the statement shows which
    variables are assigned; without source none is cleared.

    Supported targets are names, attributes and items with a constant key; from any other target on, the rest is
    unchanged until the assignment. So are variables of a function as of Python 3.14, where only the function itself can
    free what they hold.

    Args:
        frame: The caller, at the call.
        objects: Compared by identity.

    Returns:
        The names of the function's variables that hold one of them until the assignment.
    """
    left = []
    for target in itertools.takewhile(_is_plain, _targets(frame)):
        value = _read(frame, target)
        if value is not None and any(value is thing for thing in objects):
            name = getattr(target, "id", "")
            own = set(frame.f_code.co_varnames).difference(frame.f_code.co_cellvars)
            if _FRAMES_KEEP and is_function(frame) and name in own:
                left.append(name)
            else:
                _clear(frame, target)
    drop_snapshot(frame)
    return left


def _targets(frame: FrameType) -> list[ast.expr]:
    """What the results of the call at which the frame stands are assigned to, in order."""
    call = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    for node in ast.walk(tree_of(frame.f_code.co_filename) or ast.Module([], [])):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple | ast.List):
            value = node.value
            if (value.lineno, value.end_lineno, value.col_offset, value.end_col_offset) == call:
                return node.targets[0].elts
    return []


def _is_plain(target: ast.expr) -> bool:
    if isinstance(target, ast.Attribute):
        return _is_plain(target.value)
    is_item = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
    return isinstance(target, ast.Name) or (is_item and _is_plain(target.value))  # type: ignore[attr-defined]


def _read(frame: FrameType, target: ast.expr) -> Any:
    """The value of a target; None for one that has none yet."""
    if isinstance(target, ast.Attribute):
        return getattr(_read(frame, target.value), target.attr, None)
    if isinstance(target, ast.Name):
        namespaces = frame.f_locals, frame.f_globals, frame.f_builtins
        return next((names[target.id] for names in namespaces if target.id in names), None)
    try:
        return _read(frame, target.value)[target.slice.value]  # type: ignore[attr-defined]
    except (KeyError, IndexError, TypeError):
        return None


def _clear(frame: FrameType, target: ast.expr) -> None:
    if isinstance(target, ast.Attribute):
        setattr(_read(frame, target.value), target.attr, None)
    elif isinstance(target, ast.Subscript):
        _read(frame, target.value)[target.slice.value] = None  # type: ignore[attr-defined]
    elif isinstance(target, ast.Name):
        namespace = frame.f_locals
        (namespace if target.id in namespace else frame.f_globals)[target.id] = None
        # f_locals is a copy before Python 3.13; this writes it back, as debuggers do. Reading f_locals again would
        # undo it
        take_over = getattr(ctypes.pythonapi, "PyFrame_LocalsToFast", None)
        if sys.version_info < (3, 13) and is_function(frame) and take_over is not None:
            take_over(ctypes.py_object(frame), ctypes.c_int(0))
