"""What a line of the user's own was doing when memory ran out: on which tensors, and whether for a backward pass."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from forgather_mem.heap.failed_lines import called, scope_of
from forgather_mem.heap.source_lines import is_user_file, place
from forgather_mem.heap.syntax import tree_of, without_inner
from forgather_mem.heap.variables import frame_variables

_MOST_OPERANDS = 2
_BACKWARD = frozenset({"backward", "manual_backward", "grad"})
_LOADERS = ("torch/utils/data/", "transformers/trainer.py", "lightning/", "accelerate/data_loader.py")
_MODULE_FILE = "torch/nn/modules/"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOperation:
    """Plain text and numbers.

    Attributes:
        function: The name of the function around the line.
        operands: Name and shape of the largest tensors or arrays that the line names, the largest first.
        at_once: How many arrays as large as its result the line's expression holds at a time.
        graph_in_vain: The line of the user's own whose pass through a model keeps what no backward pass comes for.
        is_loaders: Whether a library asked for it, as a DataLoader does for a batch.
    """

    function: str
    operands: tuple[tuple[str, tuple[int, ...]], ...] = ()
    at_once: int = 1
    graph_in_vain: str | None = None
    is_loaders: bool = False

    @property
    def named(self) -> str:
        """The operands for people.

        >>> FailedOperation(function="iou", operands=(("a", (3072, 4)), ("b", (4000, 4)))).named
        '`a` (3,072 x 4) and `b` (4,000 x 4)'
        """
        return " and ".join(f"`{name}` ({' x '.join(f'{size:,}' for size in shape)})" for name, shape in self.operands)


def failed_operation(failed: Sequence[tuple[FrameType, int]]) -> FailedOperation | None:
    """What the innermost line of the user's own was doing; None without one.

    Args:
        failed: The frames of the traceback with their lines, outermost first.
    """
    users = [here for here in failed if is_user_file(here[0].f_code.co_filename)]
    if not users:
        return None
    frame, number = users[-1]
    statement = _statement(frame, number)
    return FailedOperation(
        function=frame.f_code.co_name,
        operands=tuple(_operands(frame, statement)),
        at_once=_at_once(statement),
        graph_in_vain=_graph_in_vain(failed),
        is_loaders=any(part in _file(frame) for frame, _ in failed for part in _LOADERS),
    )


def _operands(frame: FrameType, statement: ast.stmt | None) -> list[tuple[str, tuple[int, ...]]]:
    named = {part.id for part in ast.walk(statement) if isinstance(part, ast.Name)} if statement is not None else set()
    shapes = [
        (name, tuple(value.shape))
        for name, value in frame_variables(frame).items()
        if name in named and getattr(value, "shape", None) and all(isinstance(size, int) for size in value.shape)
    ]
    return sorted(shapes, key=lambda shape: -math.prod(shape[1]))[:_MOST_OPERANDS]


def _at_once(statement: ast.stmt | None) -> int:
    """Two where an operation on arrays takes the result of another one, else one."""
    operations = [part for part in ast.walk(statement) if isinstance(part, ast.BinOp)] if statement is not None else []
    return 2 if len(operations) > 1 else 1


def _graph_in_vain(failed: Sequence[tuple[FrameType, int]]) -> str | None:
    """The line that calls a model outside of a library's loop, if the model records and no line after it goes back."""
    calls = [position for position, (frame, _) in enumerate(failed) if _MODULE_FILE in _file(frame)]
    if not calls or not any(_has_graph(frame) for frame, _ in failed[calls[0] :]):
        return None
    callers = failed[: calls[0]]
    if not callers or any(not is_user_file(frame.f_code.co_filename) for frame, _ in callers):
        return None  # what calls a function of the user's may go back itself
    if any(_goes_back(frame, number) for frame, number in callers):
        return None
    frame, number = callers[-1]
    return place(frame.f_code.co_filename, number)


def _has_graph(frame: FrameType) -> bool:
    return any(getattr(value, "grad_fn", None) is not None for value in frame_variables(frame).values())


def _goes_back(frame: FrameType, number: int) -> bool:
    """Whether the function calls a backward pass on this line or after it, itself or in a function of its file."""
    scope, tree = scope_of(frame, number), tree_of(frame.f_code.co_filename)
    if scope is None or tree is None:
        return True
    functions = (part for part in ast.walk(tree) if isinstance(part, ast.FunctionDef))
    others = {part.name for part in functions if not _BACKWARD.isdisjoint(map(called, _calls(part)))}
    return any(
        (called(call) in _BACKWARD and call.lineno >= number) or (called(call) in others and call.lineno > number)
        for call in _calls(scope)
    )


def _calls(scope: ast.AST) -> Iterator[ast.Call]:
    return (part for part in without_inner(scope) if isinstance(part, ast.Call))


def _statement(frame: FrameType, number: int) -> ast.stmt | None:
    """The smallest statement on this line."""
    scope = scope_of(frame, number)
    around: list[Any] = [
        part
        for part in (without_inner(scope) if scope is not None else ())
        if isinstance(part, ast.stmt) and part.lineno <= number <= (part.end_lineno or 0)
    ]
    return max(around, key=lambda part: part.lineno, default=None)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.replace("\\", "/")
