"""One point for each tag and step: TensorBoard shows the last of several, and its readers return them all."""

from __future__ import annotations

from collections.abc import Mapping

from forgather_mem.sinks.tags import Columns, tag_of
from forgather_mem.telemetry.metrics import FLOW, metric_of
from forgather_mem.telemetry.records import Sample


class StepPoints:
    """What is still to be written of a sample: an evaluation, a checkpoint, an epoch's end follow a step's own record.

    The first point of a tag at a step stays. What a flow adds to it later in that step is part of the next record; a
    total has caught up there by itself.

    Attributes:
        step: The step whose points are known; None before the first.
        rest: What flows have added since their point was written, by name.
    """

    __slots__ = ("_written", "rest", "step")

    def __init__(self) -> None:
        self.step: int | None = None
        self.rest: dict[str, float] = {}
        self._written: tuple[tuple[Columns, Mapping[str, float]], ...] = ()

    def wrote(self, step: int, columns: Columns, values: Mapping[str, float]) -> None:
        """These tags have their point now; `values` is the sample's own."""
        if step == self.step:
            self._written += ((columns, values),)
        else:
            self.step, self._written = step, ((columns, values),)
            if self.rest:
                self.rest.clear()

    def left_of(self, sample: Sample) -> Mapping[str, float]:
        """The values to write now."""
        if sample.step != self.step:
            return {**sample.values, **{name: sample.values.get(name, 0.0) + rest for name, rest in self.rest.items()}}
        tags = {tag for columns, _ in self._written for tag in columns.tags}
        left = {}
        for name, value in sample.values.items():
            metric = metric_of(name)
            if tag_of(metric, sample.event, sample.device) not in tags:
                left[name] = value
            elif metric.kind == FLOW:
                self._keep(name, value)
        return left

    def _keep(self, name: str, value: float) -> None:
        """Flows are summed over the step: the rest is what the point lacks."""
        first = next((values[name] for _, values in self._written if name in values), 0.0)
        if value > first:
            self.rest[name] = value - first
