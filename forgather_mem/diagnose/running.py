"""Which variables do the functions have that run now? The collector does not look into a running frame."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

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
        if not is_ours(frame) and (_is_function(frame) or frame.f_locals is not frame.f_globals):
            yield frame


def is_ours(frame: FrameType) -> bool:
    """Whether this is a function of this library."""
    return frame.f_code.co_filename.startswith(_OURS)


def variables_of(frame: FrameType) -> dict[str, Any]:
    """A copy of the frame's variables, leaving nothing behind in the frame.

    Before Python 3.13 asking a frame for its variables stores a snapshot in it, which keeps a batch or a model
    alive for as long as the function runs. It is emptied again, unless somebody had called `locals()` there and
    has the snapshot.
    """
    snapshot = frame.f_locals
    variables = dict(snapshot)
    # three references: the frame's, ours, and that of the question itself
    if type(snapshot) is dict and _is_function(frame) and sys.getrefcount(snapshot) <= 3:
        snapshot.clear()
    return variables


def _is_function(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
