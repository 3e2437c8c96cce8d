"""Clears the variables that a running statement assigns to, leaving no references behind."""

from __future__ import annotations

import ctypes
import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from forgather_mem.source.frame_variables import drop_snapshot, is_function

_QUIET = frozenset({"CACHE", "PRECALL", "NOP", "EXTENDED_ARG", "NOT_TAKEN"})
_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF"})
_MISSING = object()
# What is written over a function's variable from outside stays in its frame, for as long as it runs
_FRAMES_KEEP = sys.version_info >= (3, 14)


def empty_assigned(frame: FrameType, objects: Sequence[object]) -> list[str]:
    """Sets to None the targets of the calling assignment statement that hold one of these objects.

    In `model, opt = release_memory(model, opt)` the caller's variables keep both objects alive until the call has
    returned, so collecting or clearing inside the call can't free them. The instructions after the call show which
    variables are assigned.

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
    for target in _targets(frame):
        value = target.read()
        if value is not _MISSING and any(value is thing for thing in objects):
            if target.local and _FRAMES_KEEP:
                left.append(target.local)
            else:
                target.write(None)
    drop_snapshot(frame)
    return left


class Target(NamedTuple):
    """What is assigned to; `local` is the name of a function's own variable, else empty."""

    read: Callable[[], object]
    write: Callable[[object], None]
    local: str = ""


def _targets(frame: FrameType) -> Iterator[Target]:
    """Reads and writes of the targets that a list, or its values, are assigned to, in order."""
    code = frame.f_code
    behind = [step for step in dis.get_instructions(code) if step.offset > frame.f_lasti and step.opname not in _QUIET]
    is_unpacked = behind[0].opname == "UNPACK_SEQUENCE"
    todo = int(behind[0].arg or 0) if is_unpacked else 1
    stack: list[Any] = []
    for step in behind[is_unpacked:]:
        if todo <= 0:
            return
        # Python 3.13 fuses pairs: STORE_FAST_STORE_FAST, STORE_FAST_LOAD_FAST, LOAD_FAST_LOAD_FAST
        pair = step.opname in ("STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST", "LOAD_FAST_LOAD_FAST")
        names = step.opname.replace("_FAST_", "_FAST ").split() if pair else [step.opname]
        for opname, argument in zip(names, step.argval if pair else [step.argval], strict=True):
            if opname in _LOADS:
                stack.append(_read_name(frame, argument))
            elif opname == "LOAD_CONST" or opname == "LOAD_SMALL_INT":
                stack.append(argument)
            elif opname == "LOAD_ATTR" and stack:
                stack.append(getattr(stack.pop(), argument, _MISSING))
            elif opname in ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"):
                local = argument if opname == "STORE_FAST" else ""
                yield Target(partial(_read_name, frame, argument), partial(_write_name, frame, opname, argument), local)
                todo -= 1
            elif opname == "STORE_ATTR" and stack:
                owner = stack.pop()
                yield Target(partial(getattr, owner, argument, _MISSING), partial(setattr, owner, argument))
                todo -= 1
            elif opname == "STORE_SUBSCR" and len(stack) >= 2:
                key, owner = stack.pop(), stack.pop()
                yield Target(partial(_read_item, owner, key), partial(owner.__setitem__, key))
                todo -= 1
            else:
                return


def _read_name(frame: FrameType, name: str) -> object:
    for namespace in (frame.f_locals, frame.f_globals, frame.f_builtins):
        if name in namespace:
            return namespace[name]
    return _MISSING


def _read_item(owner: Any, key: object) -> object:
    try:
        return owner[key]
    except (KeyError, IndexError, TypeError):
        return _MISSING


def _write_name(frame: FrameType, opname: str, name: str, value: object) -> None:
    namespace = frame.f_globals if opname == "STORE_GLOBAL" else frame.f_locals
    namespace[name] = value
    if sys.version_info < (3, 13) and is_function(frame):
        # f_locals is a copy there; this writes it back, as debuggers do. Reading f_locals again would undo it.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
