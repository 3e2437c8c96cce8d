"""Reads from failed functions what was done before, what the failed line works on, and what was to become of it."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TypeGuard

from forgather_mem.heap.failed_callback import copied_state
from forgather_mem.heap.failed_statement import (
    called_name,
    feeds_training,
    goes_back,
    holds,
    loaded_in,
    scope_of,
    statement_of,
)
from forgather_mem.heap.graphs.failed_graph import VainGraph, file_of, in_modules, split_at_pass, vain_graph
from forgather_mem.heap.graphs.failed_teacher import vain_teacher
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import is_user_file, line_name
from forgather_mem.source.syntax import without_inner

_TRAINS = ("backward", "train", "fit")
_SAMPLE = ("__getitem__", "__getitems__")
_LINE_IN_TEXT = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (\S+)', re.M)
_MOST_OPERANDS = 2
_LOADERS = ("torch/utils/data/", "transformers/trainer.py", "lightning/", "accelerate/data_loader.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOperation:
    """Plain text and numbers.

    Attributes:
        operands: Name and shape of the largest tensors or arrays that the line names, the largest first; in a backward
            pass of what else than a model is trained.
        at_once: How many arrays as large as its result the line's expression holds at a time.
        graph: What is kept for a backward pass that does not come.
        loader_rows: The batch size of the data loaders among the variables of the user's functions, if it is one.
        is_loaders: Whether a library asked for it, as a DataLoader does for a batch.
        in_pass: Whether the line is in a module's forward pass.
        evaluates: Whether a module in evaluation mode was running, and no function of the user's goes back after it.
        feeds_training: Whether what was being made is what is trained with.
        of_graph: Whether the line names a tensor that a backward pass goes through.
        teacher: The line that calls a second model which nobody trains, with gradients on.
        copied_bytes: Size of the tensors that `copy.deepcopy` was to copy; None if it was not running.
        copied: Which of "model" and "optimizer" they are.
    """

    operands: tuple[tuple[str, tuple[int, ...]], ...] = ()
    at_once: int = 1
    graph: VainGraph | None = None
    loader_rows: int | None = None
    is_loaders: bool = False
    in_pass: bool = False
    evaluates: bool = False
    feeds_training: bool = False
    of_graph: bool = False
    teacher: str | None = None
    copied_bytes: int | None = None
    copied: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The operands for people.

        >>> FailedOperation(operands=(("a", (3072, 4)), ("b", (4000, 4)))).named
        '`a` (3,072 x 4) and `b` (4,000 x 4)'
        """
        return " and ".join(f"`{name}` ({' x '.join(f'{size:,}' for size in shape)})" for name, shape in self.operands)


def failed_operation(
    failed: Sequence[tuple[FrameType, int]], model: object = None, optimizer: object = None
) -> FailedOperation | None:
    """What the innermost line of the user's code was doing; None without one.

    Args:
        failed: The frames of the traceback with their lines, outermost first.
        model, optimizer: Those being trained.
    """
    users = [here for here in failed if is_user_file(here[0].f_code.co_filename)]
    if not users:
        return None
    frame, number = users[-1]
    statement = statement_of(frame, number)
    before = [inner for inner, _ in failed[: failed.index(users[-1])]]
    copied_bytes, copied = copied_state([inner for inner, _ in failed], model, optimizer)
    return FailedOperation(
        operands=tuple(_operands(frame, statement)),
        at_once=_at_once(statement),
        graph=vain_graph(failed),
        loader_rows=_loader_rows([frame for frame, _ in users]),
        is_loaders=any(part in file_of(frame) for frame, _ in failed for part in _LOADERS),
        in_pass=any(True for _ in in_modules(before)),
        evaluates=_evaluates(failed),
        feeds_training=feeds_training(frame, number) or any(_is_loop_head(*here) for here in users),
        of_graph=_is_of_graph(frame, statement),
        teacher=vain_teacher(failed, model, optimizer),
        copied_bytes=copied_bytes,
        copied=copied,
    )


def may_train(frame: FrameType, number: int) -> bool:
    """Whether this line of the function is inside a loop, or after a line that trains."""
    scope = scope_of(frame, number)
    if scope is None:
        return True
    loops = (part for part in without_inner(scope) if isinstance(part, ast.For | ast.While | ast.AsyncFor))
    return any(holds(loop, number) for loop in loops) or has_passed(frame, number, _TRAINS)


def has_passed(frame: FrameType, number: int, names: Collection[str]) -> bool:
    """Whether the function calls something of such a name on a line before this one."""
    scope = scope_of(frame, number)
    return scope is not None and any(
        isinstance(part, ast.Call) and part.lineno < number and called_name(part) in names
        for part in without_inner(scope)
    )


def is_closure(frame: FrameType) -> bool:
    """Whether it is a function of the user's that takes nothing, as what an optimizer's step calls for the loss."""
    code = frame.f_code
    takes = code.co_argcount + code.co_kwonlyargcount + (code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
    return takes == 0 and code.co_name != "<module>" and is_user_file(code.co_filename)


def user_line(failed: Sequence[tuple[FrameType, int]], error: BaseException) -> tuple[str | None, bool]:
    """The innermost line of the user's own code ("train.py:41"), and whether it is in the making of one sample.

    Args:
        failed: The frames of the traceback with their lines, outermost first.
        error: The error: a data worker's traceback arrives as its text alone.
    """
    lines = [(frame.f_code.co_filename, number, frame.f_code.co_name) for frame, number in failed]
    lines += [(file, int(number), name) for file, number, name in _LINE_IN_TEXT.findall(_text(error))]
    own = [line_name(file, number) for file, number, _ in lines if is_user_file(file)]
    return own[-1] if own else None, any(name in _SAMPLE for _, _, name in lines)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except MemoryError:  # it is only made now
        return ""


def _is_of_graph(frame: FrameType, statement: ast.stmt | None) -> bool:
    named = loaded_in(statement) if statement is not None else set()
    values = (value for name, value in frame_variables(frame).items() if name in named)
    return any(getattr(value, "grad_fn", None) is not None for value in values)


def _operands(frame: FrameType, statement: ast.stmt | None) -> list[tuple[str, tuple[int, ...]]]:
    named = loaded_in(statement) if statement is not None else set()
    variables = frame_variables(frame)
    values = [(name, value) for name, value in variables.items() if name in named or _is_trained(value)]
    shapes = [(name, tuple(shape)) for name, value in values if _is_shape(shape := getattr(value, "shape", None))]
    return sorted(shapes, key=lambda shape: -math.prod(shape[1]))[:_MOST_OPERANDS]


def _is_shape(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and bool(value) and all(isinstance(size, int) for size in value)


def _is_trained(value: object) -> bool:
    """A tensor that an optimizer changes, and that belongs to no model."""
    return bool(getattr(value, "is_leaf", False) and getattr(value, "requires_grad", False))


def _loader_rows(frames: Sequence[FrameType]) -> int | None:
    sizes = {
        getattr(value, "batch_size", None)
        for frame in frames
        for value in frame_variables(frame).values()
        if any(cls.__name__ == "DataLoader" for cls in type(value).__mro__)
    }
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def _at_once(statement: ast.stmt | None) -> int:
    """2 if one operation on arrays takes the result of another, else 1."""
    operations = [part for part in ast.walk(statement) if isinstance(part, ast.BinOp)] if statement is not None else []
    return 2 if len(operations) > 1 else 1


def _evaluates(failed: Sequence[tuple[FrameType, int]]) -> bool:
    callers, inside = split_at_pass(failed)
    outermost = next(in_modules(frame for frame, _ in inside), None)
    is_eval = getattr(outermost, "training", True) is False
    return is_eval and bool(callers) and not any(goes_back(*here) for here in callers)


def _is_loop_head(frame: FrameType, number: int) -> bool:
    return isinstance(statement_of(frame, number), ast.For | ast.AsyncFor) and feeds_training(frame, number)
