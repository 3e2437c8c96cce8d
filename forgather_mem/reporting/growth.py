"""Growth per step of this process and its workers."""

from __future__ import annotations

from typing import Literal

from forgather_mem.telemetry.records import Sample
from forgather_mem.units import KIB

# The first steps allocate what stays: optimizer state, caches, compiled code.
_WARM_UP_STEPS = 10
_FEWEST_POINTS = 20
# Less than this, over the whole run and per step, counts as flat.
_FLAT_FRAC, _FLAT_BYTES = 0.02, 4 * KIB
_NAMES = {"process": ("host/anon_bytes", "host/rss_bytes"), "workers": ("host/children_pss_bytes",)}


class Growth:
    """Straight lines fitted to the readings of the steps, updated point by point.

    Attributes:
        since_step: The first step seen; None before it.

    >>> growth = Growth()
    >>> for step in range(1, 101):
    ...     growth.add(Sample("step_end", step, None, 0.0, {"host/anon_bytes": 2**30 + step * 2**20}))
    >>> growth.of("process")
    1048576.0
    """

    def __init__(self) -> None:
        self._lines = {who: _Line() for who in _NAMES}
        self.since_step: int | None = None

    def add(self, sample: Sample) -> None:
        """Add one record."""
        if sample.event != "step_end":
            return
        if self.since_step is None:
            self.since_step = sample.step
        if sample.step < self.since_step + _WARM_UP_STEPS:
            return
        for who, names in _NAMES.items():
            value = next((sample.values[name] for name in names if name in sample.values), None)
            if value is not None:
                self._lines[who].add(sample.step, value)

    def of(self, who: Literal["process", "workers"]) -> float | None:
        """Bytes per step, 0.0 if flat and None if it was not read often enough."""
        return self._lines[who].slope()


class _Line:
    """Sums of a least-squares line; both coordinates are relative to the first point to keep precision."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._points = 0
        self._x = self._y = self._xx = self._xy = 0.0
        self._last_x = 0.0

    def add(self, step: int, value: float) -> None:
        if self._first is None:
            self._first = (step, value)
        x, y = step - self._first[0], value - self._first[1]
        self._points += 1
        self._x += x
        self._y += y
        self._xx += x * x
        self._xy += x * y
        self._last_x = x

    def slope(self) -> float | None:
        spread = self._points * self._xx - self._x * self._x
        if self._points < _FEWEST_POINTS or self._first is None or spread <= 0:
            return None
        slope = (self._points * self._xy - self._x * self._y) / spread
        grown = abs(slope) * self._last_x
        return 0.0 if abs(slope) < _FLAT_BYTES or grown < _FLAT_FRAC * self._first[1] else slope
