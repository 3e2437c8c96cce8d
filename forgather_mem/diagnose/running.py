"""Which variables do the functions have that run now? The collector does not look into a running frame."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from forgather_mem.actions.variables import is_function

_OURS = str(Path(__file__).parent.parent) + "/"


def running_frames() -> Iterator[FrameType]:
    """The functions that run, of all threads, without those of this library.

    A module's own code has no variables of its own and is left out. Keep no frame: each keeps all it can see.
    """
    todo: list[FrameType | None] = list(sys._current_frames().values())
    while todo:
        frame = todo.pop()
        if frame is None:
            continue
        todo.append(frame.f_back)
        if not is_ours(frame) and (is_function(frame) or frame.f_locals is not frame.f_globals):
            yield frame


def is_ours(frame: FrameType) -> bool:
    """Whether this is a function of this library."""
    return frame.f_code.co_filename.startswith(_OURS)
