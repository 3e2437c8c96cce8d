"""The functions that run now, and their variables, read so that a frame keeps nothing that it did not have.

The collector does not look into a running frame.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from forgather_mem.source.source_lines import OURS, with_callers

_ARE_COPIED = sys.version_info < (3, 13)


def frame_variables(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's variables.

    Before Python 3.13 they are read into a dictionary that the frame keeps, and code that has called `locals()` there
    has the same one: it would find variables in it that it did not ask for. None are read of a function that calls it.
    """
    if _ARE_COPIED and is_function(frame) and _calls_locals(frame.f_code):
        return {}
    variables = dict(frame.f_locals)
    drop_snapshot(frame)
    return variables


def is_function(frame: FrameType) -> bool:
    """Whether this frame's variables are its own, not those of a module or a class body."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def _calls_locals(code: CodeType) -> bool:
    steps = dis.get_instructions(code) if "locals" in code.co_names else ()
    return any(one.argval == "locals" and one.opname == "LOAD_GLOBAL" for one in steps)  # not an attribute


def drop_snapshot(frame: FrameType) -> None:
    """Empty the dictionary that reading the variables has left in the frame before Python 3.13.

    It would keep a batch or a model alive as long as the function runs. If anybody else has it, a debugger for example,
    it is left alone.
    """
    if not _ARE_COPIED or not is_function(frame):
        return
    snapshot = frame.f_locals
    if sys.getrefcount(snapshot) <= 3:  # the frame's, ours, and that of the call itself
        snapshot.clear()


def running_frames() -> Iterator[FrameType]:
    """The running functions of all threads, without those of this library.

    Module-level code has no own variables and is left out. Don't keep frames: each keeps all it can see alive.
    """
    for frame in all_frames():
        if not is_our_frame(frame) and (is_function(frame) or frame.f_locals is not frame.f_globals):
            yield frame


def is_our_frame(frame: FrameType) -> bool:
    """Whether this function belongs to this library."""
    return frame.f_code.co_filename.startswith(OURS)


def all_frames() -> Iterator[FrameType]:
    """The frames of all threads, modules' and ours, too."""
    innermost = None
    try:
        for innermost in reversed(list(sys._current_frames().values())):
            yield from with_callers(innermost)
    finally:
        # It is this frame in its own thread: a ring that kept all callers' variables until a collection
        del innermost
