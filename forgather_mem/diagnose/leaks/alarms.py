"""When growth that shows while a training runs is looked into and printed, and why it is no longer so at the end.

A size that rises for some hundred steps may be a leak or the first tooth of a sawtooth: metrics that are flushed at
every 500th step, cycles until their collection. No statistic tells these apart, and a run is judged many times. So
growth is looked into as soon as it is suspected, without a word, and printed once more than its curve speaks for a
leak: a holder that explains it and is never emptied, growth that lasts longer than usual intervals, or memory that will
be full before that. What was printed is taken back as soon as it has fallen again.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forgather_mem.diagnose.leaks.growing import LEAK, floor_of, whole_of
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
    level -= LEAK.suspect_frac * (level - edges[0][1])  # some noise is no growth
    flat = next(at for at, size in edges if size >= level)
    if flat <= (after[0][0] + 3 * after[-1][0]) / 4:
        return f"it has not grown since step {flat:,}"
    return "it has grown too unevenly since to be judged"


class LiveAlarm:
    """What is suspected, printed and taken back in one training.

    Attributes:
        alarm: What was printed and still stands.
        taken_back: What was printed and has proved wrong, as sentences.
    """

    def __init__(self) -> None:
        self.alarm: Alarm | None = None
        self.taken_back: list[str] = []
        self._calls, self._next_call, self._in_a_row = 0, LEAK.judged_every, 0
        self._given_back_at: dict[str, float] = {}

    @property
    def suspects(self) -> bool:
        """Whether something has grown at the last judgement, or was printed and still stands."""
        return self._in_a_row > 0 or self.alarm is not None

    def growing(self, series: Mapping[str, Series]) -> dict[str, Trend]:
        """The sizes that two judgements in a row have seen growing; call it after each reading."""
        self._calls += 1
        if self._calls < self._next_call:
            return {}
        self._next_call = self._calls + max(LEAK.judged_every, int(self._calls * LEAK.judged_frac))
        found = {
            name: trend
            for name, one in series.items()
            if one.may_grow(floor_of(name)) and (trend := one.judge(floor_of(name))).is_suspect
        }
        self._in_a_row = self._in_a_row + 1 if found else 0
        return found if self._in_a_row > 1 else {}

    def is_due(self, growing: Mapping[str, Trend], step: int, full_step: int | None, leak: LeakReport | None) -> bool:
        """Whether this growth is printed now.

        Args:
            growing: The sizes that grow.
            step: Number of finished steps.
            full_step: The step at which memory will be full at this rate, if known.
            leak: The verdict with the holders found so far; None before there are any.
        """
        if self.alarm is not None:
            return False
        seen = step - whole_of(growing).since_step
        if seen >= LEAK.lasting_steps or (full_step is not None and full_step - step <= seen):
            return True
        return leak is not None and not self.taken_back and is_held(leak)

    def printed(self, alarm: Alarm, growing: Mapping[str, Trend], series: Mapping[str, Series]) -> None:
        """This was printed; remember below which sizes it would be wrong."""
        self.alarm = alarm
        self._given_back_at = {
            name: min(size for step, size in series[name].points if 2 * step >= trend.since_step + alarm.step)
            for name, trend in growing.items()
        }

    def fallen(self, series: Mapping[str, Series]) -> str | None:
        """The sentence that takes the alarm back, once more than half of what had grown was given back."""
        alarm = self.alarm
        if alarm is None or not all(
            name in series and series[name].points and series[name].points[-1][1] < size
            for name, size in self._given_back_at.items()
        ):
            return None
        self.alarm = None
        self.taken_back.append(withdrawn(alarm, "it has been given back since"))
        return self.taken_back[-1]


def is_held(leak: LeakReport) -> bool:
    """Whether holders that nothing empties explain the growth; garbage waits only for its collection."""
    if leak.verdict != "leak":  # the verdict is another one where the holder is bounded
        return False
    waits = ("cycle",) if gc.isenabled() else ()
    held = sum(one.bytes_per_step for one in leak.suspects if one.held_by and one.kind not in waits)
    return LEAK.explains(held, leak.bytes_per_step)
