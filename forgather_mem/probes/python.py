"""Python's garbage collector during a run: how often, how long, over how many objects."""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate, repeat, starmap, tee
from typing import ClassVar

from forgather_mem.probes.budgeted import Budgeted
from forgather_mem.probes.live_objects import emptied
from forgather_mem.system.time_budget import BUDGET_FRAC, TimeBudget
from forgather_mem.telemetry.records import Moment, RunInfo, Sample, Work

FULL_GENERATION = 2
_COUNTING_S = 0.04  # with the 400 000 objects of a process that has imported torch and transformers


@dataclass(unsafe_hash=True)
class PythonProbe(Budgeted):
    """Collections and pauses of all causes, timed inside the collector; less often, the number of tracked objects.

    `gc/pause_s` is the time spent since the last call, so that it adds up over a step. A step has it once: after its
    record only the totals are reported, after a full collection; that pause is part of the next step. From `begin` to
    `end` a callable of ours, in C, is in `gc.callbacks`; it adds 1 us to an automatic collection.

    Args:
        tracked_every_s: Seconds between counts of the tracked objects; less often if counting would take over 0.1 % of
            the time (300 000 objects take 10 to 40 ms), so the first is also after 10 s.
        budget_frac: That budget, as a fraction.

    Raises:
        ValueError: for a period or budget that is not positive.
    """

    tracked_every_s: float = 10.0
    _: KW_ONLY
    budget_frac: float = BUDGET_FRAC
    reading: ClassVar = ("collector",)  # however often it counts objects: pauses of two would add up

    def begin(self, run: RunInfo) -> Work:
        return _Collector(self, run)


class _Collector:
    """The probe in one run."""

    def __init__(self, probe: PythonProbe, run: RunInfo) -> None:
        self._pace = TimeBudget(probe.tracked_every_s, budget_frac=probe.budget_frac, expected_s=_COUNTING_S)
        self._pauses = _Pauses()
        run.at_close(lambda: self._close(run))
        gc.callbacks.append(self._pauses.callback)

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        pauses, pace = self._pauses, self._pace
        total_s, longest_s = pauses.look()
        after_step = moment.event != "step_end" and moment.step == pauses.step
        if after_step and pauses.given_full == pauses.full:
            return {}
        values: dict[str, float] = {
            "gc/pause_s": total_s - pauses.given_s,
            "gc/pause_total_s": total_s,
            "gc/pause_max_s": longest_s,
            "gc/collections": pauses.full,
        }
        pauses.given_full = pauses.full
        if after_step:
            del values["gc/pause_s"]
            return values
        pauses.given_s, pauses.step = total_s, moment.step
        if time.perf_counter() >= pace.next_s:
            # get_objects() does not include objects frozen by gc.freeze()
            values |= pace.take(lambda: {"gc/tracked": emptied(gc.get_objects()) + gc.get_freeze_count()})
        return values

    def _close(self, run: RunInfo) -> None:
        with contextlib.suppress(ValueError):  # the list was emptied elsewhere
            gc.callbacks.remove(self._pauses.callback)
        self._pace.tell(run, "tracked objects")


class _Pauses:
    """Adds up the pauses inside the collector, in C alone.

    The interpreter runs a pending handler of a signal when a function of Python begins, and the collector drops what
    its callbacks raise: a function here would lose a Ctrl-C that comes during a collection. So the collector calls
    `getattr(self, phase, info)`, and the properties named as the phases advance iterators whose parts are all of C.

    Attributes:
        callback: For `gc.callbacks`.
        sums: One pair: the seconds of all pauses, and of the longest.
        full: Full collections so far, by the last look.
    """

    start = property(operator.methodcaller("_began"))
    stop = property(operator.methodcaller("_ended"))

    def __init__(self) -> None:
        clock = starmap(time.perf_counter, repeat(()))
        began: dict[str, float] = {}
        # The end minus the start; of a collection during which we were added the start is not known, and it counts as 0
        pauses = map(float.__rsub__, map(began.pop, repeat("s"), clock), clock)
        each, again = tee(pauses)
        self.sums = deque([(0.0, 0.0)], maxlen=1)
        self._began = map(began.__setitem__, repeat("s"), clock).__next__
        self._ended = map(self.sums.append, zip(accumulate(each), accumulate(again, max), strict=True)).__next__
        self.callback = functools.partial(getattr, self)
        self.step = -1
        self.given_s = 0.0
        self.given_full = self.full = 0
        self._seen, self._full_before = self.sums[0], _full_collections()

    def look(self) -> tuple[float, float]:
        """Both sums until now."""
        sums = self.sums[0]
        if sums is not self._seen:
            self._seen, self.full = sums, _full_collections() - self._full_before
        return sums


def _full_collections() -> int:
    return int(gc.get_stats()[FULL_GENERATION]["collections"])
