"""An alert: one line for a person, and the same as data; also of a failure that would come late, told early.

What comes is what was observed, or follows from sizes, times what is ahead; it is held against what is left now.
"""

from __future__ import annotations

import logging
import textwrap
from dataclasses import dataclass

from forgather_mem.errors import escape_controls
from forgather_mem.telemetry.records import Finding, RunInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert; plain data.

    Attributes:
        step: The step that has just finished.
        rank: Rank of the process.
        name: A sample name, or "host" or "device" for a forecast; "device1" for another device than the current one;
            "evaluation" or "longest batch" for a failure that was foretold.
        value: The sample's value; for a forecast, the growth in bytes per step; for what was foretold, the bytes that
            are needed beyond what is in use.
        limit: The limit crossed; None for a forecast; for what was foretold, the bytes that are left.
        text: One line for a person.
        full_at_step: The step at which memory will be full at this rate, or at which what was foretold comes; None for
            a limit, and where that is not known.
        full_at_low, full_at_high: The likely range of `full_at_step`.
    """

    step: int = 0
    rank: int = 0
    name: str
    value: float
    limit: float | None = None
    text: str
    full_at_step: int | None = None
    full_at_low: int | None = None
    full_at_high: int | None = None


_NUMBERS = tuple(name for name in Alert.__dataclass_fields__ if name != "text")


def told_by(finding: Finding) -> Alert:
    """The alert that such a finding tells."""
    return Alert(text=finding.text, **{name: finding.data[name] for name in _NUMBERS})


def emit_alert(run: RunInfo, alert: Alert, **more: object) -> None:
    """Pass it on to the sinks, and to whoever sees this rank's lines: rank 0 alone has a console."""
    step, text = alert.step, alert.text
    run.emit(Finding(kind="alert", step=step, text=text, data={name: getattr(alert, name) for name in _NUMBERS} | more))
    if run.rank:
        logger.warning("rank %d, step %d: %s", run.rank, step, escape_controls(text))
        return
    head = f"forgather-mem: step {step:,}: " if step else "forgather-mem: "
    indent = " " * len("forgather-mem: ")
    run.print_line(textwrap.fill(head + text, 80, subsequent_indent=indent, break_on_hyphens=False))
