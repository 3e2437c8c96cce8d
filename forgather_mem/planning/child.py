"""Calls a function in a forked child, where it may change what it likes, and gives back its result."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from typing import TypeVar

from forgather_mem.errors import PlanError
from forgather_mem.telemetry.run_session import SWITCH

Result = TypeVar("Result")


def in_a_child(function: Callable[[], Result]) -> Result:
    """The result of the function, which must be picklable; this process stays as it was.

    The child prints nothing and runs on one thread: threads of the parent do not exist in it.

    Raises:
        PlanError: if the function raised anything, or if the child was killed.
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
        with os.fdopen(reader, "rb") as file:
            told = file.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise PlanError(f"the process that planned was {how}")
    result, problem = pickle.loads(told)
    if problem is not None:
        raise PlanError(problem)
    return result  # type: ignore[no-any-return]


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
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    from forgather_mem.planning.refusal import problem_of

    try:
        return function(), None
    except PlanError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001  # the training's own: the parent tells it
        return None, problem_of(error)
