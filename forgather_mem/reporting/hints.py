"""What a report can't tell of a loop that knows nothing of us, and the line of the script that would change that."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.report import Peak

# A script in whose main thread autograd has recorded so many operations may have trained.
_MANY_RECORDED = 1000


def hints_of(peaks: Sequence[Peak], *, counts_passes: bool = False, tick_s: float = 0.0) -> Iterator[str]:
    """For an observed loop with these peaks: where the highest of a place was between two steps, how to learn when.

    Args:
        peaks: The run's.
        counts_passes: Whether its steps are backward passes.
        tick_s: What counts as a step where there is none.
    """
    if counts_passes:
        yield (
            "No optimizer of torch was seen: each backward pass counts as a step. If a step has several, add "
            "`watching = forgather_mem.watch()` before the loop and `watching.step()` at the end of each step."
        )
    if os.environ.get(run_session.PLAN_FIRST, run_session.BASELINE) != run_session.BASELINE:
        yield "--plan is for a Trainer's training. Of this loop: forgather-mem plan, with the script and its arguments."
    if tick_s:
        yield f"No step of torch was seen: each {tick_s:g} s of this process counts as a step."
    highest = {peak.where: peak for peak in reversed(peaks)}
    others = {peak.where: peak.bytes for peak in sorted(peaks, key=lambda peak: peak.bytes) if peak.phase != "data"}
    # Where memory only stays, any phase may be the highest by a page or two
    if any(peak.phase == "data" and others.get(where, 0) < 0.99 * peak.bytes for where, peak in highest.items()):
        yield (
            "The peak was between two steps, as the next batch came or in what else is done there: `with "
            'watching.phase("save"):` or "evaluate" around that tells them apart (watching = forgather_mem.watch()).'
        )


def hints_without_steps() -> Iterator[str]:
    """For this process, in which no step was seen: how it would tell of steps, if it takes any."""
    # torch's own count in each thread: asking at the end costs a training nothing
    if getattr(sys.modules.get("torch.autograd"), "_get_sequence_nr", int)() >= _MANY_RECORDED:
        yield (
            "No optimizer of torch was seen to step. If this script trains, add `watching = forgather_mem.watch()` "
            "before its loop and `watching.step()` at the end of each step."
        )
