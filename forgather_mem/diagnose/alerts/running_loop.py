"""The user's loop that is running, as its code: whether it may end early, and what it keeps of each pass."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType, GeneratorType
from typing import Any

from forgather_mem.probes.live_objects import live_objects
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import is_user_file
from forgather_mem.source.syntax import forget_trees, tree_of

_LEAVE, _CUT = (ast.Break, ast.Return), ("islice", "zip")
_STEP = "validation_step"
_KEEPS_UNTIL_END = ("__init__", _STEP)


def may_leave() -> bool:
    """Whether the running loops of the user's innermost function with loops may be left before their data ends."""
    frame, loops = _running_loops()
    forget_trees()
    return frame is not None and any(_ends_early(loop) for loop in loops)


def running_passes(everywhere: bool) -> list[Any]:
    """The passes over data loaders that the running functions have in their variables, or in those of a generator.

    If there are none, as in a plain `for` loop, `everywhere` finds those among all objects, in up to 0.1 s.
    """
    loaders, frame = sys.modules.get("torch.utils.data.dataloader"), sys._getframe().f_back
    found: list[Any] = []
    while loaders is not None and frame is not None:
        for value in list(frame_variables(frame).values()):
            inner = value.gi_frame if isinstance(value, GeneratorType) else None
            values = list(frame_variables(inner).values()) if inner is not None else [value]
            found += [one for one in values if issubclass(type(one), loaders._BaseDataLoaderIter)]
        frame = frame.f_back
    if found or loaders is None or not everywhere or may_leave():
        return found
    return list(live_objects(loaders._BaseDataLoaderIter))


def names_of_module() -> set[str]:
    """All names and attributes in the module of these loops."""
    frame, _ = _running_loops()
    tree = tree_of(frame.f_code.co_filename) if frame is not None else None
    forget_trees()
    return {getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(tree)} if tree is not None else set()


def kept_lists(module: object, num_passes: int) -> list[list[object]]:
    """The lists to which the running loop has added something in each pass, and which nothing else can make shorter.

    They are variables to which a line of the loop appends, whatever it has computed, and that the loop names nowhere
    else. In Lightning, attributes to which `validation_step` appends, and that are else named for whole epochs only.

    Args:
        module: Lightning's, or another model.
        num_passes: Passes that are over.
    """
    found = list(_of_step(module) if hasattr(module, _STEP) else _of_loop())
    forget_trees()
    return [one for one in found if isinstance(one, list) and len(one) == num_passes]


def _running_loops() -> tuple[FrameType | None, list[ast.For | ast.While]]:
    """The innermost function of the user's with loops that are running, the outermost of them first."""
    frame = sys._getframe().f_back
    while frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        tree = tree_of(file) if is_user_file(file) else None
        loops = [one for one in ast.walk(tree) if isinstance(one, ast.For | ast.While)] if tree is not None else []
        loops = [loop for loop in loops if loop.lineno <= line <= (loop.end_lineno or 0)]
        if loops:
            return frame, loops
        frame = frame.f_back
    return None, []


def _ends_early(loop: ast.AST) -> bool:
    return any(
        isinstance(one, _LEAVE) or getattr(one, "id", getattr(one, "attr", "")) in _CUT for one in ast.walk(loop)
    )


def _of_loop() -> Iterator[object]:
    frame, loops = _running_loops()
    if frame is None or not isinstance(loops[-1], ast.For) or _ends_early(loops[-1]):
        return
    tree, variables, code = tree_of(frame.f_code.co_filename), frame_variables(frame), frame.f_code
    is_module = code.co_name == "<module>"
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)] if tree and is_module else []
    for name in _appended(loops[-1].body, loops[-1]):
        shared = name in code.co_cellvars or any(_mentions(function, name) for function in functions)
        if not shared:
            yield variables.get(name)


def _of_step(module: object) -> Iterator[object]:
    tree = tree_of(getattr(sys.modules.get(type(module).__module__), "__file__", None) or "")
    classes = [one for one in ast.walk(tree) if isinstance(one, ast.ClassDef)] if tree is not None else []
    methods = [
        one for of in classes if of.name == type(module).__name__ for one in of.body if isinstance(one, ast.FunctionDef)
    ]
    for step in methods:
        if step.name != _STEP:
            continue
        for name in _appended(step.body, step):
            others = [one.name for one in methods if one.name not in _KEEPS_UNTIL_END and _mentions(one, name)]
            owner, _, attribute = name.rpartition(".")
            if owner == step.args.args[0].arg and all("epoch" in other for other in others):
                yield getattr(module, attribute, None)


def _appended(body: Sequence[ast.stmt], whole: ast.AST) -> Iterator[str]:
    """What `whole` appends to in each pass, as it is written."""
    inside = list(ast.walk(whole))
    varying = {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    varying |= {one.arg for one in inside if isinstance(one, ast.arg)}
    tests = [test for one in inside for test in (getattr(one, "test", None), *getattr(one, "ifs", ())) if test]
    if any(isinstance(one, ast.Call) or getattr(one, "id", "") in varying for test in tests for one in ast.walk(test)):
        return  # it may do another thing in another pass
    if any(isinstance(one, ast.Try | ast.Continue) for one in inside):
        return
    for name in map(_list_of, _statements(body)):
        if name and _mentions(whole, name) == 1:
            yield name


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.With):
            yield from _statements(statement.body)
        else:
            yield statement


def _list_of(statement: ast.stmt) -> str:
    """What this statement appends to; empty if it does not."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name() | ast.Attribute() as of, attr="append"))):
            return ast.unparse(of)
    return ""


def _mentions(code: ast.AST, name: str) -> int:
    return sum(isinstance(one, ast.Name | ast.Attribute) and ast.unparse(one) == name for one in ast.walk(code))


def bytes_in(values: Iterable[object]) -> int:
    """Bytes of all tensors and arrays among these and in what they hold, by the storages that they keep."""
    sizes, waiting = dict[int, int](), list[Any](values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        elif hasattr(value, "nbytes"):
            while hasattr(getattr(value, "base", None), "nbytes"):  # a view of an array
                value = value.base
            if hasattr(value, "untyped_storage"):  # a slice keeps the whole of it
                storage = value.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
            else:
                sizes[id(value)] = value.nbytes
    return sum(sizes.values())
