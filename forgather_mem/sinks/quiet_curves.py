"""Which curves have told something: one that is zero from beginning to end is a card that hides the others."""

from __future__ import annotations

from collections.abc import Mapping

from forgather_mem.telemetry.metrics import GAUGE, metric_of

# Shorter collections are nobody's problem; a full one of a large heap takes ten times as long.
_SHORT_PAUSE_S = 0.005
_COLLECTOR, _PAUSES = "gc/", ("gc/pause_s", "gc/pause_max_s")


class QuietCurves:
    """What is left out of a run's page so far.

    Totals, flows and what is read only now and then are left out until they are not zero; what Python's collector does,
    until it has paused for 5 ms at once. From then on every value is written. Sizes that are read at each step are
    always written: TensorBoard draws a band only between curves with the same steps.
    """

    __slots__ = ("_paused", "_telling")

    def __init__(self) -> None:
        self._telling: set[str] = set()
        self._paused: bool | None = None  # None where pauses are not read

    def without(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """The values to write."""
        if self._telling.issuperset(values):
            return values
        if not self._paused:
            pauses = [values[name] for name in _PAUSES if name in values]
            self._paused = max(pauses) >= _SHORT_PAUSE_S if pauses else self._paused
        for name, value in values.items():
            if name not in self._telling and self._tells(name, value):
                self._telling.add(name)
        return {name: value for name, value in values.items() if name in self._telling}

    def _tells(self, name: str, value: float) -> bool:
        if name.startswith(_COLLECTOR) and self._paused is False:
            return False
        metric = metric_of(name)
        return value != 0 or (metric.kind == GAUGE and metric.cadence == "")
