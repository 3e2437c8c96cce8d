"""Which curves have told something: one that is zero from beginning to end is a card that hides the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forgather_mem.telemetry.metrics import GAUGE, metric_of

# Shorter collections are nobody's problem; a full one of a large heap takes ten times as long.
_SHORT_PAUSE_S = 0.005
_PAUSE, _ABOUT_PAUSES = "gc/pause_s", ("gc/pause_total_s", "gc/pause_max_s", "gc/tracked")


class QuietCurves:
    """What is left out of a run's page so far.

    Totals, flows and what is read only now and then are left out until they are not zero; more about Python's
    collector than its pauses, until one has taken 5 ms. From then on every value is written. Sizes that are read at
    each step are always written: TensorBoard draws a band only between curves with the same steps.
    """

    __slots__ = ("_paused", "_telling")

    def __init__(self) -> None:
        self._telling: set[str] = set()
        self._paused: bool | None = None  # None where pauses are not read

    def changed(self, left_out: Iterable[str], values: Mapping[str, float]) -> bool:
        """Whether one of these names, which were left out before, is now to be written."""
        before = self._paused
        self._hear_pause(values)
        if self._paused != before or not self._telling.isdisjoint(left_out):
            return True
        # Most often all of them are zero, and nothing is called
        return any(values[name] and self._tells(name, values[name]) for name in left_out)

    def without(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """The values to write."""
        if self._telling.issuperset(values):
            return values
        self._hear_pause(values)
        for name, value in values.items():
            if name not in self._telling and self._tells(name, value):
                self._telling.add(name)
        return {name: value for name, value in values.items() if name in self._telling}

    def _hear_pause(self, values: Mapping[str, float]) -> None:
        if not self._paused and _PAUSE in values:
            self._paused = values[_PAUSE] >= _SHORT_PAUSE_S

    def _tells(self, name: str, value: float) -> bool:
        if name in _ABOUT_PAUSES and self._paused is False:
            return False
        metric = metric_of(name)
        return value != 0 or (metric.kind == GAUGE and metric.cadence == "")
