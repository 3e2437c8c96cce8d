"""What the user's handler of a signal raises while our code runs: it is the user's, and no failure of ours.

Next to nothing is imported: the waiting parent of `forgather-mem run` writes files, too.
"""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_US = os.path.dirname(os.path.dirname(__file__)) + os.sep
_HAS_MORE = 0x04  # inspect.CO_VARARGS: the function has *arguments


def is_of_handler(error: BaseException) -> bool:
    """Whether the user's handler of a signal has raised this, which came while our code ran: it is no failure of ours.

    Python calls a handler with the frame that it interrupts; nothing else of the user's is given its caller's frame.
    """
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        caller = None if frame.f_code.co_filename.startswith(_US) else frame.f_back
        if caller is not None and any(value is caller for value in _arguments(frame)):
            return True
    return False


def hand_on(error: Exception) -> None:
    """Raise what a signal's handler has raised; for code that deals with errors of files, of which it may be one."""
    if is_of_handler(error):
        raise error


class missing(contextlib.suppress):  # as contextlib.suppress, which it is
    """What can't be read is left out; what a signal's handler raises meanwhile is handed on."""

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        suppresses = super().__exit__(kind, error, trace)  # type: ignore[arg-type]
        return suppresses and not (isinstance(error, BaseException) and is_of_handler(error))


def _arguments(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    number = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _HAS_MORE)
    for name in code.co_varnames[:number]:
        value = frame.f_locals.get(name)
        yield from value if type(value) is tuple else (value,)
