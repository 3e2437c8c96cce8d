"""Closes a run that an exception has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgather_mem.diagnose.oom.recognition import recognise
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import RunInfo

if TYPE_CHECKING:
    from forgather_mem.engine.run import Run


def close_failed(run: RunInfo, error: BaseException) -> None:
    """Close the run as ended by this error: "interrupted", "oom" or "exception". Nothing of the error is kept."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        run.fail(error, "interrupted")
    else:
        run.fail(error, "oom" if FailureGuard().call("oom", recognise, error) is not None else "exception")


def close_fenced(run: Run, error: BaseException | None = None) -> None:
    """Close the run, as ended by this error if there is one; where closing fails, give back what was taken."""
    if error is not None:
        run.fence.call("the end of a run", close_failed, run, error)
    else:
        run.fence.call("the end of a run", run.close)
    if not run.closed:  # closing has failed
        run.fence.call("the end of a run", run.put_back)
