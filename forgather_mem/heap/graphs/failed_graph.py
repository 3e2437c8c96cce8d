"""Recognises a graph that is kept for a backward pass which does not come, by where memory ran out."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from forgather_mem.heap.failed_statement import goes_back, names_in, scope_of, statement_of, trains
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import is_user_file, line_name
from forgather_mem.source.syntax import without_inner

Failed = Sequence[tuple[FrameType, int]]
MODULE_FILE = "torch/nn/modules/"
# What these call is done for itself: no library goes back through data, or through what an event's code makes.
_BOUNDARIES = frozenset({"call_event", "_call_callback_hooks", "_call_lightning_module_hook", "_next_data", "fetch"})
_WITHOUT = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})
_CONTAINERS = (list, tuple)
_MOST_ITEMS = 8  # of a container, which are alike


@dataclass(frozen=True, slots=True, kw_only=True)
class VainGraph:
    """A graph for which no backward pass comes.

    Attributes:
        line: The line of the user's own that makes it: that calls the model, or the function that has done so.
        name: The variable that holds it, where the function that makes it also trains.
        function: File and first and last line of the function that makes it, if that is done already.
    """

    line: str
    name: str | None = None
    function: tuple[str, int, int] | None = None

    def is_made_by(self, line: str | None) -> bool:
        """Whether a pass that this line ("train.py:41") calls makes it."""
        if line is None or self.function is None:
            return line == self.line
        file, first, last = self.function
        name, _, number = line.rpartition(":")
        return name == file and first <= int(number) <= last


def vain_graph(failed: Failed) -> VainGraph | None:
    """What is known of such a graph; None where there is none, or where a backward pass may follow.

    Args:
        failed: The frames of the traceback with their lines, outermost first.
    """
    callers, inside = split_at_pass(failed)
    if not callers or any(goes_back(*here) for here in callers):
        return None
    return _of_pass(failed, callers, inside) if inside else _of_results(callers)


def split_at_pass(failed: Failed) -> tuple[Failed, Failed]:
    """The user's functions on the way to the outermost module, and what runs in that.

    The first part is empty where a library that may go back itself has called one of them.
    """
    passes = [position for position, (frame, _) in enumerate(failed) if MODULE_FILE in file_of(frame)]
    first = passes[0] if passes else len(failed)
    callers = failed[:first]
    begins = [position for position, (frame, _) in enumerate(callers) if frame.f_code.co_name in _BOUNDARIES]
    callers = callers[begins[-1] + 1 :] if begins else callers
    of_user = [here for here in callers if is_user_file(here[0].f_code.co_filename)]
    if not of_user:
        return (), failed[first:]
    last = callers.index(of_user[-1])  # after it, functions of libraries that the line calls
    between = [frame for frame, _ in callers[:last] if not is_user_file(frame.f_code.co_filename)]
    return (() if any(map(_may_go_back, between)) else of_user), failed[first:]


def file_of(frame: FrameType) -> str:
    """The path of the frame's file, with slashes."""
    return frame.f_code.co_filename.replace("\\", "/")


def _has_graph(value: object) -> bool:
    """Whether it is a tensor that a backward pass could begin at, or a list of such."""
    if isinstance(value, _CONTAINERS):
        return any(getattr(part, "grad_fn", None) is not None for part in value[:_MOST_ITEMS])
    return getattr(value, "grad_fn", None) is not None


def _may_go_back(frame: FrameType) -> bool:
    """Whether a library's function may call a backward pass: Python's own and torch's decorators don't."""
    return not file_of(frame).endswith(("torch/utils/_contextlib.py", "/contextlib.py", "/functools.py"))


def _of_pass(failed: Failed, callers: Failed, inside: Failed) -> VainGraph | None:
    frame, number = callers[-1]
    if any(_has_any_graph(inner) for inner, _ in inside) or _records(failed, inside[0][0], callers):
        return VainGraph(line=line_name(frame.f_code.co_filename, number))
    return None


def _has_any_graph(frame: FrameType) -> bool:
    return any(getattr(value, "grad_fn", None) is not None for value in frame_variables(frame).values())


def _records(failed: Failed, outermost: FrameType, callers: Failed) -> bool:
    """Whether a pass that has no result yet keeps a graph, as far as the source of all functions shows."""
    torch = sys.modules.get("torch")
    module: Any = frame_variables(outermost).get("self")
    if torch is None or not torch.is_grad_enabled() or not isinstance(module, torch.nn.Module):
        return False
    libraries = (
        frame for frame, _ in failed[: failed.index(callers[-1])] if not is_user_file(frame.f_code.co_filename)
    )
    if any(map(_may_go_back, libraries)) or any(is_without(*here) for here in callers):
        return False  # a library may have turned it off
    return any(parameter.requires_grad for parameter in module.parameters())


def is_without(frame: FrameType, number: int) -> bool:
    """Whether torch records no graph at this line; True without source."""
    scope = scope_of(frame, number)
    if scope is None:
        return True
    blocks = (part for part in without_inner(scope) if isinstance(part, ast.With) and _holds(part, number))
    marks = [item.context_expr for block in blocks for item in block.items]
    return any(_turns_off(mark) for mark in [*marks, *getattr(scope, "decorator_list", ())])


def _holds(block: ast.With, number: int) -> bool:
    return block.lineno <= number <= (block.end_lineno or 0)


def _turns_off(node: ast.AST) -> bool:
    return any(name.rpartition(".")[2] in _WITHOUT for name in names_in(node))


def _of_results(callers: Failed) -> VainGraph | None:
    """The graph of a forward pass that had ended before the failed line; None without one."""
    position, names = len(callers) - 1, _results(*callers[-1])
    # Who was given them has not made them
    while names and position and names <= _parameters(callers[position][0]):
        position -= 1
        names = _results(*callers[position], all_of_them=True)
    if not names:
        return None
    frame, number = callers[position]
    file, scope = frame.f_code.co_filename, scope_of(frame, number)
    name = min(names)
    if trains(frame, number) or not position or isinstance(scope, ast.Module) or scope is None:
        return VainGraph(line=line_name(file, number), name=name)
    caller, line = callers[position - 1]
    ends = int(getattr(scope, "lineno", 0)), int(getattr(scope, "end_lineno", 0) or 0)
    return VainGraph(
        line=line_name(caller.f_code.co_filename, line), function=(line_name(file, 0).partition(":")[0], *ends)
    )


def _results(frame: FrameType, number: int, all_of_them: bool = False) -> set[str]:
    """The variables with a graph that the line names, or that a function which does not train collects."""
    named = names_in(statement_of(frame, number))
    collects = not trains(frame, number)
    return {
        name
        for name, value in frame_variables(frame).items()
        if (name in named or all_of_them or (collects and isinstance(value, _CONTAINERS))) and _has_graph(value)
    }


def _parameters(frame: FrameType) -> set[str]:
    code = frame.f_code
    starred = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred])


def in_modules(frames: Iterable[FrameType]) -> Iterator[object]:
    """The modules that were running, outermost first."""
    for frame in frames:
        if MODULE_FILE in file_of(frame) and frame.f_code.co_name in ("_call_impl", "_wrapped_call_impl"):
            yield frame_variables(frame).get("self")
