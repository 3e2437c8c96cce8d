"""Adds a few of our numbers to the trainer's own log lines, and so to W&B, MLflow, trackio, ..."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from forgather_mem.errors import did_you_mean
from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.metrics import FLOW, GAUGE, Metric, check_name, metric_of
from forgather_mem.telemetry.records import RunInfo, Sample

_Keys = Mapping[str, Sequence[str]]
_TENSORS: _Keys = {
    f"tensors_{part}_gib": (f"tensors/{part}_bytes",) for part in ("parameters", "gradients", "optimizer", "buffers")
}
# By group, keys on the host and those that replace them when there is a device. The second host name of the peak counts
# if it rises.
_GROUPS: Mapping[str, tuple[_Keys, _Keys]] = {
    "peak": ({"peak_gib": ("host/rss_bytes", "host/rss_peak_bytes")}, {"peak_gib": ("device/step_peak_bytes",)}),
    "headroom": ({"headroom_gib": ("host/available_bytes",)}, {"headroom_gib": ("device/headroom_bytes",)}),
    "phases": (
        {f"phase_{phase}_gib": (f"phase/host/{phase}_peak_bytes",) for phase in PHASES},
        {f"phase_{phase}_gib": (f"phase/device/{phase}_peak_bytes",) for phase in PHASES},
    ),
    "tensors": (_TENSORS, _TENSORS),
}
GROUPS = tuple(_GROUPS)[1:]
"""What `also` may name."""
_LOWEST = ("host/available_bytes", "device/headroom_bytes")  # the least of these is what matters


class TrainerLogSink:
    """Collects samples between two log lines of the trainer, and returns a few numbers for each line.

    It prints and sends nothing itself: the code that writes the log line calls `log_values(step)` and adds the result.
    A gauge returns its highest value since the last line (headroom its lowest), a flow its sum, a total its last value;
    in GiB, ms, per cent or counts as in TensorBoard. A line without new samples has none.

    Args:
        prefix: Prefix of every key.
        keys: Maps a key to a sample name, or to several of one unit that are combined. Default: `peak_gib`, the
            device's peak since the last line, or the host's if there is no device.
        also: Groups of keys beside these, as far as a probe reads them: "headroom" (`headroom_gib`, of the device or
            the host), "phases" (`phase_forward_gib`, ...) and "tensors" (`tensors_optimizer_gib`, ...).

    >>> sink = TrainerLogSink(keys={"rss_gib": "host/rss_bytes"})
    >>> sink.write(Sample(event="step_end", step=1, epoch=None, time_s=0.0, values={"host/rss_bytes": 2.0**31}))
    >>> sink.log_values(1)
    {'mem_rss_gib': 2.0}

    Raises:
        ValueError: for an empty prefix (the key could be the trainer's own), a misspelt sample name, names of several
            units under one key, or an unknown group.
    """

    def __init__(
        self, prefix: str = "mem_", keys: Mapping[str, str | Sequence[str]] | None = None, also: Sequence[str] = ()
    ) -> None:
        if not prefix or not isinstance(prefix, str):
            raise ValueError(f"TrainerLogSink(prefix={prefix!r}): give a prefix, else a key may be the trainer's own")
        self.prefix = prefix
        self.keys = None if keys is None else {key: _checked(key, names) for key, names in keys.items()}
        self.also = check_groups("TrainerLogSink", "also", also, GROUPS)
        self._begin(device_seen=False)

    def begin(self, run: RunInfo) -> None:
        """A training begins: there are no values yet."""
        self._begin(device_seen=False)

    def write(self, sample: Sample) -> None:
        """Take a sample into the next line."""
        if not self._device_seen and "device/step_peak_bytes" in sample.values:
            self._begin(device_seen=True)
        for windows in self._windows.values():
            for window in windows:
                window.take(sample)

    def log_values(self, step: int) -> dict[str, float]:
        """Numbers for the log line of this step, finite and plain; starts a new window.

        Args:
            step: Optimizer steps done.
        """
        return self._line(self._windows)

    def evaluation_values(self, sample: Sample) -> dict[str, float]:
        """Numbers for the line of an evaluation that ended with this sample; the window of the training stays open."""
        aside = {key: [window.aside(sample) for window in windows] for key, windows in self._windows.items()}
        return self._line(aside)

    def _line(self, by_key: Mapping[str, Sequence[_Window]]) -> dict[str, float]:
        line = {}
        for key, windows in by_key.items():
            numbers = [number for window in windows if (number := window.close()) is not None]
            if numbers:
                line[self.prefix + key] = min(numbers) if windows[0].takes_lowest else max(numbers)
        return line

    def _begin(self, device_seen: bool) -> None:
        self._device_seen = device_seen
        groups = [*(["peak"] if self.keys is None else []), *self.also]
        keys = {key: names for group in groups for key, names in _GROUPS[group][device_seen].items()}
        keys |= self.keys or {}
        self._windows = {key: [_Window(metric_of(name)) for name in names] for key, names in keys.items()}


class _Window:
    """One sample name between two log lines."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.takes_lowest = metric.running == "min" or metric.name in _LOWEST
        self._number: float | None = None  # of this window
        self._last: float | None = None

    def aside(self, sample: Sample) -> _Window:
        """Another that has taken this sample alone; a maximum of the run that it has seen is no rise for this one."""
        other = _Window(self.metric)
        other._last = self._last
        other.take(sample)
        self._last = other._last
        return other

    def take(self, sample: Sample) -> None:
        value = sample.values.get(self.metric.name)
        if value is None:
            return
        metric, known = self.metric, self._number
        if metric.kind == FLOW:
            self._number = value + (known or 0.0)
        elif metric.kind != GAUGE:
            self._number = value
        elif self.takes_lowest:
            self._number = value if known is None else min(known, value)
        elif metric.running != "max" or (self._last is not None and value > self._last):
            # The run's maximum is meaningful for this window only if it rises in it.
            self._number = value if known is None else max(known, value)
        self._last = value

    def close(self) -> float | None:
        """The window's number in the tag's unit; None if there is none."""
        number, self._number = self._number, None
        return None if number is None else float(number * self.metric.factor)


def check_groups(owner: str, parameter: str, given: Sequence[str], groups: Collection[str]) -> tuple[str, ...]:
    """These groups, if all are known.

    Raises:
        ValueError: naming `owner` and the parameter, for anything else.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"{owner}({parameter}={given!r}): give a list of groups: {', '.join(groups)}")
    unknown = [name for name in given if not isinstance(name, str) or name not in groups]
    if unknown:
        hint = did_you_mean(str(unknown[0]), groups)
        known = f"the groups are {', '.join(groups)}" + (f"; {hint}" if hint else "")
        raise ValueError(f"{owner}({parameter}={unknown!r}): {known}")
    return tuple(given)


def _checked(key: str, names: str | Sequence[str]) -> tuple[str, ...]:
    chosen = (names,) if isinstance(names, str) else tuple(names)
    for name in chosen:
        check_name(name)
    units = sorted({metric_of(name).unit for name in chosen})
    if len(units) != 1:
        raise ValueError(f"TrainerLogSink(keys={{{key!r}: {names!r}}}): name samples of one unit, not {units}")
    return chosen
