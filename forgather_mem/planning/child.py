"""Calls a function in a forked child, where it may change what it likes, and gives back its result.

Memory is the child's own by `fork()`. Open files are not: their positions are shared, and what is read from a socket is
gone for the parent. So the child has files of its own and no sockets.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import pickle
import select
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from forgather_mem.errors import PlanError
from forgather_mem.system.installed import installed
from forgather_mem.telemetry.run_session import SWITCH

Result = TypeVar("Result")
_MOST_S = 900.0  # a lock that a thread of the parent held stays locked in the child: it may wait forever
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_ACTS = ("os.", "shutil.", "socket.", "sqlite3.", "subprocess.")  # audit events; the others change nothing outside
_HARMLESS = (
    "os.listdir",
    "os.scandir",
    "os.walk",
    "os.fwalk",
    "os.getxattr",
    "os.listxattr",
    "os.putenv",
    "os.unsetenv",
)


def in_a_child(function: Callable[[], Result], most_s: float = _MOST_S) -> Result:
    """The result of the function, which must be picklable; this process stays as it was.

    The child prints nothing and runs on one thread: threads of the parent do not exist in it.

    Raises:
        PlanError: if the function raised anything, if the child was killed, or has not ended after so many seconds.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on forks where there are threads
        child = os.fork()
    if not child:
        os.close(reader)
        _answer(function, writer)
    os.close(writer)
    try:
        told = _told(reader, most_s)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise PlanError(f"the process that planned was {how}")
    result, problem = pickle.loads(told)
    if problem is not None:
        raise PlanError(problem)
    return result  # type: ignore[no-any-return]


@contextmanager
def acting_on_nothing() -> Iterator[None]:
    """Inside it files are not written, made or removed, no program is started and nobody is called: PermissionError.

    A library of C that asks nobody can still make an empty file.
    """
    is_on = True

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if is_on and _acts(event, arguments):
            raise PermissionError(f"{event} of {arguments[0] if arguments else None!r}: not before the training")

    sys.addaudithook(look)
    resource = installed("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        is_on = False  # a hook stays
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _told(reader: int, most_s: float) -> bytes:
    """All that the child writes, until it closes its end."""
    parts: list[bytes] = []
    waits, until_s = select.poll(), time.monotonic() + most_s
    waits.register(reader, select.POLLIN)
    while waits.poll(1000 * max(0.0, until_s - time.monotonic())):
        part = os.read(reader, 2**20)
        if not part:
            return b"".join(parts)
        parts.append(part)
    raise PlanError(f"planning has not ended after {most_s:,.0f} s")


def _answer(function: Callable[[], object], writer: int) -> None:
    code = 1
    try:
        answer = pickle.dumps(_result_and_problem(function))
        with os.fdopen(writer, "wb") as file:
            file.write(answer)
        code = 0
    finally:
        os._exit(code)  # no exit handler of the parent's, no flush of its buffers


def _result_and_problem(function: Callable[[], object]) -> tuple[object, str | None]:
    import torch

    os.environ[SWITCH] = "0"  # what is planned is no training to be watched
    gc.freeze()  # the parent's objects: a Trainer collects garbage before it trains
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    os.dup2(sys.stderr.fileno(), 2)  # for what is not Python's
    _have_own_files()  # a data set may read one
    try:
        return function(), None
    except PlanError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001  # the training's own: the parent tells it
        from forgather_mem.planning.refusal import problem_of  # takes long

        return None, problem_of(error)


def _have_own_files() -> None:
    """Give this process its own position in each open file, and take its sockets away. For good.

    Files that are written become the null device.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the listing itself is gone
            kind = os.fstat(number).st_mode
            if stat.S_ISREG(kind):
                os.dup2(_opened_again(number, null), number)
            elif stat.S_ISSOCK(kind):
                os.dup2(null, number)


def _opened_again(number: int, otherwise: int) -> int:
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        return otherwise
    try:
        own = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
    except OSError:
        return otherwise
    os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    return own


def _acts(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "open":
        path, _, flags = arguments
        return isinstance(flags, int) and bool(flags & _WRITES) and path != os.devnull
    return event.startswith(_ACTS) and event not in _HARMLESS
