"""The record that is being filled, until it is complete and written."""

from __future__ import annotations

import time
from collections.abc import Mapping

from forgather_mem.telemetry.events import EVENTS_INSIDE_A_STEP
from forgather_mem.telemetry.metrics import FLOW, METRICS
from forgather_mem.telemetry.records import Moment, Sample

_OF_A_STEP = EVENTS_INSIDE_A_STEP | {"step_end"}
FLOWS = frozenset(metric.name for metric in METRICS if metric.kind == FLOW)


class OpenRecord:
    """Takes readings and freezes them into a `Sample`, which does not change any more; then it may be opened again.

    Attributes:
        sample: A view of the open record, for works; None while none is open.
        values: Its readings so far.

    >>> from forgather_mem.engine.run import Run, RunFacts
    >>> record, run = OpenRecord(), Run(RunFacts())
    >>> view = record.begin(Moment("optimizer_step", 3, None, None, None, None, {}, run))
    >>> record.add({"host/rss_bytes": 5.0, "cache/freed_bytes": 1.0})
    >>> record.add({"cache/freed_bytes": 2.0})
    >>> record.freeze().values, record.sample
    ({'host/rss_bytes': 5.0, 'cache/freed_bytes': 3.0}, None)
    """

    __slots__ = ("_flow_step", "_flows", "sample", "values")

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self.values: dict[str, float] = {}
        self._flow_step = -1
        self._flows: dict[str, float] = {}

    def begin(self, moment: Moment) -> Sample:
        """Begin the record of this moment. A step's record collects what is read in all events inside the step."""
        event = "step_end" if moment.event in EVENTS_INSIDE_A_STEP else moment.event
        values: dict[str, float] = {}
        self.values = values
        self.sample = view = Sample(event, moment.step, moment.epoch, time.time(), values, moment.run.device)
        return view

    def takes(self, event: str, step: int) -> bool:
        """Whether what is read at this event belongs to the open record."""
        view = self.sample
        return (
            view is not None
            and view.step == step
            and (event in _OF_A_STEP if view.event == "step_end" else event == view.event)
        )

    def add(self, new: Mapping[str, float]) -> None:
        """Add readings. Flows are summed over the step: TensorBoard shows the last value of a (tag, step)."""
        self.values.update(new)
        if not FLOWS.isdisjoint(new):
            self.sum_flows(new)

    def sum_flows(self, new: Mapping[str, float]) -> None:
        """Of these readings, which have been added, let the flows be the sums of the step."""
        values, view = self.values, self.sample
        if view is None:
            return
        if self._flow_step != view.step:
            self._flow_step = view.step
            self._flows.clear()
        for name in FLOWS.intersection(new):
            values[name] = self._flows[name] = self._flows.get(name, 0.0) + new[name]

    def freeze(self) -> Sample | None:
        """The finished record; None if none is open, or nothing was read."""
        sample, values = self.sample, self.values
        self.sample, self.values = None, {}
        return sample if values else None

    def drop(self) -> None:
        """Forget the open record."""
        self.sample, self.values = None, {}
