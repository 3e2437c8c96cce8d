"""What a run that begins needs for its end: its report is made when it closes.

What recognises a failure is imported with this module, at the first event of a training: who only looks at our classes,
as `forgather-mem check` does, needs none.
"""

from __future__ import annotations

from pathlib import Path

import forgather_mem.diagnose.oom.recognition  # noqa: F401  # for the trainer's link
from forgather_mem.engine.summary import RunSummary
from forgather_mem.errors import missing
from forgather_mem.telemetry import run_session


def close_report(summary: RunSummary) -> tuple[str, dict[str, object]]:
    """The finding that closes a run; its report is also written if there is a folder with our files."""
    # Loaded when there is something to report: it takes most of a MiB beside the training
    from forgather_mem.reporting.build import build_report, verdict, write_report

    report, folder = build_report(summary), summary.facts.header.folder
    if folder is not None and Path(folder).is_dir():
        with missing(OSError):  # the report can be rebuilt from the log
            write_report(report, folder)
        session = run_session.folder()
        if session is not None:
            with missing(OSError):
                write_report(report, run_session.kept_of(session, folder))
    return verdict(report)
