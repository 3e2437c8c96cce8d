"""What was said about a leak while the training ran, and why it is no longer so at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forgather_mem.growth.lower_envelope import Point, edges_of
from forgather_mem.growth.trend import Series, Trend
from forgather_mem.units import format_bytes

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import LeakReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A line that was printed: at this step, of these sizes, named so, growing by so much."""

    step: int
    names: frozenset[str]
    label: str
    per_step: float


def taken_back(alarm: Alarm, leak: LeakReport, trends: Mapping[str, Trend], series: Mapping[str, Series]) -> str | None:
    """What to say of the alarm at the end; None if the final verdict says the same.

    Args:
        alarm: What was said.
        leak: The final verdict.
        trends, series: The final judgements of the sizes, and their readings; the workers' are missing once these have
            ended.
    """
    still = {name for name in alarm.names if name in trends and trends[name].kind == "leak"}
    if still and (leak.verdict == "leak" or leak.why):  # the verdict tells of this growth, be it of a bounded holder
        return None
    if any(trends[name].kind == "slowing" for name in alarm.names if name in trends):
        reason = "it grows ever less"
    else:
        known = [series[name].points for name in sorted(alarm.names) if name in series]
        reason = _since_then(max(known, key=len, default=()), alarm.step)
    return withdrawn(alarm, reason)


def withdrawn(alarm: Alarm, reason: str) -> str:
    """The sentence that takes an alarm back."""
    return f"{alarm.label} grows {format_bytes(alarm.per_step)} a step (step {alarm.step:,}): {reason}"


def _since_then(points: Sequence[Point], step: int) -> str:
    """What became of a size after this step."""
    after = [point for point in points if point[0] >= step]
    if not after:
        return "what grew has ended since, and gave its memory back"
    now = min(size for _, size in after[-3:])
    if now < min(size for _, size in after[:3]):
        return "it has been given back since"
    edges = edges_of(after, 16)
    level = min(size for _, size in edges[-(len(edges) // 8 + 1) :])
    flat = next(at for at, size in edges if size >= level)
    if flat <= (after[0][0] + 3 * after[-1][0]) / 4:
        return f"it has not grown since step {flat:,}"
    return "it has grown too unevenly since to be judged"
