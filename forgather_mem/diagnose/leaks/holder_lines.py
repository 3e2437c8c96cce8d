"""The line that adds to a holder, and what says that it will stop growing: a maximum, or the number of rows."""

from __future__ import annotations

import itertools
import queue
import re
from collections import deque
from collections.abc import Sequence
from types import FunctionType, MethodType, TracebackType
from typing import Any, NamedTuple

from forgather_mem.diagnose.leaks.holder_kinds import Held, HolderKind
from forgather_mem.heap.holder_names import files_that_run
from forgather_mem.heap.object_size import inside, is_tensor
from forgather_mem.heap.owner_paths import LRU_CACHE
from forgather_mem.source.container_code import adding_lines, calling_lines
from forgather_mem.source.source_lines import (
    files_of_class,
    is_user_class,
    is_user_file,
    line_of_code,
    user_files,
)
from forgather_mem.source.syntax import Named

Line = tuple[str, int]


def line_of_holder(held: Held, kind: HolderKind, names: Sequence[Named]) -> Line | None:
    """The line that adds to it, as far as the source shows.

    Args:
        held: What has grown.
        kind: The kind of leak.
        names: What the user's code calls the container.
    """
    one, container, _, owner = held
    if type(container) is LRU_CACHE:
        code = getattr(container.__wrapped__, "__code__", None)
        return None if code is None else line_of_code(code)
    lines = [] if kind.iterators else _adding(held, kind, names)  # nothing is added to an iterator
    cls = owner if isinstance(owner, type) else type(owner)
    if kind.name == "hooks":
        function = line_of_function(one.samples)
        hooked = [] if function is None else calling_lines(kind.made_by, [function[0]])
        return hooked[0] if hooked else call_of(kind.made_by, cls) or function
    if lines:
        return (call_of(kind.made_by, cls) if kind.name == "param_groups" else None) or lines[0]
    found = None
    if kind.name == "closure":
        found = line_of_function(one.samples)
    elif kind.name == "exceptions":
        found = _raised(one.samples)
    elif kind.name == "threads":
        found = _made_of_users_class(one.samples)
    if found is None and kind.made_by:
        found = call_of(kind.made_by, cls)
    return found or _made_of_users_class(one.samples)


def call_of(names: Sequence[str], cls: type) -> Line | None:
    """A call of a function by the user: near the holder's class and what runs now, else the only one that there is."""
    near = dict.fromkeys([*files_of_class(cls), *files_that_run()])
    found = calling_lines(names, near)
    if not found:
        everywhere = calling_lines(names, [file for file in user_files() if file not in near])
        found = everywhere if len(everywhere) == 1 else []
    return next(iter(found), None)


def _adding(held: Held, kind: HolderKind, names: Sequence[Named]) -> list[Line]:
    """The lines by which the user's code adds to it; one that only a library's class names must be the only one."""
    is_list = issubclass(type(held.container), list | deque)
    assigned = kind.name in ("chain", "graph") or held.one.kind == "size"
    for named in names:
        lines = adding_lines(named, is_list, assigned=assigned)
        if lines and (not named.any_receiver or len(lines) == 1):
            return lines
    return []


class HolderBound(NamedTuple):
    """Why something will stop growing by itself, or may, and its most items, if known."""

    why: str
    most: int | None = None


def bound_of_holder(held: Held) -> HolderBound | None:
    """Why it will stop growing, or may; None if there is no sign of that."""
    one, container, path, owner = held
    if one.bound is not None:
        return HolderBound(f"{path} holds {one.bound:,} at most", one.bound)
    if isinstance(owner, queue.Queue) and owner.maxsize > 0 and path.endswith(".queue"):
        return HolderBound(f"{path} holds {owner.maxsize:,} at most", owner.maxsize)
    rows = _rows(owner)
    if rows is not None and one.kind == "items" and one.count < rows and _is_keyed_by_row(container, rows):
        return HolderBound(f"{path} holds one entry for each of {rows:,} rows at most", rows)
    return None


def line_of_function(samples: Sequence[object]) -> tuple[str, int] | None:
    for part in inside(list(samples)):
        function = part.__func__ if isinstance(part, MethodType) else getattr(part, "func", part)
        if isinstance(function, FunctionType) and (found := line_of_code(function.__code__)):
            return found
    return None


def _raised(samples: Sequence[object]) -> tuple[str, int] | None:
    for part in inside(list(samples)):
        trace: TracebackType | None = getattr(part, "__traceback__", None) if isinstance(part, BaseException) else None
        while trace is not None:
            if is_user_file(trace.tb_frame.f_code.co_filename):
                return trace.tb_frame.f_code.co_filename, trace.tb_lineno
            trace = trace.tb_next
    return None


def _made_of_users_class(samples: Sequence[object]) -> Line | None:
    """Where the source creates one, if its class is the user's."""
    for sample in samples[:1]:
        inner = sample[1] if isinstance(sample, tuple) and len(sample) == 2 else sample
        if is_user_class(type(inner)):
            return call_of([re.escape(type(inner).__name__)], type(inner))
    return None


def _is_keyed_by_row(container: object, rows: int) -> bool:
    """Whether these are the numbers of rows, as far as the first keys show."""
    keys = list(itertools.islice(dict.__iter__(container), 100)) if isinstance(container, dict) else []
    return bool(keys) and all(type(key) is int and 0 <= key < rows for key in keys)


def _rows(owner: Any) -> int | None:
    """The number of rows of a dataset; a parameter and its hooks are none."""
    if is_tensor(owner):
        return None
    if not hasattr(type(owner), "__getitem__") or not hasattr(type(owner), "__len__"):
        return None
    if hasattr(type(owner), "keys") or isinstance(owner, list):
        return None  # it has as many as were added
    try:
        return len(owner)
    except (TypeError, NotImplementedError, AttributeError):
        return None
