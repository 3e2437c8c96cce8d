"""What our own code takes, and a time budget for expensive readings: it decides when one may be taken again.

`engine.schedule.OverheadMeter` is the other controller: it weighs all of our code against the steps and stretches whole
rules, in numbers of steps, where this spaces one reading in seconds. The governor's `Budget` weighs collections, which
all ranks must agree on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import ParamSpec

from forgather_mem.errors import missing, ours
from forgather_mem.system.procfs import KernelFile, own_memory
from forgather_mem.telemetry.records import Finding, RunInfo
from forgather_mem.units import format_duration, format_share

# At most five expensive readings are in one set of probes; together they stay under 0.5 % of the time.
BUDGET_FRAC = 0.001

P = ParamSpec("P")


@dataclass(eq=False)
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

    every_s: float
    _: KW_ONLY
    budget_frac: float = BUDGET_FRAC
    expected_s: float = 0.0
    clock: Callable[[], float] = time.perf_counter
    _postponed: bool = False
    dearest_s: float = 0.0
    longest_wait_s: float = 0.0

    def __post_init__(self) -> None:
        # When the next is due, and when it would be if it cost nothing.
        self.next_s = self.usual_s = self.clock() + min(self.every_s, self.expected_s / self.budget_frac)

    def due(self) -> bool:
        """Whether it is time for a reading."""
        is_due = self.clock() >= self.next_s
        self._postponed |= not (is_due or self.every_s)
        return is_due

    def ran(self, cost_s: float) -> None:
        """Record that a reading has just been taken and took `cost_s` seconds."""
        if self.every_s:
            self._postponed |= self.next_s > self.usual_s
        now_s, wait_s = self.clock(), max(self.every_s, cost_s / self.budget_frac)
        self.next_s, self.usual_s = now_s + wait_s, now_s + self.every_s
        if wait_s > self.longest_wait_s:
            self.longest_wait_s, self.dearest_s = wait_s, cost_s

    def take(self, reading: Callable[P, dict[str, float]], *args: P.args, **kwargs: P.kwargs) -> dict[str, float]:
        """The reading, timed, if it is due; otherwise nothing."""
        if not self.due():
            return {}
        began_s = self.clock()
        values = reading(*args, **kwargs)
        self.ran(self.clock() - began_s)
        return values

    def tell(self, run: RunInfo, what: str) -> None:
        """Report to a run that is ending if the budget has postponed this reading."""
        text = self.note(what)
        if text:
            run.emit(backed_off(run, what, text))

    def note(self, what: str) -> str | None:
        """A sentence for the report if the budget has postponed a reading; None otherwise."""
        waiting = self.every_s > 0 and self.usual_s <= self.clock() < self.next_s
        if not (self._postponed or waiting):
            return None
        usual = f"every {format_duration(self.every_s)}" if self.every_s else "whenever it was due"
        return (
            f"{what}: read every {format_duration(self.longest_wait_s)} instead of {usual}; the slowest reading took "
            f"{format_duration(self.dearest_s)} (budget {format_share(self.budget_frac)} of the time)"
        )


def backed_off(run: RunInfo, what: str, text: str) -> Finding:
    """The finding that a reading was taken less often than asked, or not at all, because of its cost."""
    return Finding(kind="backed_off", step=run.step, text=text, data={"what": what})


class RareReadings(list[tuple[str, TimeBudget, Callable[..., dict[str, float]]]]):
    """What is read now and then: what it is called, its budget, and the reading."""

    _next_s = 0.0

    def take(self, *arguments: object) -> dict[str, float]:
        """The values that are due."""
        values: dict[str, float] = {}
        if time.perf_counter() >= self._next_s:
            for _, pace, reading in self:
                values |= pace.take(reading, *arguments)
            self._next_s = min((pace.next_s for _, pace, _ in self), default=math.inf)
        return values

    def tell(self, run: RunInfo) -> None:
        """Report those that were taken less often than asked."""
        for what, pace, _ in self:
            pace.tell(run, what)


# A thread that loses its processor is away for longer.
SHORT_S = 0.0002

Clocks = tuple[float, float]  # the time, and how long this thread had waited for a processor by then


class OwnTime:
    """Sums of what is spent in our own code, by the thread that trains.

    Waiting for a disk or a device counts, waiting for a busy processor does not: that wait meets whatever code is
    running, and the training would have waited instead. The kernel tells how long the thread has waited (5 us a
    reading in a real step). Where that is too much, in phases, all times up to `SHORT_S` count, and of longer ones what
    the waits since the last `take` can't explain.

    Attributes:
        spent_s: All that was spent since the last `take`, without such waits.
        reading_s: Of that, in readings that can be taken less often.
        long_s: Of phases, the parts beyond `SHORT_S`, with waits.

    >>> own = OwnTime()
    >>> own.spent_s, own.reading_s = 0.003, 0.002
    >>> own.take()
    (0.003, 0.002)
    """

    def __init__(self) -> None:
        self._file = KernelFile("/proc/thread-self/schedstat")
        self.spent_s = self.reading_s = self.long_s = 0.0
        self._waited_s = 0.0  # by the last `take`, which a run begins with: who is never asked opens no file

    def now(self) -> Clocks:
        """The clocks before something of ours, for `add`."""
        return time.perf_counter(), self._read_waited_s()

    def add(self, began: Clocks, *, reading: bool = False, sign: int = 1) -> Clocks:
        """Add what has passed since; `reading`: in what can be done less often. Returns the clocks now.

        With a `sign` of -1 it is taken out of what will be added around it: it was asked for.
        """
        now = self.now()
        spent_s = max(0.0, now[0] - began[0] - max(0.0, now[1] - began[1]))
        self.spent_s += sign * spent_s
        if reading:
            self.reading_s += spent_s
        return now

    def add_short(self, took_s: float) -> None:
        """Add what has taken so long by the performance counter: most often less than a reading of the waits takes."""
        short_s = min(took_s, SHORT_S)
        self.spent_s += short_s
        self.long_s += took_s - short_s

    def take(self) -> tuple[float, float]:
        """Our seconds since the last call: all of them, and those of readings that can be taken less often."""
        waited_s = self._read_waited_s()
        blocked_s = max(0.0, self.long_s - max(0.0, waited_s - self._waited_s))
        all_s, reading_s = self.spent_s + blocked_s, self.reading_s
        self.spent_s = self.reading_s = self.long_s = 0.0
        self._waited_s = waited_s
        return all_s, reading_s

    def close(self) -> None:
        """Close the kernel's file; the next call reopens it."""
        self._file.close()

    def _read_waited_s(self) -> float:
        """0 where the kernel does not tell."""
        try:
            return int(self._file.read(128).split()[1]) / 1e9
        except ours(OSError, ValueError, IndexError):
            return 0.0


class Preparation:
    """What preparing to watch takes in this process: imports, plans, what is read and set up before a first step.

    It sums what its blocks take: the time as in `OwnTime`, and resident memory. A block inside another is part of it.
    To `resident_bytes` others add what is taken later.

    >>> preparation = Preparation()
    >>> with preparation:
    ...     with preparation:
    ...         held = bytes(range(256)) * 2**17
    >>> preparation.take()[1] >> 25, preparation.take()
    (1, (0.0, 0))
    """

    def __init__(self) -> None:
        self._own = OwnTime()
        self._depth = self._before_bytes = self.resident_bytes = 0
        self._began: Clocks = 0.0, 0.0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._before_bytes, self._began = _resident_bytes(), self._own.now()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._own.add(self._began)
            self._own.close()
            self.resident_bytes += _resident_bytes() - self._before_bytes

    def take(self) -> tuple[float, int]:
        """Seconds and bytes since the last call."""
        taken = self._own.spent_s, max(0, self.resident_bytes)
        self._own.spent_s, self.resident_bytes = 0.0, 0
        return taken


# A single instance, since what is imported is the process's
PREPARATION = Preparation()


def _resident_bytes() -> int:
    """0 where no file can be opened, which is no reason not to watch."""
    with missing(OSError, ValueError):
        return own_memory().resident_bytes
    return 0
