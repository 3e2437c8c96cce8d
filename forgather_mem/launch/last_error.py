"""Has memory that ran out ended this process, and what can be told of it? Written into the session's folder.

Looked at when the interpreter ends: Python has then printed the error's traceback, and keeps it as `sys.last_value`.
"""

from __future__ import annotations

import os
import sys

from forgather_mem import session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Errors of these types are never about memory, and not worth an import.
_NEVER = (KeyboardInterrupt, SystemExit, AssertionError, AttributeError, LookupError, NameError, TypeError, SyntaxError)

_AFTER_A_STEP = ("evaluate", "save", "generate")

# Made now: when it is written there is no memory to make it.
_NOTHING_MORE = (
    b'{"oom": {"where": "host", "step": 0, "phase": "other", "rank": 0, "layer": null, "requested_bytes": null, '
    b'"free_bytes": null, "reserved_unused_bytes": null, "in_use": {}, "why_now": null, "not_because": [], '
    b'"advice": [], "kind": "MemoryError", "error_type": "MemoryError", "message": ""}, "advice": []}'
)


def tell_last_error(folder: str, reserve_bytes: int) -> None:
    """Write what is known of the out-of-memory error that has ended this process, if one has.

    `reserve_bytes` were taken by us until just now.
    """
    error = getattr(sys, "last_value", None)
    if error is None or (isinstance(error, _NEVER) and error.__cause__ is None and error.__context__ is None):
        return
    try:
        from forgather_mem.fence import Fence

        Fence().call("run", _tell, folder, error, reserve_bytes)
    except MemoryError:  # not even for our own code
        file = os.open(os.path.join(folder, "oom.rank0.json"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.write(file, _NOTHING_MORE)
        os.close(file)


def _tell(folder: str, error: BaseException, reserve_bytes: int) -> None:
    import json

    from forgather_mem.actions.frames import drop_frames
    from forgather_mem.diagnose.oom_explained import explained, story_outside

    rank = int(os.environ.get("RANK") or 0)
    path = os.path.join(folder, session.LAST_ERROR.format(rank=rank))
    if _told_by(path) == os.getpid():
        return  # the training's own reporter knows more
    story = story_outside(error, rank, reserve_bytes)
    if story is None:
        return
    drop_frames(error)  # nobody looks at the frames any more, and writing takes some of what they hold
    oom, advice = explained(story)
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w") as file:
        json.dump({"oom": oom, "advice": advice}, file)
    os.replace(draft, path)


def _told_by(path: str) -> int | None:
    import json

    try:
        with open(path) as file:
            told: int | None = json.load(file).get("pid")
        return told
    except (OSError, ValueError):
        return None


def add_last_error(report: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The report of a command that has ended, with the error that ended it, where a process has told of one."""
    if report["oom"] is not None or report.get("killed"):
        return dict(report)
    told = _read(folder)
    if told is None:
        return dict(report)
    run = {**report["run"], "end": "oom"}
    oom = told["oom"]
    if oom["phase"] in _AFTER_A_STEP:  # of a training that had ended before
        oom["step"] = oom["step"] or report["steps"]
    return {**report, "run": run, "oom": oom, "advice": told["advice"]}


def _read(folder: str) -> dict[str, Any] | None:
    """Of several ranks the one that has failed first."""
    import json

    head, _, tail = session.LAST_ERROR.partition("{rank}")
    try:
        names = [name for name in os.listdir(folder) if name.startswith(head) and name.endswith(tail)]
        paths = sorted((os.path.join(folder, name) for name in names), key=os.path.getmtime)
        with open(paths[0]) as file:
            told: dict[str, Any] = json.load(file)
        return told
    except (OSError, ValueError, IndexError):
        return None
