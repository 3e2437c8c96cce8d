"""Recognises a second model in a training step that keeps what only its own backward pass would need."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import FrameType

from forgather_mem.heap.failed_statement import in_same_loop, scope_of
from forgather_mem.heap.graphs.failed_graph import Failed, is_without
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import is_user_file, line_name
from forgather_mem.source.syntax import without_inner


def vain_teacher(failed: Failed, model: object = None, optimizer: object = None) -> str | None:
    """The line that calls a model in evaluation mode with gradients on, though no optimizer has its parameters.

    A model whose input has a graph is not meant: the backward pass needs it, as with a loss from a frozen network.

    Args:
        failed: The frames of the traceback with their lines, outermost first.
        model, optimizer: Those being trained.
    """
    trained = _trained(model, optimizer)
    users = [here for here in failed if is_user_file(here[0].f_code.co_filename)]
    if not trained or any(is_without(*here) for here in users):
        return None
    for index in range(len(users) - 1, -1, -1):
        frame, number = users[index]
        variables = {**frame.f_globals, **frame_variables(frame)}
        for call in _calls_before(frame, number):
            if _is_others(_valued(call.func, variables), trained) and not _is_given_graph(call, variables):
                # The line of a function that is given its model is that of the trained one, too
                frame, line = (frame, call.lineno) if not _is_given(call.func, frame) or not index else users[index - 1]
                return line_name(frame.f_code.co_filename, line)
    return None


def _is_given(called: ast.AST, frame: FrameType) -> bool:
    """Whether the model that is called is the only one among the arguments of the function."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
    variables = frame_variables(frame)
    models = [name for name in names if name != "self" and hasattr(variables.get(name), "named_modules")]
    return isinstance(called, ast.Name) and models == [called.id]


def _trained(model: object, optimizer: object) -> set[int]:
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, list):
        return {id(parameter) for group in groups for parameter in group["params"]}
    return set(map(id, _parameters(model)))


def _calls_before(frame: FrameType, number: int) -> Iterator[ast.Call]:
    """The calls of the same step up to the failed line, without those for which torch records no graph."""
    scope = scope_of(frame, number)
    for part in without_inner(scope) if scope is not None else ():
        if not isinstance(part, ast.Call) or part.lineno > number or is_without(frame, part.lineno):
            continue
        if not isinstance(scope, ast.Module) or in_same_loop(frame, part.lineno, number):
            yield part


def _valued(node: ast.AST, variables: Mapping[str, object]) -> object:
    """The value of a variable, a submodule or a plain attribute; no property is computed."""
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return None
    mine = getattr(variables.get(node.value.id), "__dict__", {})
    return mine.get(node.attr) or (mine.get("_modules") or {}).get(node.attr)


def _is_others(value: object, trained: set[int]) -> bool:
    """Whether it is a module in evaluation mode with gradients enabled, none of whose parameters is trained."""
    if not hasattr(value, "named_modules") or getattr(value, "training", True):
        return False
    parameters = _parameters(value)
    records = any(getattr(one, "requires_grad", False) for one in parameters)
    return records and trained.isdisjoint(map(id, parameters))


def _parameters(module: object) -> list[object]:
    return list(module.parameters()) if hasattr(module, "parameters") else []


def _is_given_graph(call: ast.Call, variables: Mapping[str, object]) -> bool:
    """Whether an argument has a graph, or is made by a module in the call."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    values = [_valued(part, variables) for value in given for part in ast.walk(value)]
    values += [inner for value in values if isinstance(value, dict) for inner in value.values()]
    return any(getattr(value, "grad_fn", None) is not None or hasattr(value, "named_modules") for value in values)
