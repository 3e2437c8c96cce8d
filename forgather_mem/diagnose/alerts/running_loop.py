"""The user's loop that is running: whether its code may leave it early, and the passes over data in it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping
from types import FrameType, GeneratorType
from typing import Any

from forgather_mem.diagnose.alerts.sample_lengths import RunningLoader
from forgather_mem.probes.live_objects import live_objects
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import is_user_file
from forgather_mem.source.syntax import forget_trees, tree_of

_LEAVE, _CUT = (ast.Break, ast.Return), ("islice", "zip")


def may_leave() -> bool:
    """Whether the running loops of the user's innermost function with loops may be left before their data ends."""
    frame, loops = _running_loops()
    forget_trees()
    return frame is not None and any(_ends_early(loop) for loop in loops)


def running_passes(everywhere: bool) -> list[RunningLoader]:
    """The passes over data loaders that the running functions have in their variables, or in those of a generator.

    If there are none, as in a plain `for` loop, `everywhere` finds those among all objects, in up to 0.1 s.
    """
    loaders, frame = sys.modules.get("torch.utils.data.dataloader"), sys._getframe().f_back
    found: list[RunningLoader] = []
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
