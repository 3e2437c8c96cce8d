"""Finds the statement of a failed line in the source, and what its function calls before and after it."""

from __future__ import annotations

import ast
from types import FrameType

from forgather_mem.source.syntax import calls_in, functions_in, tree_of, without_inner

_BACKWARD = ("backward", "grad")  # how the names of what goes back end
_NO_PASS = frozenset({"zero_grad", "no_grad", "before_zero_grad"})
_LOOPS = ast.For | ast.AsyncFor | ast.While
_FILLS = frozenset({"append", "extend", "add", "insert", "update"})


def scope_of(frame: FrameType, number: int) -> ast.AST | None:
    """The function around this line, or else its file; None without source."""
    tree = tree_of(frame.f_code.co_filename)
    if tree is None:
        return None
    around = (node for node in functions_in(tree) if holds(node, number))
    return max(around, key=lambda node: node.lineno, default=tree)


def statement_of(frame: FrameType, number: int) -> ast.stmt | None:
    """The smallest statement on this line."""
    scope = scope_of(frame, number)
    parts = without_inner(scope) if scope is not None else ()
    around = (part for part in parts if isinstance(part, ast.stmt) and part.lineno <= number <= (part.end_lineno or 0))
    return max(around, key=lambda part: part.lineno, default=None)


def holds(node: ast.AST, number: int) -> bool:
    """Whether the node contains this line, after its first one; a file contains all of its lines."""
    return int(getattr(node, "lineno", number)) < number <= (getattr(node, "end_lineno", None) or 0)


def called_name(call: ast.Call) -> str | None:
    """
    >>> called_name(ast.parse("loss.backward()").body[0].value)
    'backward'
    """
    return getattr(call.func, "attr", None) or getattr(call.func, "id", None)


def goes_back(frame: FrameType, number: int) -> bool:
    """Whether the function calls a backward pass on this line or later, itself or through a function of its file."""
    scope, others = scope_of(frame, number), _functions_that_go_back(frame)
    if scope is None or others is None:
        return True
    named = (part for part in without_inner(scope) if _name(part) in others)  # also as an optimizer's closure
    return any(_called_back(call) and call.lineno >= number for call in calls_in(scope)) or any(
        int(getattr(part, "lineno", 0)) > number for part in named
    )


def trains(frame: FrameType, number: int) -> bool:
    """Whether the function around this line calls a backward pass anywhere, itself or in a function of its file."""
    scope, others = scope_of(frame, number), _functions_that_go_back(frame)
    if scope is None or others is None:
        return True
    return _goes_back_in(scope, others)


def feeds_training(frame: FrameType, number: int) -> bool:
    """Whether the line creates what the function trains with: batches, or a data set.

    So it is for the head of a loop whose body trains, and for a variable that a loop or a function that trains gets.
    """
    scope, others = scope_of(frame, number), _functions_that_go_back(frame)
    statement = statement_of(frame, number)
    if scope is None or others is None or statement is None:
        return False
    if isinstance(statement, ast.For | ast.AsyncFor):
        return _goes_back_in(ast.Module(body=statement.body, type_ignores=[]), others)
    made = _stored(statement)
    for part in without_inner(scope):
        if isinstance(part, ast.For | ast.AsyncFor) and made & loaded_in(part.iter):
            if _goes_back_in(ast.Module(body=part.body, type_ignores=[]), others):
                return True
        elif isinstance(part, ast.Call) and called_name(part) in others:
            given = [*part.args, *(keyword.value for keyword in part.keywords)]
            if any(made & loaded_in(value) for value in given):
                return True
    return False


def in_same_loop(frame: FrameType, first: int, second: int) -> bool:
    """Whether both lines are in the body of the innermost loop around the second one."""
    scope = scope_of(frame, second)
    loops = (
        part for part in (without_inner(scope) if scope else ()) if isinstance(part, _LOOPS) and holds(part, second)
    )
    loop = max(loops, key=lambda part: part.lineno, default=None)
    return loop is not None and holds(loop, first)


def names_in(statement: ast.AST | None) -> set[str]:
    """All names in a statement, attributes included: {"q", "self", "self.bank"}."""
    parts = list(ast.walk(statement)) if statement is not None else []
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    attributes = (part for part in parts if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name))
    return names | {ast.unparse(part) for part in attributes}


def _functions_that_go_back(frame: FrameType) -> set[str] | None:
    """The names of functions in the frame's file that call a backward pass; None without source."""
    tree = tree_of(frame.f_code.co_filename)
    if tree is None:
        return None
    functions = (part for part in functions_in(tree) if isinstance(part, ast.FunctionDef))
    return {part.name for part in functions if any(map(_called_back, calls_in(part)))}


def _goes_back_in(scope: ast.AST, others: set[str]) -> bool:
    return any(map(_called_back, calls_in(scope))) or any(_name(part) in others for part in without_inner(scope))


def _called_back(call: ast.Call) -> bool:
    return (called_name(call) or "").endswith(_BACKWARD) and called_name(call) not in _NO_PASS


def _name(part: ast.AST) -> str | None:
    return getattr(part, "id", None) if isinstance(part, ast.Name) else getattr(part, "attr", None)


def _stored(statement: ast.stmt) -> set[str]:
    """The variables that the statement assigns or fills."""
    stored = {part.id for part in ast.walk(statement) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    calls = (part for part in ast.walk(statement) if isinstance(part, ast.Call) and called_name(part) in _FILLS)
    filled = (call.func.value for call in calls if isinstance(call.func, ast.Attribute))
    return stored | {part.id for part in filled if isinstance(part, ast.Name)}


def loaded_in(node: ast.AST) -> set[str]:
    """The variables that a statement reads."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
