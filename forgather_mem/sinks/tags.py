"""Maps a sample's numbers to their TensorBoard tags and units."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping

from forgather_mem.telemetry.metrics import GAUGE, Metric, metric_of

_STEP_RECORD = "step_end"


def tag_of(metric: Metric, event: str = _STEP_RECORD, device: int | None = None) -> str:
    """The full tag of a metric read at an event.

    Gauges read at an event other than `step_end` get their own tags, so that the numbers of an evaluation are not mixed
    with those of the steps. Gauges read only now and then, or with a phase in their name, need none.

    >>> rss, peak = metric_of("host/rss_bytes"), metric_of("device/step_peak_bytes")
    >>> tag_of(rss), tag_of(rss, "evaluate"), tag_of(peak, device=1)
    ('mem_host/rss_gib', 'mem_host/evaluate_rss_gib', 'mem_gpu1/step_peak_gib')
    """
    if event == _STEP_RECORD or metric.kind != GAUGE or metric.cadence or metric.name.startswith("phase/"):
        return _whole_tag(metric.tag, device)
    group, _, rest = metric.tag.partition("/")
    return _whole_tag(f"{group}/{event}_{rest}", device)


def _whole_tag(tag: str, device: int | None) -> str:
    group, _, rest = tag.partition("/")
    if group in ("gpu", "phase_gpu"):
        group = f"{group}{device or 0}"
    return f"mem_{group}/{rest}"


class Columns:
    """Maps the values of samples with one event and one set of names to the numbers of their tags.

    Extremes of the run are written with the steps only, so that they have a point wherever their gauges do: TensorBoard
    draws a band only between tags with equal steps. Other events count towards them too.

    Args:
        event: The samples' event.
        device: The samples' device.
        names: The names of their values, in order.

    Attributes:
        names: The values to write; None for all.
        tags: One per value in order, then those that only show an extreme.
        metrics: The table's row of each tag.
        factors: One per value written: the tag's number is value times factor.
        extremes: The tags that show the run's highest or lowest value so far.
        spiking: The values that count for such a tag: (name, factor, tag, comparison, index of the tag or -1 if it is
            not written).
    """

    def __init__(self, event: str, device: int | None, names: Iterable[str]) -> None:
        rows = [metric_of(name) for name in names]
        of_a_step = event == _STEP_RECORD
        self.metrics = rows if of_a_step else [row for row in rows if not row.running]
        self.names = None if of_a_step else [row.name for row in self.metrics]
        self.tags = [tag_of(row, event, device) for row in self.metrics]
        self.factors = [row.factor for row in self.metrics]
        self.spiking: list[tuple[str, float, str, Callable[[float, float], bool], int]] = []
        for row in list(rows):
            if shown := row.tag if row.running else row.extreme_tag:
                tag = _whole_tag(shown, device)
                if of_a_step and not row.running:
                    self.tags.append(tag)
                    self.metrics.append(row)
                beats = operator.lt if row.running == "min" else operator.gt
                self.spiking.append((row.name, row.factor, tag, beats, self.tags.index(tag) if of_a_step else -1))
        self.extremes = [tag for _, _, tag, _, index in self.spiking if index >= 0]

    def numbers_so_far(self, values: Mapping[str, float], so_far: dict[str, float]) -> list[tuple[int, float]]:
        """(index of the tag, number) for each extreme; `so_far` holds the run's extremes by tag."""
        found = []
        for name, factor, tag, beats, index in self.spiking:
            number = values[name] * factor
            best = so_far.get(tag)
            if best is None or beats(number, best):
                best = so_far[tag] = number
            if index >= 0:
                found.append((index, best))
        return found
