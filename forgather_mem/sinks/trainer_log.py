"""Adds a few of our numbers to the trainer's own log lines, and so to W&B, MLflow, trackio, ..."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from forgather_mem.telemetry.metrics import FLOW, GAUGE, Metric, check_name, metric_of
from forgather_mem.telemetry.protocols import RunInfo
from forgather_mem.telemetry.records import Sample

# The device's peak if there is a device, else the host's; the second host name counts if it rises.
DEFAULT_KEYS: Mapping[str, Sequence[str]] = {"peak_gib": ("host/rss_bytes", "host/rss_peak_bytes")}
DEFAULT_DEVICE_KEYS: Mapping[str, Sequence[str]] = {"peak_gib": ("device/step_peak_bytes",)}
_DEVICE_NAME = "device/step_peak_bytes"


class TrainerLogSink:
    """Collects samples between two log lines of the trainer, and returns a few numbers for each line.

    It prints and sends nothing itself: the code that writes the log line calls `log_values(step)` and adds the result.
    A gauge returns its highest value since the last line (headroom its lowest), a flow its sum, a total its last value;
    in GiB, ms, per cent or counts as in TensorBoard. A line without new samples repeats the last numbers.

    Args:
        prefix: Prefix of every key.
        keys: Maps a key to a sample name, or to several of one unit that are combined. Default: `peak_gib`, the
            device's peak since the last line, or the host's if there is no device.

    >>> sink = TrainerLogSink(keys={"rss_gib": "host/rss_bytes"})
    >>> sink.write(Sample(event="step_end", step=1, epoch=None, time_s=0.0, values={"host/rss_bytes": 2.0**31}))
    >>> sink.log_values(1)
    {'mem_rss_gib': 2.0}

    Raises:
        ValueError: for an empty prefix (the key could be the trainer's own), a misspelt sample name, or names
            of several units under one key.
    """

    def __init__(self, prefix: str = "mem_", keys: Mapping[str, str | Sequence[str]] | None = None) -> None:
        if not prefix or not isinstance(prefix, str):
            raise ValueError(
                f"TrainerLogSink(prefix={prefix!r}): give a prefix, else a key may be one of the trainer's own"
            )
        self.prefix = prefix
        self.keys = None if keys is None else {key: _checked(key, names) for key, names in keys.items()}
        self._windows = _windows(self.keys or DEFAULT_KEYS)
        self._device_seen = False

    def begin(self, run: RunInfo) -> None:
        """A training begins: there are no values yet."""
        self._windows = _windows(self.keys or DEFAULT_KEYS)
        self._device_seen = False

    def write(self, sample: Sample) -> None:
        """Take a sample into the next line."""
        if self.keys is None and not self._device_seen and _DEVICE_NAME in sample.values:
            self._device_seen = True
            self._windows = _windows(DEFAULT_DEVICE_KEYS)
        for windows in self._windows.values():
            for window in windows:
                value = sample.values.get(window.metric.name)
                if value is not None:
                    window.take(value)

    def log_values(self, step: int) -> dict[str, float]:
        """Numbers for the log line of this step, finite and plain; starts a new window.

        Args:
            step: Optimizer steps done.
        """
        line = {}
        for key, windows in self._windows.items():
            numbers = [number for window in windows if (number := window.close()) is not None]
            if numbers:
                line[self.prefix + key] = min(numbers) if windows[0].metric.running == "min" else max(numbers)
        return line


class _Window:
    """One sample name between two log lines."""

    __slots__ = ("_best", "_last", "_sum", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._best: float | None = None
        self._last: float | None = None
        self._sum = 0.0

    def take(self, value: float) -> None:
        if not math.isfinite(value):
            return
        metric = self.metric
        if metric.kind == FLOW:
            self._sum += value
        elif metric.kind == GAUGE:
            if metric.running == "min":
                self._best = value if self._best is None else min(self._best, value)
            elif metric.running != "max" or (self._last is not None and value > self._last):
                # The run's maximum is meaningful for this window only if it rises in it.
                self._best = value if self._best is None else max(self._best, value)
        self._last = float(value)

    def close(self) -> float | None:
        """The window's number in the tag's unit; None if there is none."""
        if self._last is None:
            return None
        if self.metric.kind == FLOW:
            number: float | None = self._sum
        elif self.metric.kind == GAUGE and (self._best is not None or self.metric.running == "max"):
            number = self._best
        else:
            number = self._last
        self._best, self._sum = None, 0.0
        return None if number is None else float(number * self.metric.factor)


def _checked(key: str, names: str | Sequence[str]) -> tuple[str, ...]:
    chosen = (names,) if isinstance(names, str) else tuple(names)
    for name in chosen:
        check_name(name)
    units = sorted({metric_of(name).unit for name in chosen})
    if len(units) != 1:
        raise ValueError(f"TrainerLogSink(keys={{{key!r}: {names!r}}}): name samples of one unit, not {units}")
    return chosen


def _windows(keys: Mapping[str, Sequence[str]]) -> dict[str, list[_Window]]:
    return {key: [_Window(metric_of(name)) for name in names] for key, names in keys.items()}
