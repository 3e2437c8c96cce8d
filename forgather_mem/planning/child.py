"""Calls a function in a forked child, where it may change what it likes, and gives back its result."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import TypeVar

from forgather_mem.errors import PlanError
from forgather_mem.telemetry.run_session import SWITCH

Result = TypeVar("Result")
_MOST_S = 900.0  # a lock that a thread of the parent held stays locked in the child: it may wait forever


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
    from forgather_mem.planning.refusal import problem_of

    try:
        return function(), None
    except PlanError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001  # the training's own: the parent tells it
        return None, problem_of(error)
