"""What does Python's collector do in this run: how often, how long, over how many objects?"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Hashable, Mapping

from forgather_mem.probes.pace import BUDGET_FRAC, Pace
from forgather_mem.sample import Moment, RunInfo, Sample

FULL_GENERATION = 2
_COUNTING_S = 0.04  # with the 400 000 objects of a process that has imported torch and transformers


class PythonProbe:
    """Collections and pauses of all causes, timed from inside the collector; rarer, the objects it tracks.

    `gc/pause_s` is what was spent since the last call, so that it sums up over a step. From `begin` to
    `end` one callable of ours stands in `gc.callbacks`; an automatic collection costs 1 us more by it.

    Args:
        tracked_every_s: Seconds between counts of the tracked objects; rarer when counting them would take
            over 0.1 % of the time (300 000 objects take 10 to 40 ms), so the first comes after 10 s, too.
        budget_frac: That share.

    Raises:
        ValueError: for a period or budget that is not positive.
    """

    names = ("gc/",)

    def __init__(self, tracked_every_s: float = 10.0, *, budget_frac: float = BUDGET_FRAC) -> None:
        if not tracked_every_s > 0:
            raise ValueError(f"PythonProbe(tracked_every_s={tracked_every_s}): give seconds above 0")
        if not 0 < budget_frac <= 1:
            raise ValueError(f"PythonProbe(budget_frac={budget_frac}): give a share above 0 and at most 1")
        self.tracked_every_s = tracked_every_s
        self.budget_frac = budget_frac
        self.reading: Hashable = (type(self), tracked_every_s, budget_frac)
        self._pauses: _Pauses | None = None
        self._pace: Pace | None = None

    def begin(self, run: RunInfo) -> None:
        self._stop()
        self._pace = Pace(self.tracked_every_s, budget_frac=self.budget_frac, expected_s=_COUNTING_S)
        self._pauses = _Pauses()
        gc.callbacks.append(self._pauses)

    def end(self, run: RunInfo) -> None:
        if self._pace is not None:
            self._pace.tell(run, "tracked objects")
        self._stop()

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        pauses, pace = self._pauses, self._pace
        if pauses is None or pace is None:  # not begun: nothing has been counted
            return {}
        total_s = pauses.total_s
        values: dict[str, float] = {
            "gc/pause_s": total_s - pauses.given_s,
            "gc/pause_total_s": total_s,
            "gc/pause_max_s": pauses.longest_s,
            "gc/collections": pauses.full,
        }
        pauses.given_s = total_s
        if time.perf_counter() >= pace.next_s:
            values |= pace.take(_tracked)
        return values

    def _stop(self) -> None:
        pauses, self._pauses, self._pace = self._pauses, None, None
        if pauses is not None:
            with contextlib.suppress(ValueError):  # somebody emptied the list
                gc.callbacks.remove(pauses)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_pauses": None, "_pace": None}


class _Pauses:
    """Counts inside the collector. Collections don't overlap, so one start time is enough."""

    __slots__ = ("_began_s", "full", "given_s", "longest_s", "total_s")

    def __init__(self) -> None:
        self._began_s: float | None = None
        self.full = 0
        self.total_s = self.given_s = self.longest_s = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        now_s = time.perf_counter()
        if phase == "start":
            self._began_s = now_s
        elif self._began_s is not None:  # None: we came in while this collection was running
            pause_s = now_s - self._began_s
            self._began_s = None
            self.total_s += pause_s
            if pause_s > self.longest_s:
                self.longest_s = pause_s
            if info["generation"] == FULL_GENERATION:
                self.full += 1


def _tracked() -> dict[str, float]:
    # get_objects() sees nothing that gc.freeze() has put aside
    return {"gc/tracked": len(gc.get_objects()) + gc.get_freeze_count()}
