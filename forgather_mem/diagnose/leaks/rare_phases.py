"""What a run gains with its evaluations, saves and generations: where that is all, these are the unit of its leak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forgather_mem.diagnose.leaks.growing import LEAK
from forgather_mem.growth.trend import GROWTH
from forgather_mem.telemetry.records import RunInfo

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import LeakReport, Unit

_UNITS: dict[str, Unit] = {"evaluate": "an evaluation", "save": "a save", "generate": "a generation"}
_COUNTED = ("native", "objects", "device", "pinned")


@dataclass(slots=True)
class _Gained:
    """Since the first of a kind: how many more there were, and what was gained with and without them."""

    first_step: int
    step: int
    count: int = 0
    beside: float = 0.0
    without: float = 0.0
    steps_without: int = 0

    @property
    def is_all(self) -> bool:
        """Whether it grows with them, and not in the steps between, of which there are some."""
        is_seen = self.count >= GROWTH.fewest_edges and 4 * self.steps_without >= self.step - self.first_step
        return is_seen and abs(self.without) <= (1 - LEAK.sure_frac) * (self.beside + self.without)


class RarePhases:
    """Hears of the phases that don't come in each step; of each kind only sums are kept.

    What such a phase brings may come shortly before or after it is told of, so what counts is the stretch between two
    readings in which it ends.
    """

    wants_begin = False  # of the phases of a step

    def __init__(self, run: RunInfo) -> None:
        self._run, self._then, self._step = run, 0.0, run.step
        self._gained: dict[str, _Gained] = {}
        self._ended: set[str] = set()

    def phase_begin(self, phase: str) -> None:
        """Only its end matters."""

    def phase_end(self, phase: str) -> None:
        one = self._gained.setdefault(phase, _Gained(self._run.step, self._run.step))
        if one.step < self._run.step:
            one.step, one.count = self._run.step, one.count + 1
            self._ended.add(phase)

    def read(self, step: int, values: Mapping[str, float]) -> None:
        """What was read after this step."""
        if "native" not in values:
            return
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
        """The leak with its unit: the only kind of phase with which it grows."""
        found = [(per, one) for phase, per in _UNITS.items() if (one := self._gained.get(phase)) and one.is_all]
        if len(found) != 1:
            return leak
        per, one = found[0]
        steps = (one.step - one.first_step) / one.count
        return replace(leak, per=per, per_steps=steps, since_step=max(leak.since_step, one.first_step))
