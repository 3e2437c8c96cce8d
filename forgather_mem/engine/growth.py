"""Growth per step of this process and its workers, for the report of a run that was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from forgather_mem.telemetry.records import Sample

if TYPE_CHECKING:
    from forgather_mem.growth.trend import Series

# Less than this, over the whole run, counts as flat.
_FLAT_FRAC = 0.02
SOURCES = {
    "process": ("host/anon_bytes", "host/rss_bytes"),
    "workers": ("workers/pss_bytes", "host/children_pss_bytes"),
}


class Growth:
    """The sizes of the steps, judged as for a leak, in constant memory.

    Attributes:
        since_step: The first step seen; None before it.
        series: The sizes of each; empty before it.

    >>> growth = Growth()
    >>> for step in range(1, 101):
    ...     growth.add(Sample("step_end", step, None, 0.0, {"host/anon_bytes": 2**30 + step * 2**20}))
    >>> growth.of("process")
    1048576.0
    """

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}
        self.since_step: int | None = None

    def add(self, sample: Sample) -> None:
        """Add one record."""
        if sample.event != "step_end":
            return
        if self.since_step is None:
            # Where memory is short when a process without a step ends, half a MiB counts
            from forgather_mem.growth.trend import Series

            self.since_step = sample.step
            self.series = {who: Series() for who in SOURCES}
        values = sample.values
        for who, (first, second) in SOURCES.items():
            value = values.get(first, values.get(second))
            if value is not None:
                self.series[who].add(sample.step, value)

    def of(self, who: Literal["process", "workers"]) -> float | None:
        """Bytes per step, 0.0 if flat and None if it was not read often enough.

        What grew too unevenly to be judged, or ever more slowly, counts with the rate that was measured.
        """
        from forgather_mem.growth.trend import GROWTH

        series = self.series.get(who)
        if series is None or len(series.points) < GROWTH.fewest_in_all:
            return None
        trend = series.judge()
        return trend.per_step if trend.per_step * trend.steps >= _FLAT_FRAC * series.points[0][1] else 0.0
