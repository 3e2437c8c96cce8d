"""A time budget for expensive readings: decides when one may be taken again.

`engine.schedule.OverheadMeter` is the other controller: it weighs all of our code against the steps and stretches whole
rules, in numbers of steps, where this spaces one reading in seconds. The governor's `Budget` weighs collections, which
all ranks must agree on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec

from forgather_mem.telemetry.protocols import RunInfo
from forgather_mem.telemetry.records import Finding
from forgather_mem.units import format_duration, format_share

# At most five expensive readings are in one set of probes; together they stay under 0.5 % of the time.
BUDGET_FRAC = 0.001

P = ParamSpec("P")


class TimeBudget:
    """Spaces a reading so that it takes at most a fraction of the elapsed time.

    A reading is due every `every_s` seconds; one that took `cost_s` is not due again before
    `cost_s / budget_frac` have passed. The first is due as soon as its expected cost fits the budget: a run of a few
    seconds has none.

    >>> now = [0.0]
    >>> pace = TimeBudget(every_s=10.0, clock=lambda: now[0])
    >>> pace.due()
    True
    >>> pace.ran(cost_s=0.05)  # 50 ms are 0.1 % of 50 s
    >>> now[0] = 49.0
    >>> pace.due()
    False
    >>> pace.note("PSS")
    'PSS: read every 50.0 s instead of every 10.0 s; the slowest reading took 50.0 ms (budget 0.1 % of the time)'

    Args:
        every_s: Seconds between readings without cost; the first is taken after this time at the latest.
        budget_frac: The fraction of the time that they may take.
        expected_s: Expected duration of the first.
    """

    __slots__ = ("_clock", "_every_s", "_postponed", "budget_frac", "dearest_s", "longest_wait_s", "next_s", "usual_s")

    def __init__(
        self,
        every_s: float,
        *,
        budget_frac: float = BUDGET_FRAC,
        expected_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._every_s = every_s
        self._clock = clock
        self.budget_frac = budget_frac
        # When the next is due, and when it would be if it cost nothing.
        self.next_s = self.usual_s = clock() + min(every_s, expected_s / budget_frac)
        self._postponed = False
        self.dearest_s = 0.0
        self.longest_wait_s = 0.0

    def due(self) -> bool:
        """Whether it is time for a reading."""
        return self._clock() >= self.next_s

    def ran(self, cost_s: float) -> None:
        """Record that a reading has just been taken and took `cost_s` seconds."""
        if self._every_s:
            self._postponed |= self.next_s > self.usual_s
        now_s, wait_s = self._clock(), max(self._every_s, cost_s / self.budget_frac)
        self.next_s, self.usual_s = now_s + wait_s, now_s + self._every_s
        if wait_s > self.longest_wait_s:
            self.longest_wait_s, self.dearest_s = wait_s, cost_s

    def take(self, reading: Callable[P, dict[str, float]], *args: P.args, **kwargs: P.kwargs) -> dict[str, float]:
        """The reading, timed, if it is due; otherwise nothing."""
        began_s = self._clock()
        if began_s < self.next_s:
            self._postponed |= not self._every_s
            return {}
        values = reading(*args, **kwargs)
        self.ran(self._clock() - began_s)
        return values

    def tell(self, run: RunInfo, what: str) -> None:
        """Report to a run that is ending if the budget has postponed this reading."""
        text = self.note(what)
        if text:
            run.emit(backed_off(run, what, text))

    def note(self, what: str) -> str | None:
        """A sentence for the report if the budget has postponed a reading; None otherwise."""
        waiting = self._every_s > 0 and self.usual_s <= self._clock() < self.next_s
        if not (self._postponed or waiting):
            return None
        usual = f"every {format_duration(self._every_s)}" if self._every_s else "whenever it was due"
        return (
            f"{what}: read every {format_duration(self.longest_wait_s)} instead of {usual}; the slowest reading took "
            f"{format_duration(self.dearest_s)} (budget {format_share(self.budget_frac)} of the time)"
        )


def backed_off(run: RunInfo, what: str, text: str) -> Finding:
    """The finding that a reading was taken less often than asked, or not at all, because of its cost."""
    return Finding(kind="backed_off", step=run.step, text=text, data={"what": what})
