"""When growth that shows while a training runs is looked into and printed, and why it is no longer so at the end.

A size that rises for some hundred steps may be a leak or the first tooth of a sawtooth: metrics that are flushed at
every 500th step, cycles until their collection. No statistic tells these apart, and a run is judged many times. So
growth is looked into as soon as it is suspected, without a word, and printed once more than its curve speaks for a
leak: a holder that explains it and is never emptied, growth that lasts longer than usual intervals, or memory that will
be full before that. What was printed is taken back as soon as it has fallen again, or has stopped for long.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from forgather_mem.diagnose.leaks.growing import LEAK, floor_of, label_of, whole_of
from forgather_mem.growth.lower_envelope import Point, edges_of
from forgather_mem.growth.trend import GROWTH, Series, Trend, judge

if TYPE_CHECKING:
    from forgather_mem.diagnose.leaks.suspects import Suspect
    from forgather_mem.telemetry.report import LeakReport, LeakSuspect

T = TypeVar("T", "Suspect", "LeakSuspect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A line that was printed: at this step, of these sizes together, what grows and by how much.

    It is wrong once each of these sizes has come below that in `given_back_at`.
    """

    step: int
    given_back_at: Mapping[str, float]
    said: str


def taken_back(alarm: Alarm, leak: LeakReport, trends: Mapping[str, Trend], series: Mapping[str, Series]) -> str | None:
    """What to say of the alarm at the end; None if the final verdict says the same.

    Args:
        alarm: What was said.
        leak: The final verdict.
        trends, series: The final judgements of the sizes, and their readings; the workers' are missing once these have
            ended.
    """
    growing = {name: trend for name, trend in trends.items() if trend.kind == "leak"}
    # The verdict tells of this growth, be it of a bounded holder, or in another size of the same memory
    if growing and label_of(growing) == label_of(alarm.given_back_at) and (leak.verdict == "leak" or leak.why):
        return None
    after = _since(alarm, series)
    flat = _flat_from(after)
    if any(trends[name].kind == "slowing" for name in alarm.given_back_at if name in trends):
        reason = "it grows ever less"
    elif not after or min(size for _, size in after[-3:]) < min(size for _, size in after[:3]):
        reason = "it has been given back since"
    elif flat is not None:
        reason = f"it has hardly grown since step {flat:,}"
    else:
        reason = "it has grown too unevenly since to be judged"
    return _withdrawn(alarm, reason)


def _withdrawn(alarm: Alarm, reason: str) -> str:
    return f"{alarm.said} (step {alarm.step:,}): {reason}"


def _since(alarm: Alarm, series: Mapping[str, Series]) -> list[Point]:
    """The readings since an alarm, of its size with the most."""
    known = [series[name].points for name in sorted(alarm.given_back_at) if name in series]
    return [point for point in max(known, key=len, default=[]) if point[0] >= alarm.step]


def _flat_from(after: Sequence[Point]) -> int | None:
    """The step from which on a size has not grown any more; None if there is none well before the last."""
    if not after:
        return None
    edges = edges_of(after, 16)
    level = min(size for _, size in edges[-(len(edges) // 8 + 1) :])
    level -= LEAK.suspect_frac * (level - edges[0][1])  # some noise is no growth
    flat = next(at for at, size in edges if size >= level)
    return flat if flat <= (after[0][0] + 3 * after[-1][0]) / 4 else None


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
            if one.may_grow(floor_of(name)) and (trend := judge(one.points, floor_of(name))).is_suspect
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
        lasts = step - whole_of(growing).since_step >= LEAK.lasting_steps or is_soon(growing, step, full_step)
        return lasts or (leak is not None and not self.taken_back and is_held(leak))

    def printed(self, growing: Mapping[str, Trend], series: Mapping[str, Series], step: int, said: str) -> None:
        """This was printed; remember below which sizes it would be wrong."""
        given_back_at = {
            name: min(size for at, size in series[name].points if 2 * at >= trend.since_step + step)
            for name, trend in growing.items()
        }
        self.alarm = Alarm(step=step, given_back_at=given_back_at, said=said)

    def ended(self, series: Mapping[str, Series]) -> str | None:
        """The sentence that takes the alarm back: more than half was given back, or it has stopped for a long time."""
        if self.alarm is None:
            return None
        after = _since(self.alarm, series)
        flat = _flat_from(after) if not self._in_a_row else None
        if all(name in series and series[name].points[-1][1] < size for name, size in self.alarm.given_back_at.items()):
            reason = "it has been given back since"
        elif flat is not None and after[-1][0] - flat >= max(GROWTH.fewest_steps, after[-1][0] / 4):
            reason = f"it has hardly grown since step {flat:,}"
        else:
            return None
        self.taken_back.append(_withdrawn(self.alarm, reason))
        self.alarm = None
        return self.taken_back[-1]


def is_soon(growing: Mapping[str, Trend], step: int, full_step: int | None) -> bool:
    """Whether memory will be full before it has grown for as long again; until then a buffer may fill up."""
    return full_step is not None and full_step - step <= step - whole_of(growing).since_step


def is_held(leak: LeakReport) -> bool:
    """Whether holders that nothing empties, or lines, explain the growth."""
    if leak.verdict != "leak":  # the verdict is another one where the holder is bounded
        return False
    held = sum(one.bytes_per_step for one in lasting(leak.suspects) if one.held_by or one.allocated_at)
    return LEAK.explains(held, leak.bytes_per_step)


def lasting(suspects: Sequence[T]) -> list[T]:
    """Those that hold for good: garbage waits only for its collection."""
    return [one for one in suspects if one.kind != "cycle" or not gc.isenabled()]
