"""Closes a run that an exception has ended."""

from __future__ import annotations

from forgather_mem.diagnose.oom.recognition import recognise
from forgather_mem.engine.run import Run


def close_failed(run: Run, error: BaseException) -> None:
    """Close the run as ended by this error: "interrupted", "oom" or "exception". Nothing of the error is kept.

    Who listens hears of an error first, while the failed frames still hold what they held.
    """
    if run.closed:
        return
    if isinstance(error, KeyboardInterrupt | SystemExit):
        run.close("interrupted")
        return
    end = "oom" if run.fence.call("oom", recognise, error) is not None else "exception"
    try:
        for told in tuple(run.phases.on_failure):
            run.fence.call("oom", told, error)
    finally:  # a Ctrl-C while they look at it too
        run.close(end)


def close_fenced(run: Run, error: BaseException | None = None) -> None:
    """Close the run, as ended by this error if there is one; where closing fails, give back what was taken."""
    if error is not None:
        run.fence.call("the end of a run", close_failed, run, error)
    else:
        run.fence.call("the end of a run", run.close)
    if not run.closed:  # closing has failed
        run.fence.call("the end of a run", run.put_back)
