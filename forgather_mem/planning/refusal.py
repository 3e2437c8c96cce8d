"""Why a training can't be planned: the line that asks for a value which does not exist, or that failed."""

from __future__ import annotations

import errno
import os
from traceback import walk_tb

from torch._subclasses import fake_tensor

from forgather_mem.errors import PlanError
from forgather_mem.planning.isolation.acts import ON_NOTHING
from forgather_mem.source.source_lines import OURS, is_user_file, line_with_text
from forgather_mem.telemetry.redaction import redacted

_TAKEN_AWAY = (errno.EACCES, errno.EBADF, errno.ENOTSOCK, errno.EPERM)  # what a file or a connection answers then
_OF_SIZES = fake_tensor.DataDependentOutputException | fake_tensor.DynamicOutputShapeException


def problem_of(error: BaseException) -> str:
    """What to say of an error in a planned step, with the innermost line of the user's, else of a library's."""
    if isinstance(error, PlanError):
        return str(error)
    if "Autograd-and-Fork" in str(error):  # of torch's message, where autograd has threads: on a machine with a device
        return (
            "this process has computed gradients, and torch can't go on with that in a forked child where there is a "
            "device: plan before the first backward(), or with `forgather-mem plan SCRIPT`"
        )
    if isinstance(error, _OF_SIZES | fake_tensor.UnsupportedOperatorException):
        what = f"the size of what {getattr(error, 'func', '')} makes is known only by computing it"
    else:
        what = f"{type(error).__name__}: {redacted(str(error).partition(chr(10))[0])}"
        if isinstance(error, OSError) and error.errno in _TAKEN_AWAY:
            what += f"; {ON_NOTHING}"
    return _where(error) + what


def _where(error: BaseException) -> str:
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    users = [frame for frame in frames if is_user_file(frame[0])]
    others = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame[0] and not frame[0].startswith(OURS)]
    if not users and not others and frames[-1][0].startswith(OURS):
        return ""  # a function that can't be called with a batch: it has no line yet
    return f"{line_with_text(*(users or others or frames)[-1])}: "
