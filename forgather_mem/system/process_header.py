"""What the header of a run says of any process, whether it trains or not yet.

Next to nothing is imported: the waiting parent of `forgather-mem run` writes it for a command that has not trained.
"""

from __future__ import annotations

import os
import time

from forgather_mem.system.cgroups import kill_counter
from forgather_mem.system.process_start import process_age_s, process_start
from forgather_mem.telemetry.redaction import redacted_argv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def process_header(pid: int, script: str, argv: Sequence[str]) -> dict[str, object]:
    """Fields of `telemetry.report_part.RunHeader` as plain values; the others are of a training.

    >>> process_header(os.getpid(), "train.py", ["--api_key", "k3y"])["argv"]
    ['--api_key', '***']
    """
    now_s, age_s = time.time(), process_age_s(pid)
    return {
        "pid": pid,
        "host": os.uname().nodename,
        "process": process_start(pid),
        "script": script,
        "argv": list(redacted_argv(tuple(argv))),
        "started_s": now_s,
        "kills": kill_counter() or None,
        "process_started_s": 0.0 if age_s is None else round(now_s - age_s, 2),
    }
