"""Variables of the functions running now; the collector does not look into a running frame."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from forgather_mem.source.frame_variables import is_function

_OURS = str(Path(__file__).parent.parent) + "/"


def running_frames() -> Iterator[FrameType]:
    """The running functions of all threads, without those of this library.

    Module-level code has no own variables and is left out. Don't keep frames: each keeps all it can see alive.
    """
    for frame in all_frames():
        if not is_our_frame(frame) and (is_function(frame) or frame.f_locals is not frame.f_globals):
            yield frame


def is_frame_running(frame: FrameType) -> bool:
    """Whether this function has not returned yet."""
    return any(other is frame for other in all_frames())


def running_namespaces() -> Iterator[dict[str, object]]:
    """The global namespaces of running code: of modules, and those passed to `exec`."""
    for frame in all_frames():
        yield frame.f_globals


def is_our_frame(frame: FrameType) -> bool:
    """Whether this function belongs to this library."""
    return frame.f_code.co_filename.startswith(_OURS)


def all_frames() -> Iterator[FrameType]:
    """The frames of all threads, modules' and ours, too."""
    todo: list[FrameType | None] = list(sys._current_frames().values())
    while todo:
        frame = todo.pop()
        if frame is not None:
            todo.append(frame.f_back)
            yield frame
