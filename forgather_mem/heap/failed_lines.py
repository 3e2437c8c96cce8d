"""Reads from the source of failed functions what has been done before, and what was to become of what failed."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Sequence
from types import FrameType

from forgather_mem.heap.source_lines import is_user_file, place
from forgather_mem.heap.syntax import Function, tree_of, without_inner

_TRAINS = ("backward", "train", "fit")
_LOADS = "get_batch_samples"  # of transformers' Trainer: all batches of a step are made before the first is used
_SAMPLE = ("__getitem__", "__getitems__")
_LINE_IN_TEXT = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (\S+)', re.M)
_STATEMENTS = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr


def may_train(frame: FrameType, number: int) -> bool:
    """Whether this line of the function is inside a loop, or after a line that trains."""
    scope = scope_of(frame, number)
    if scope is None:
        return True
    loops = (part for part in without_inner(scope) if isinstance(part, ast.For | ast.While | ast.AsyncFor))
    return any(_holds(loop, number) for loop in loops) or has_passed(frame, number, _TRAINS)


def has_passed(frame: FrameType, number: int, names: Collection[str]) -> bool:
    """Whether the function calls something of such a name on a line before this one."""
    scope = scope_of(frame, number)
    return scope is not None and any(
        isinstance(part, ast.Call) and part.lineno < number and called(part) in names for part in without_inner(scope)
    )


def is_closure(frame: FrameType) -> bool:
    """Whether it is a function of the user's that takes nothing, as what an optimizer's step calls for the loss."""
    code = frame.f_code
    takes = code.co_argcount + code.co_kwonlyargcount + (code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
    return takes == 0 and code.co_name != "<module>" and is_user_file(code.co_filename)


def stays_in_batch(frames: Sequence[FrameType]) -> bool:
    """Whether what a Trainer's collator could not make would be in memory until the end of its step.

    The Trainer makes all batches of a step first: what stays in them takes as much in smaller ones.
    """
    names = [frame.f_code.co_name for frame in frames]
    if _LOADS not in names:
        return False
    inner = frames[len(names) - names[::-1].index(_LOADS) :]
    if any(frame.f_code.co_name in _SAMPLE for frame in inner):
        return False
    users = (frame for frame in inner if is_user_file(frame.f_code.co_filename))
    collator = next(users, None)
    return collator is None or _is_returned(collator)


def user_line(failed: Sequence[tuple[FrameType, int]], error: BaseException) -> tuple[str | None, bool]:
    """The innermost line of the user's own code ("train.py:41"), and whether it is in the making of one sample.

    Args:
        failed: The frames of the traceback with their lines, outermost first.
        error: The error: a data worker's traceback arrives as its text alone.
    """
    lines = [(frame.f_code.co_filename, number, frame.f_code.co_name) for frame, number in failed]
    lines += [(file, int(number), name) for file, number, name in _LINE_IN_TEXT.findall(_text(error))]
    own = [place(file, number) for file, number, _ in lines if is_user_file(file)]
    return own[-1] if own else None, any(name in _SAMPLE for _, _, name in lines)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except MemoryError:  # it is only made now
        return ""


def _is_returned(frame: FrameType) -> bool:
    """Whether the function returns what its current line assigns."""
    scope = scope_of(frame, frame.f_lineno)
    if scope is None:
        return False
    parts = [part for part in without_inner(scope) if isinstance(part, _STATEMENTS)]
    here = [part for part in parts if part.lineno <= frame.f_lineno <= (part.end_lineno or 0)]
    if any(isinstance(part, ast.Return) for part in here):
        return True
    assigned = {name for part in here for name in _names(part, ast.Store)}
    returned = {name for part in parts if isinstance(part, ast.Return) for name in _names(part, ast.Load)}
    return not assigned.isdisjoint(returned)


def _names(node: ast.AST, context: type[ast.expr_context]) -> list[str]:
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, context)]


def scope_of(frame: FrameType, number: int) -> ast.AST | None:
    """The function around this line, or else its file; None without source."""
    tree = tree_of(frame.f_code.co_filename)
    if tree is None:
        return None
    around = (node for node in ast.walk(tree) if isinstance(node, Function) and _holds(node, number))
    return max(around, key=lambda node: node.lineno, default=tree)


def _holds(node: ast.AST, number: int) -> bool:
    return int(getattr(node, "lineno", number)) < number <= (getattr(node, "end_lineno", None) or 0)


def called(call: ast.Call) -> str | None:
    """
    >>> called(ast.parse("loss.backward()").body[0].value)
    'backward'
    """
    return getattr(call.func, "attr", None) or getattr(call.func, "id", None)
