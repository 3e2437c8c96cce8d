"""What a run gains with its evaluations, saves and generations: where that is all, these are the unit of its leak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from forgather_mem.diagnose.leaks.growing import LEAK
from forgather_mem.growth.trend import GROWTH
from forgather_mem.telemetry.records import RunInfo
from forgather_mem.telemetry.report import LeakReport

_UNITS = {"evaluate": "an evaluation", "save": "a save", "generate": "a generation"}
_COUNTED = ("native", "objects", "device", "pinned")


@dataclass(slots=True)
class _Gained:
    """Since the first of a kind: how many more there were, and what was gained inside, with and without them."""

    first_step: int
    step: int
    count: int = 0
    inside: float = 0.0
    beside: float = 0.0
    without: float = 0.0
    steps_without: int = 0


class RarePhases:
    """Hears of the phases that don't come in each step; of each kind only sums are kept.

    What such a phase brings may come shortly before or after it is told of, so what counts is the stretch between two
    readings in which it ends.
    """

    wants_begin = False  # of the phases of a step

    def __init__(self, run: RunInfo, allocated: Callable[[], float]) -> None:
        self._run, self._allocated = run, allocated
        self._began = self._then = 0.0
        self._step = run.step
        self._gained: dict[str, _Gained] = {}
        self._ended: set[str] = set()

    def phase_begin(self, phase: str) -> None:
        self._began = self._allocated()

    def phase_end(self, phase: str) -> None:
        one = self._gained.setdefault(phase, _Gained(self._run.step, self._run.step))
        if one.step < self._run.step:
            one.step, one.count = self._run.step, one.count + 1
            one.inside += self._allocated() - self._began
            self._ended.add(phase)

    def read(self, step: int, values: Mapping[str, float]) -> None:
        """What was read after this step."""
        if "native" in values:
            now, steps = sum(values.get(name, 0.0) for name in _COUNTED), step - self._step
            for phase, one in self._gained.items():
                if phase in self._ended:
                    one.beside += now - self._then
                elif one.count:
                    one.without += now - self._then
                    one.steps_without += steps
            self._then, self._step = now, step
            self._ended.clear()

    def told(self, leak: LeakReport) -> LeakReport:
        """The leak with its unit: a kind of phase with which it grows, while it does not in the steps between."""
        for phase, one in sorted(self._gained.items(), key=lambda pair: -pair[1].inside):
            is_seen = one.count >= GROWTH.fewest_edges and 4 * one.steps_without >= one.step - one.first_step
            most = (1 - LEAK.sure_frac) * (one.beside + one.without)
            if phase in _UNITS and is_seen and abs(one.without) <= most:
                since = max(leak.since_step, one.first_step)
                return replace(
                    leak, per=_UNITS[phase], per_steps=(one.step - one.first_step) / one.count, since_step=since
                )
        return leak
