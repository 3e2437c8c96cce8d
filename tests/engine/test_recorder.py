"""The open record and what belongs to it; the works of a run, which begin, stand in for others, and end in order."""

import weakref
from collections.abc import Mapping
from typing import Any

from forgather_mem.engine.recorder import FLOWS, OpenRecord, WorkSet
from forgather_mem.engine.run import Run, RunFacts
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import Moment, Sample

RUN: Any = Run(RunFacts())
RUN.device = 3
SAMPLE = Sample("step_end", 1, None, 0.0, {})
MOMENT = Moment("step_end", 1, None, None, None, None, {}, RUN)


def moment(event: str, step: int) -> Moment:
    return Moment(event, step, 0.5, None, None, None, {}, RUN)


def test_a_gauge_is_the_last_value_and_a_flow_the_sum_of_its_record() -> None:
    record = OpenRecord()
    assert {"cache/freed_bytes", "gc/pause_s"} <= FLOWS
    record.begin(moment("step_end", 7))
    for number in (1.0, 2.0):
        record.add({"host/rss_bytes": number, "cache/freed_bytes": number})
    first = record.freeze()
    record.begin(moment("save", 7))
    record.add({"cache/freed_bytes": 4.0})
    second = record.freeze()
    record.begin(moment("step_end", 8))
    record.add({"cache/freed_bytes": 8.0})
    third = record.freeze()
    assert first is not None
    assert dict(first.values) == {"host/rss_bytes": 2.0, "cache/freed_bytes": 3.0}
    assert [sample.values["cache/freed_bytes"] for sample in (second, third) if sample is not None] == [4.0, 8.0]


class Work:
    """Notes what is called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __call__(self, moment: Any, sample: Any) -> Mapping[str, float]:
        return {}

    def begin(self, run: Any) -> None:
        self.called.append("begin")

    def end(self, run: Any) -> None:
        self.called.append("end")


def nothing(moment: Any, sample: Any) -> Mapping[str, float]:
    return {}


def test_what_a_work_has_begun_is_called_ends_and_is_dropped_in_its_place() -> None:
    class Settings:
        reading = "host"

        def begin(self, run: Any) -> Any:
            return Work()

    settings = Settings()
    works = WorkSet(FailureGuard(strict=True))
    for one in (settings, nothing, settings):  # nobody begins twice
        works.begun(one, RUN)
    work = works.begun(Settings(), RUN)  # of an equal reading
    assert (work, vars(settings)) == (works.begun(settings, RUN), {})
    for end in works.ends(RUN):
        end()
    assert work.called == ["end"]
    alive = weakref.ref(work)
    del work, end
    works.clear()
    assert alive() is None


def test_a_reading_that_no_rule_takes_comes_from_its_probe_which_is_begun_once() -> None:
    works = WorkSet(FailureGuard(strict=True))
    for _ in range(2):
        assert works.read("host/rss_bytes", MOMENT, SAMPLE)["host/rss_bytes"] > 2**20
    assert works.read("mine/queue_len", MOMENT, SAMPLE) == {}
    ends = list(works.ends(RUN))
    assert len(ends) == 1
    for end in ends:
        end()
