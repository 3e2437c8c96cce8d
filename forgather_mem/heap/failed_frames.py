"""Frees the memory of a failed call whose exception keeps its frames, and with them everything, alive.

An exception holds its traceback, the traceback the frames, the frames their local variables: a model, a batch,
activations. Collecting and clearing free none of it as long as anything holds the exception.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType

from forgather_mem.errors import missing

MAX_ERRORS = 100  # per chain; a group of ten thousand failed tasks only repeats itself
_GENERATOR_LIKE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# The last instruction of a generator waiting to be resumed: up to Python 3.12, and from 3.13 on.
_WAITING = {dis.opmap[name] for name in ("YIELD_VALUE", "RESUME", "SEND", "RETURN_GENERATOR") if name in dis.opmap}


def chain(error: BaseException, *, suppressed: bool = False) -> Iterator[BaseException]:
    """The error, then the members of its groups, its causes and its contexts; each once.

    Args:
        error: The starting point.
        suppressed: Include what `raise ... from None` hides: it is kept alive all the same.
    """
    todo = [error]
    seen: set[int] = set()
    while todo and len(seen) < MAX_ERRORS:
        link = todo.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        members = link.exceptions if isinstance(link, BaseExceptionGroup) else ()
        context = link.__context__ if suppressed or not link.__suppress_context__ else None
        todo += [one for one in (*members, link.__cause__, context) if one is not None]


def entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    """Those of a traceback, outermost first."""
    while trace is not None:
        yield trace
        trace = trace.tb_next


def drop_frames(*errors: BaseException, handled: BaseException | None = None) -> int:
    """Clears the local variables of the finished frames that these errors and their chains keep alive.

    Each frame of a traceback keeps those that called it: also what has ended above the handler, and what was taken out
    of the traceback, as wrappers are.

    The traceback stays: files, lines and names print as before; a debugger finds no variables. Functions that
    still run, and generators and coroutines waiting to be resumed, keep theirs (`traceback.clear_frames` ends the
    latter).

    Args:
        *errors: Caught exceptions.
        handled: An exception that was being handled before; it and its chain are left alone.

    Returns:
        The number of frames cleared.
    """
    left_alone = {id(link) for link in chain(handled, suppressed=True)} if handled is not None else set()
    emptied: set[int] = set()
    for error in errors:
        for link in chain(error, suppressed=True):
            for part in entries(link.__traceback__ if id(link) not in left_alone else None):
                frame: FrameType | None = part.tb_frame
                # What a running frame was called by runs, too
                while frame is not None and id(frame) not in emptied and _empty(frame):
                    emptied.add(id(frame))
                    frame = frame.f_back
    return len(emptied)


def _empty(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_flags & _GENERATOR_LIKE and frame.f_lasti >= 0 and code.co_code[frame.f_lasti] in _WAITING:
        return False
    with missing(RuntimeError):  # still running
        frame.clear()
        if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            frame.f_locals  # noqa: B018  # accessing it again clears a snapshot taken by a logger or debugger
        return True
    return False
