"""Records in the session folder whether an out-of-memory error has ended this process.

Runs when the interpreter exits: Python has then printed the error's traceback and keeps the error as `sys.last_value`.
"""

from __future__ import annotations

import os
import sys

from forgather_mem.errors import missing
from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from forgather_mem.diagnose.oom.recognition import OutOfMemory
    from forgather_mem.telemetry.report import Change, OomReport, RunReport

# Errors of these types are never about memory, and not worth an import.
_NEVER = (KeyboardInterrupt, SystemExit, AssertionError, AttributeError, LookupError, NameError, TypeError, SyntaxError)

_MAX_BYTES = 2**20
_AFTER_A_STEP = ("evaluate", "save", "generate")

# Built in advance: when it is written, there may be no memory to build it.
_NOTHING_MORE = (
    b'{"oom": {"where": "host", "step": 0, "phase": "other", "rank": 0, "layer": null, "requested_bytes": null, '
    b'"free_bytes": null, "reserved_unused_bytes": null, "in_use": {}, "why_now": null, "not_because": [], '
    b'"advice": [], "kind": "MemoryError", "error_type": "MemoryError", "message": ""}, "advice": []}'
)


def write_last_error(folder: str, reserve_bytes: int) -> None:
    """Write what is known about the out-of-memory error that has ended this process, if any.

    `reserve_bytes` were held by us until just now.
    """
    error = getattr(sys, "last_value", None)
    if error is None or (isinstance(error, _NEVER) and error.__cause__ is None and error.__context__ is None):
        return
    try:
        from forgather_mem.telemetry.guard import FailureGuard

        FailureGuard().call("run", _write, folder, error, reserve_bytes)
    except MemoryError:  # no memory even for our own code
        from forgather_mem.files import open_real

        file = open_real(os.path.join(folder, "oom.rank0.json"), os.O_WRONLY | os.O_CREAT)
        os.write(file, _NOTHING_MORE)
        os.close(file)


def _write(folder: str, error: BaseException, reserve_bytes: int) -> None:
    import json

    from forgather_mem.diagnose.oom.recognition import recognise
    from forgather_mem.files import replace_file
    from forgather_mem.telemetry.report import LastError
    from forgather_mem.telemetry.report_schema import to_dict

    rank = run_session.rank_and_size()[0]
    path = os.path.join(folder, run_session.LAST_ERROR.format(rank=rank))
    told_before = _load(path)
    if isinstance(told_before, dict) and told_before.get("pid") == os.getpid():
        return  # the training's own reporter knows more
    found = recognise(error)
    if found is None:
        return
    oom, advice = _explained(error, found, rank, reserve_bytes)
    replace_file(path, json.dumps(to_dict(LastError(oom=oom, advice=advice))).encode(), through_links=False)


def _explained(
    error: BaseException, found: OutOfMemory, rank: int, reserve_bytes: int
) -> tuple[OomReport, tuple[Change, ...]]:
    from forgather_mem.diagnose.oom.recognition import unexamined
    from forgather_mem.heap.failed_frames import drop_frames
    from forgather_mem.system.memory_limit import near_a_kill

    limit = near_a_kill()
    if limit is not None:
        return unexamined(found, limit, "other", 0, rank), ()
    from forgather_mem.diagnose.oom.explanation import explained, failure_outside

    failure = failure_outside(error, found, rank, reserve_bytes)
    drop_frames(error)  # the frames are no longer needed, and writing needs some of their memory
    return explained(failure)


def add_last_error(report: RunReport, folder: str) -> RunReport:
    """The report of a finished command, with the error that ended it if a process has recorded one."""
    from dataclasses import replace

    from forgather_mem.telemetry.report import LastError
    from forgather_mem.telemetry.report_schema import checked

    if report.oom is not None or report.killed is not None:
        return report
    told = checked(LastError, _first_error(folder))
    if told is None:
        return report
    oom = told.oom
    if oom.phase in _AFTER_A_STEP:  # left over from a training that had already ended
        oom = replace(oom, step=oom.step or report.steps)
    return replace(report, run=replace(report.run, end="oom"), oom=oom, advice=told.advice)


def _first_error(folder: str) -> object:
    """What the rank that failed first has written; None if none has."""
    head, _, tail = run_session.LAST_ERROR.partition("{rank}")
    with missing(OSError, ValueError):
        names = [name for name in os.listdir(folder) if name.startswith(head) and name.endswith(tail)]
        return _load(min((os.path.join(folder, name) for name in names), key=os.path.getmtime))
    return None


def _load(path: str) -> object:
    """What stands in such a file; None for anything else."""
    import json

    from forgather_mem.files import read_regular

    with missing(OSError, ValueError, RecursionError):
        return json.loads(read_regular(path, _MAX_BYTES))
    return None
