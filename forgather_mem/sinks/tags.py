"""Under which TensorBoard tags do a sample's numbers stand, and in which unit?"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping

from forgather_mem.metrics import GAUGE, Metric, metric_of

_STEP_RECORD = "step_end"


def tag_of(metric: Metric, event: str = _STEP_RECORD, device: int | None = None) -> str:
    """The whole tag of a metric that was read at an event.

    Gauges read at another event than `step_end` get tags of their own, so that the numbers of an evaluation
    don't stand among those of the steps. What holds for the run so far, or names its phase, needs none.

    >>> rss, peak = metric_of("host/rss_bytes"), metric_of("device/step_peak_bytes")
    >>> tag_of(rss), tag_of(rss, "evaluate"), tag_of(peak, device=1)
    ('mem_host/rss_gib', 'mem_host/evaluate_rss_gib', 'mem_gpu1/step_peak_gib')
    """
    if event == _STEP_RECORD or metric.kind != GAUGE or metric.running or metric.name.startswith("phase/"):
        return _whole_tag(metric.tag, device)
    group, _, rest = metric.tag.partition("/")
    return _whole_tag(f"{group}/{event}_{rest}", device)


def _whole_tag(tag: str, device: int | None) -> str:
    group, _, rest = tag.partition("/")
    if group in ("gpu", "phase_gpu"):
        group = f"{group}{device or 0}"
    return f"mem_{group}/{rest}"


class Columns:
    """From the values of samples with one event and one set of names to the numbers under their tags.

    Args:
        event: The samples' event.
        device: The samples' device.
        names: The names of their values, in order.

    Attributes:
        tags: In the order of the numbers.
        metrics: The table's row of each tag.
        extremes: Those tags that show the run's highest or lowest value so far.
    """

    __slots__ = ("_extra", "_factors", "_running", "extremes", "metrics", "tags")

    def __init__(self, event: str, device: int | None, names: Iterable[str]) -> None:
        self.metrics: list[Metric] = [metric_of(name) for name in names]
        self.tags = [tag_of(row, event, device) for row in self.metrics]
        self._factors = [row.factor for row in self.metrics]
        self._running: list[tuple[int, str, Callable[[float, float], bool]]] = []
        self._extra: list[tuple[int, str]] = []
        for index, (tag, row) in enumerate(zip(self.tags, self.metrics, strict=True)):
            if row.running:
                self._running.append((index, tag, operator.gt if row.running == "max" else operator.lt))
            if row.extreme_tag:
                self._extra.append((index, _whole_tag(row.extreme_tag, device)))
        self.tags += [tag for _, tag in self._extra]
        self.metrics += [self.metrics[index] for index, _ in self._extra]
        self.extremes = [tag for _, tag, _ in self._running] + [tag for _, tag in self._extra]

    def numbers(self, values: Mapping[str, float], so_far: dict[str, float]) -> list[float]:
        """One number for each tag; `so_far` keeps the run's extremes by tag."""
        numbers = [value * factor for value, factor in zip(values.values(), self._factors, strict=True)]
        for index, tag, beats in self._running:
            numbers[index] = _extreme(so_far, tag, numbers[index], beats)
        for index, tag in self._extra:
            numbers.append(_extreme(so_far, tag, numbers[index], operator.gt))
        return numbers


def _extreme(so_far: dict[str, float], tag: str, number: float, beats: Callable[[float, float], bool]) -> float:
    best = so_far.get(tag)
    if best is None or beats(number, best):
        so_far[tag] = number
        return number
    return best
