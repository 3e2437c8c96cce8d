"""Which callback collects garbage without pauses that grow with the heap, and without leaking aged cycles?"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping

from forgather_mem.actions.collect import collect
from forgather_mem.actions.heap import HeapHold, frees_aged_cycles
from forgather_mem.callbacks.rule_callback import RuleCallback
from forgather_mem.plan import Rule
from forgather_mem.sample import Moment, RunInfo, Sample
from forgather_mem.store import Agreement
from forgather_mem.triggers import AtEvent, Every, check_period
from forgather_mem.units import format_bytes

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, float] = {}
BOUNDARIES = ("evaluate", "save", "epoch_end", "train_end")
# The share of the time that collections between boundaries, and those at boundaries, may take.
COLLECT_SHARE = 0.005
BOUNDARY_SHARE = 0.05
# A collection between boundaries that took this long has seen too much: what survived it is put aside, too.
LONG_PAUSE_S = 0.005
MAX_STRETCH = 64


class ScheduledGarbageCollector(RuleCallback):
    """Collects garbage on a schedule of its own instead of CPython's: short pauses, nothing left behind.

    Automatic collection is off. After the first `every_steps` steps everything alive is frozen, so that
    each later collection, a full one every `every_steps` steps, looks only at what came since. At
    evaluations, checkpoints and epoch ends, where a pause hides, everything is unfrozen, collected and
    frozen again; without any of these this happens every `boundary_steps` steps or `boundary_s` seconds.
    The steps are the same on all ranks: rank 0 decides when a budget stretches the schedule.

    Objects that you have frozen yourself stay frozen: then nothing is frozen or unfrozen here, which is
    said once. Thresholds are never touched. Everything is as before after the training, however it ends.

    Args:
        every_steps: Optimizer steps between collections; stretched when they take over 0.5 % of the time.
        freeze: False leaves out freezing and boundaries' unfreezing; collections then cost what the heap costs.
        generation: The generation to collect between boundaries. Below 2, cycles that have aged stay until
            the next boundary (up to Python 3.13; the running interpreter is tried).
        boundary_steps: A boundary of our own after so many steps without one.
        boundary_s: The same in seconds.
        verbose: Say what each boundary found, on rank 0.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    Raises:
        ValueError: for a period below 1 or a generation that does not exist.
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
        check_period(name, "every_steps", "step", every_steps)
        check_period(name, "boundary_steps", "step", boundary_steps)
        if every_steps is None or boundary_steps is None:
            raise ValueError(f"{name}: every_steps and boundary_steps are whole numbers of 1 or more")
        if generation not in (0, 1, 2):
            raise ValueError(f"{name}(generation={generation!r}): the generations are 0, 1 and 2")
        if not boundary_s > 0:
            raise ValueError(f"{name}(boundary_s={boundary_s!r}): give seconds above 0")
        self.every_steps = every_steps
        self.generation = generation
        governor = _Governor(every_steps, freeze, generation, boundary_steps, boundary_s, verbose)
        rules = [
            Rule(when=Every(steps=every_steps), do=[governor], name=name),
            Rule(when=AtEvent(*BOUNDARIES), do=[governor], name=f"{name} boundary"),
        ]
        super().__init__(rules, enabled=enabled, strict=strict)


class _Schedule:
    """What all ranks agree on: how far collections are stretched, and how many steps lie between boundaries."""

    def __init__(self, text: str) -> None:
        self.stretch, self.boundary_gap, self.own_boundary_steps = (int(number) for number in text.split())

    @staticmethod
    def text(stretch: int, boundary_gap: int, own_boundary_steps: int) -> str:
        return f"{stretch} {boundary_gap} {own_boundary_steps}"


class _Governor:
    """The work of the callback: state of one training, made in `begin` and dropped in `end`."""

    books = "collect"

    def __init__(
        self, every_steps: int, freeze: bool, generation: int, boundary_steps: int, boundary_s: float, verbose: bool
    ) -> None:
        self._every_steps = every_steps
        self._freeze = freeze
        self._generation = generation
        self._boundary_steps = boundary_steps
        self._boundary_s = boundary_s
        self._verbose = verbose
        self._hold: HeapHold | None = None

    def begin(self, run: RunInfo) -> None:
        self._hold = HeapHold(self._freeze)
        self._hold.take()
        self._started = False
        self._told_foreign = False
        self._boundary_step = run.step
        self._clock = (run.step, time.perf_counter())
        self._spent_s = 0.0
        self._agreement = Agreement(
            f"gc/{run.folder}",
            _Schedule.text(1, 0, self._boundary_steps),
            rank=run.rank,
            world_size=run.world_size,
        )
        if self._generation < 2 and not frees_aged_cycles(self._generation):
            logger.warning(
                "gc.collect(%d) does not free cycles that have survived a collection on this interpreter; "
                "they stay until the next evaluation, checkpoint or epoch end",
                self._generation,
            )

    def end(self, run: RunInfo) -> None:
        if self._hold is not None:
            self._hold.give_back()
            self._hold = None

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        hold = self._hold
        if hold is None:
            return NOTHING
        if moment.event == "step_end":
            return self._between(hold, moment)
        last = moment.event == "train_end"
        gap = _Schedule(self._agreement.at(moment.step)).boundary_gap
        if not last and (not self._started or moment.step - self._boundary_step < gap):
            return NOTHING
        return self._boundary(hold, moment, freeze_again=not last)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name in _SETTINGS} | {"_hold": None}

    def _between(self, hold: HeapHold, moment: Moment) -> Mapping[str, float]:
        schedule = _Schedule(self._agreement.at(moment.step))
        own = max(schedule.own_boundary_steps, schedule.boundary_gap)
        if not self._started or moment.step - self._boundary_step >= own:
            self._started = True
            return self._boundary(hold, moment, freeze_again=True)
        if (moment.step // self._every_steps) % schedule.stretch:
            return NOTHING
        values = collect(self._generation)
        took_s = values["collect/time_s"]
        if took_s > LONG_PAUSE_S:
            hold.freeze_more()
        self._plan_ahead(schedule, moment.step, took_s, 0.0)
        return values

    def _boundary(self, hold: HeapHold, moment: Moment, *, freeze_again: bool) -> Mapping[str, float]:
        schedule = _Schedule(self._agreement.at(moment.step))
        values = hold.renew(freeze_again=freeze_again)
        self._boundary_step = moment.step
        if hold.foreign and self._freeze and not self._told_foreign:
            self._told_foreign = True
            logger.warning(
                "objects are frozen already (gc.freeze() was called elsewhere): ScheduledGarbageCollector freezes and "
                "unfreezes nothing, so its collections cost what the heap costs"
            )
        if self._verbose:
            moment.run.say(
                f"Garbage collection at {moment.event}, step {moment.step}: {values['collect/objects']:.0f} objects, "
                f"{format_bytes(values['collect/freed_bytes'])} freed in {values['collect/time_s']:.3f}s."
            )
        self._plan_ahead(schedule, moment.step, 0.0, values["collect/time_s"])
        return values

    def _plan_ahead(self, schedule: _Schedule, step: int, collect_s: float, boundary_s: float) -> None:
        """Rank 0 weighs what was just spent against the time a step takes, and stretches what is too dear."""
        began_step, began_s = self._clock
        self._spent_s += collect_s + boundary_s
        if step == began_step:
            return
        step_s = max((time.perf_counter() - began_s - self._spent_s) / (step - began_step), 1e-6)
        stretch, gap = schedule.stretch, schedule.boundary_gap
        if collect_s:
            share = collect_s / (step_s * self._every_steps * stretch)
            if share > COLLECT_SHARE:
                stretch = min(stretch * 2, MAX_STRETCH)
            elif share < COLLECT_SHARE / 8 and stretch > 1:
                stretch //= 2
        if boundary_s:
            wanted = math.ceil(boundary_s / (BOUNDARY_SHARE * step_s))
            if not gap / 2 <= wanted <= gap:  # not for every small change
                gap = wanted
        own = max(1, min(self._boundary_steps, round(self._boundary_s / step_s)))
        if not schedule.own_boundary_steps / 2 < own < schedule.own_boundary_steps * 2:
            own_boundary_steps = own
        else:
            own_boundary_steps = schedule.own_boundary_steps
        text = _Schedule.text(stretch, gap, own_boundary_steps)
        self._agreement.propose(text, from_step=step + max(2 * self._every_steps, 4))


_SETTINGS = frozenset({"_every_steps", "_freeze", "_generation", "_boundary_steps", "_boundary_s", "_verbose"})
