"""The works of a run: each begins once, and of several with the same reading one is called for all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping

from forgather_mem.probes import probe_of
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.protocols import RunInfo, Work
from forgather_mem.telemetry.records import Moment, Sample
from forgather_mem.telemetry.rule import Rule


class WorkSet:
    """The works that have begun, in this order. See `FullWork` for what is called."""

    __slots__ = ("_fence", "_probes", "_readings", "_works")

    def __init__(self, fence: FailureGuard) -> None:
        self._fence = fence
        self._works: list[Work] = []
        self._probes: dict[type, Work] = {}
        self._readings: dict[Hashable, Work] = {}

    def stand_in(self, work: Work) -> Work:
        """Of works with equal readings, the first replaces the others, so that everything is counted once."""
        reading = getattr(work, "reading", None)
        return work if reading is None else self._readings.setdefault(reading, work)

    def begin(self, rule: Rule, run: RunInfo) -> None:
        """Begin with the works of this rule that have not begun yet."""
        for work in rule.do:
            self._begin(self.stand_in(work), run)

    def read(self, name: str, moment: Moment, sample: Sample) -> Mapping[str, float]:
        """Readings with this name, from the probe that gives it; empty where only a rule can read it."""
        probe_class = probe_of(name)
        if probe_class is None:
            return {}
        probe = self._probes.get(probe_class)
        if probe is None:
            probe = self._probes[probe_class] = self.stand_in(probe_class())
            self._begin(probe, moment.run)
        return probe(moment, sample)

    def ends(self, run: RunInfo) -> Iterator[Callable[[], object]]:
        """The last begun first: the calls that end each work; then those that give back what it has taken."""
        call, works = self._fence.call_part, self._works[::-1]
        yield from (functools.partial(call, work, "end", run) for work in works)
        yield from (functools.partial(call, work, "give_back") for work in works)

    def give_back(self) -> None:
        """Give back what each has taken, whatever has failed before."""
        for work in reversed(self._works):
            self._fence.call_part(work, "give_back")

    def clear(self) -> None:
        self._works.clear()

    def _begin(self, work: Work, run: RunInfo) -> None:
        if not any(work is known for known in self._works):
            self._works.append(work)
            self._fence.call_part(work, "begin", run)
