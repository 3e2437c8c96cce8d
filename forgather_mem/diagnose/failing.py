"""How does a run end that an error has ended?"""

from __future__ import annotations

from forgather_mem.diagnose.oom import recognise
from forgather_mem.engine import Run


def close_failed(run: Run, error: BaseException) -> None:
    """Close the run as ended by this error: "oom" or "exception". Nothing of the error is kept.

    Who listens hears of it first, while the failed frames still hold what they held.
    """
    if run.closed:
        return
    for told in tuple(run.phases.on_failure):
        run.fence.call("oom", told, error)
    run.close("oom" if run.fence.call("oom", recognise, error) is not None else "exception")
