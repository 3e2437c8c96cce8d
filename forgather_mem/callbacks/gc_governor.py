"""`ScheduledGarbageCollector`: pauses that don't grow with the heap, and no old cycles left behind."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from forgather_mem.actions.collect import check_generation, collect
from forgather_mem.actions.freeze import HeapHold
from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.errors import check_flags
from forgather_mem.system.rank_store import RankAgreement
from forgather_mem.telemetry.records import NOTHING, Moment, RunInfo, Sample
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import AtEvent, Every, check_period, check_seconds
from forgather_mem.units import format_bytes

logger = logging.getLogger(__name__)


BOUNDARIES = ("train_begin", "evaluate", "save", "epoch_end", "train_end")
# A collection between boundaries that took this long has visited too much: its survivors are frozen too.
LONG_PAUSE_S = 0.005


class ScheduledGarbageCollector(RuleCallback):
    """Collects garbage on its own schedule instead of CPython's: short pauses, nothing left behind.

    Automatic collection is off. Before the first step everything alive is collected and frozen, so that each later
    collection, a full one every `every_steps` steps, visits only newer objects. At boundaries (evaluations, checkpoints
    and epoch ends), where a pause does not matter, everything is unfrozen, collected and frozen again, within 5 % of
    the time; without any of these this happens every `boundary_steps` steps or `boundary_s` seconds. The steps are the
    same on all ranks: rank 0 decides when a budget stretches the schedule.

    Objects that you freeze yourself, before or meanwhile, stay frozen: then nothing is frozen or unfrozen here, which
    is reported once.
    Thresholds are never touched. The collector is restored after the training, however it ends.

    Args:
        every_steps: Optimizer steps between collections; stretched if they take over 0.5 % of the time and find
            nothing, or over 5 % and find garbage.
        freeze: False disables freezing and unfreezing; the cost of collections then grows with the heap.
        generation: The generation to collect between boundaries. Below 2, old cycles stay until the next boundary (up
            to Python 3.13; the running interpreter is tested).
        boundary_steps: Number of steps without a boundary after which we insert one.
        boundary_s: The same in seconds; infinity to count steps only.
        verbose: Print what each boundary found, on rank 0.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    Raises:
        ValueError: for a period below 1, a generation that does not exist, or a switch that is neither true nor false.
    """

    def __init__(
        self,
        every_steps: int = 10,
        *,
        freeze: bool = True,
        generation: int = 2,
        boundary_steps: int = 1000,
        boundary_s: float = 900.0,
        verbose: bool = False,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        name = type(self).__name__
        check_period(name, "every_steps", "step", every_steps, needed=True)
        check_period(name, "boundary_steps", "step", boundary_steps, needed=True)
        check_generation(name, generation)
        check_seconds(name, boundary_s=boundary_s)
        check_flags(name, freeze=freeze, verbose=verbose)
        governor = EachRun(_Governor, every_steps, freeze, generation, boundary_steps, boundary_s, verbose)
        rules = [
            Rule(when=Every(steps=every_steps), do=[governor], name=name),
            Rule(when=AtEvent(*BOUNDARIES), do=[governor], name=f"{name} boundary"),
        ]
        super().__init__(rules, enabled=enabled, strict=strict)


@dataclass(eq=False)
class _Governor:
    """The work of the callback, in one training."""

    books: ClassVar = "collect"
    run: RunInfo
    every_steps: int
    freeze: bool
    generation: int
    boundary_steps: int
    boundary_s: float
    verbose: bool

    def __post_init__(self) -> None:
        run = self.run
        self._hold = HeapHold(self.freeze)
        run.at_close(self._hold.give_back)
        self._hold.take()
        self._started = False
        self._told_foreign = False
        self._boundary_step = run.step
        self._budget = Budget(self.every_steps, self.boundary_steps, self.boundary_s)
        first = Schedule(stretch=1, gap_steps=0, own_boundary_steps=self.boundary_steps)
        self._agreement = RankAgreement(run.store_key("gc"), first.write(), rank=run.rank, world_size=run.world_size)

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if not self._hold.held:
            return NOTHING
        try:
            return self._collect(moment)
        except BaseException:
            self._hold.give_back()  # otherwise nothing would collect for the rest of the training
            raise

    def _collect(self, moment: Moment) -> Mapping[str, float]:
        schedule = Schedule.read(self._agreement.at(moment.step))
        if moment.event == "step_end":
            own_steps = max(schedule.own_boundary_steps, schedule.gap_steps)
            if not self._started or moment.step - self._boundary_step >= own_steps:
                return self._at_boundary(moment, schedule)
            if (moment.step // self.every_steps) % schedule.stretch:
                return NOTHING
            return self._between(moment, schedule)
        if moment.event == "train_end" and moment.step == self._boundary_step:
            return collect()  # the rest is still frozen: the epoch's end has just collected it
        # An evaluation, a checkpoint and the end of an epoch may follow the same step: the first of them is enough.
        is_due = self._started and moment.step - self._boundary_step >= max(1, schedule.gap_steps)
        if moment.event == "train_begin":
            is_due = not self._started
        return self._at_boundary(moment, schedule) if is_due or moment.event == "train_end" else NOTHING

    def _between(self, moment: Moment, schedule: Schedule) -> Mapping[str, float]:
        self._budget.begins(moment.step)
        began_s = time.thread_time()
        values = collect(self.generation)
        long = time.thread_time() - began_s > LONG_PAUSE_S  # CPU time: a busy processor is not the heap's fault
        if long:
            self._hold.freeze_more()
        self._budget.collected(moment.step, values["collect/time_s"], values["collect/objects"], froze=long)
        self._plan_ahead(schedule, moment.step)
        return values

    def _at_boundary(self, moment: Moment, schedule: Schedule) -> Mapping[str, float]:
        self._budget.begins(moment.step)
        values = self._hold.renew(freeze_again=moment.event != "train_end")
        self._started = True
        self._boundary_step = moment.step
        self._budget.renewed(moment.step, values["collect/time_s"], at_start=moment.event == "train_begin")
        self._plan_ahead(schedule, moment.step)
        if self._hold.foreign and self.freeze and not self._told_foreign:
            self._told_foreign = True
            logger.warning(
                "objects are frozen already (gc.freeze() was called elsewhere): ScheduledGarbageCollector freezes and "
                "unfreezes nothing, so its collections scan the whole heap"
            )
        if self.verbose:
            moment.run.print_line(
                f"Garbage collection at {moment.event}, step {moment.step}: {values['collect/objects']:.0f} objects, "
                f"{format_bytes(values['collect/freed_bytes'])} freed in {values['collect/time_s']:.3f}s."
            )
        return values

    def _plan_ahead(self, schedule: Schedule, step: int) -> None:
        wanted = self._budget.advice(schedule, step).write()
        self._agreement.propose(wanted, from_step=step + max(2 * self.every_steps, 4))  # by then all ranks know it


@dataclass(frozen=True, slots=True)
class CollectionLimits:
    """How much time collections may take. Measured by benchmarks/gc_policies.py.

    Attributes:
        useless_frac: Of the time: those that find nothing.
        useful_frac: Those that find garbage, as in dask's collector.
        boundary_frac: Those at boundaries.
        most_stretch: Of the steps between collections.
        most_freezes: Objects frozen between boundaries and then dropped in a cycle stay until the next boundary, which
            comes after so many.
    """

    useless_frac: float = 0.005
    useful_frac: float = 0.05
    boundary_frac: float = 0.05
    most_stretch: int = 64
    most_freezes: int = 8


LIMITS = CollectionLimits()


@dataclass(frozen=True, slots=True)
class Schedule:
    """What all ranks have agreed on.

    Attributes:
        stretch: Only every `stretch`-th collection between boundaries runs.
        gap_steps: Minimum number of steps between boundaries.
        own_boundary_steps: Number of steps without a boundary after which we insert one.

    >>> Schedule.read(Schedule(2, 0, 1000).write())
    Schedule(stretch=2, gap_steps=0, own_boundary_steps=1000)
    """

    stretch: int
    gap_steps: int
    own_boundary_steps: int

    @classmethod
    def read(cls, text: str) -> Schedule:
        return cls(*map(int, text.split()))

    def write(self) -> str:
        return f"{self.stretch} {self.gap_steps} {self.own_boundary_steps}"


@dataclass(eq=False)
class Budget:
    """Weighs the cost and yield of collections against the duration of a step.

    Call `begins` before and either `collected` or `renewed` after each collection, then `advice`.

    Args:
        every_steps: Steps between collections without stretching.
        boundary_steps: Maximum number of steps without a boundary.
        boundary_s: Maximum number of seconds without one.
    """

    every_steps: int
    boundary_steps: int
    boundary_s: float
    clock: Callable[[], float] = time.perf_counter
    # For the median: some of these intervals contain an evaluation
    _step_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    _last: tuple[int, float] | None = None  # None at first: the first steps compile and load
    _collect_s: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    _found: float = 0.0
    _renew_s: float = 0.0
    _renewed_step: int = 0
    _num_freezes: int = 0

    def begins(self, step: int) -> None:
        """A collection is about to begin at this step."""
        if self._last is not None and step > self._last[0]:
            self._step_s.append((self.clock() - self._last[1]) / (step - self._last[0]))

    def collected(self, step: int, took_s: float, num_objects: float, *, froze: bool) -> None:
        """A collection between boundaries is over; `froze`: its survivors were frozen too."""
        self._last = (step, self.clock())
        self._collect_s.append(took_s)
        self._found = num_objects
        self._num_freezes += froze

    def renewed(self, step: int, took_s: float, *, at_start: bool = False) -> None:
        """A boundary is over; `at_start`: the one before the first step."""
        self._last = None if at_start else (step, self.clock())
        self._renew_s, self._renewed_step = took_s, step
        self._num_freezes = 0

    def advice(self, now: Schedule, step: int) -> Schedule:
        """The appropriate schedule; `now` itself if it is close enough."""
        if not self._step_s:
            return now
        step_s = max(statistics.median(self._step_s), 1e-6)
        return Schedule(
            stretch=self._stretch(now.stretch, step_s),
            gap_steps=_unless_near(now.gap_steps, math.ceil(self._renew_s / (LIMITS.boundary_frac * step_s)), 2.0),
            own_boundary_steps=_unless_near(now.own_boundary_steps, self._own_boundary_steps(step, step_s), 1.25),
        )

    def _stretch(self, stretch: int, step_s: float) -> int:
        if not self._collect_s:
            return stretch
        share = statistics.median(self._collect_s) / (step_s * self.every_steps * stretch)
        allowed = LIMITS.useful_frac if self._found else LIMITS.useless_frac
        if share > allowed:
            return min(stretch * 2, LIMITS.most_stretch)
        return stretch // 2 if share < allowed / 4 and stretch > 1 else stretch

    def _own_boundary_steps(self, step: int, step_s: float) -> int:
        if self._num_freezes >= LIMITS.most_freezes:
            return max(1, step - self._renewed_step)  # now, as soon as all ranks know
        return max(1, int(min(self.boundary_steps, self.boundary_s / step_s)))


def _unless_near(now: int, wanted: int, factor: float) -> int:
    """`wanted`, or `now` if they differ by less than this factor: not every small change is proposed."""
    return now if now / factor < wanted < now * factor else wanted
