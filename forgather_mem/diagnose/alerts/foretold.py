"""What is told early of a failure that would come late: one line for a person, and the same as data.

What comes is what was observed, or follows from sizes, times what is ahead; it is held against what is left now.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from forgather_mem.errors import escape_controls
from forgather_mem.system.headroom import Room
from forgather_mem.system.native_heap import unused_heap_bytes
from forgather_mem.telemetry.records import FORETOLD, Finding, RunInfo
from forgather_mem.units import format_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """A failure that will come unless something is changed.

    Attributes:
        name: What will not fit.
        text: One line for a person, with what to do.
        needed_bytes: What it needs beyond what is in use now.
        left_bytes: What is left for it.
        at_step: The optimizer step at which it comes, if that is known.
        at_batch: The batch of the evaluation at which it comes.
    """

    name: Literal["evaluation", "longest batch"]
    text: str
    needed_bytes: int
    left_bytes: int
    at_step: int | None = None
    at_batch: int | None = None


def left_in(room: Room) -> int:
    """What this process may still take of a memory: its share, and what it has of freed host memory."""
    unused = unused_heap_bytes() if room.where == "host" else 0
    return room.free_bytes // room.num_ranks + unused


def left_text(left_bytes: int, limit: str) -> str:
    """What a limit leaves, for people."""
    return f"{format_bytes(left_bytes)} are left ({limit})"


def tell(run: RunInfo, step: int, found: Foretold) -> None:
    """Emit it as a finding, for the sinks, the report and `MemoryAlert`, and print it."""
    data = {
        "what": FORETOLD,
        "step": step,
        "rank": run.rank,
        "name": found.name,
        "value": found.needed_bytes,
        "limit": found.left_bytes,
        "full_at_step": found.at_step,
        "full_at_batch": found.at_batch,
    }
    emit_alert(run, step, found.text, data)


def emit_alert(run: RunInfo, step: int, text: str, data: Mapping[str, object]) -> None:
    """Pass an alert on to the sinks, and to whoever sees this rank's lines: rank 0 alone has a console."""
    run.emit(Finding(kind="alert", step=step, text=text, data=data))
    if run.rank:
        logger.warning("rank %d, step %d: %s", run.rank, step, escape_controls(text))
        return
    head = f"forgather-mem: step {step:,}: " if step else "forgather-mem: "
    indent = " " * len("forgather-mem: ")
    run.print_line(textwrap.fill(head + text, 80, subsequent_indent=indent, break_on_hyphens=False))
