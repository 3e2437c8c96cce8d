"""Starts `tracemalloc` only where stopping it again can't crash the process."""

from __future__ import annotations

import os
import sys
import threading

from forgather_mem.errors import ours
from forgather_mem.system.installed import installed

tracemalloc = installed("tracemalloc")

# https://github.com/python/cpython/issues/128679: until then `tracemalloc.stop()` frees what a thread without the GIL
# may be using, such as a thread of C++ that calls into Python.
_FIXED = ((3, 12, 9), (3, 13, 2))


def start_tracing(num_frames: int) -> bool:
    """Trace where objects are created, this many frames each; whether the caller has to stop it.

    Nothing is started where somebody else traces already, nor in a process with threads that are not Python's (of
    OpenMP, of gloo), unless Python can stop it beside them.
    """
    if tracemalloc.is_tracing() or not _can_be_stopped():
        return False
    tracemalloc.start(num_frames)
    return True


def _can_be_stopped(version: tuple[int, ...] = sys.version_info[:3]) -> bool:
    """
    >>> _can_be_stopped((3, 12, 9)), _can_be_stopped((3, 13, 2)), _can_be_stopped((3, 14, 0))
    (True, True, True)
    """
    if any(version >= fixed and version[:2] == fixed[:2] for fixed in _FIXED) or version >= (3, 14):
        return True
    try:
        return len(os.listdir("/proc/self/task")) <= threading.active_count()
    except ours(OSError):  # no /proc
        return False
