"""The open record and what belongs to it; the works of a run, which begin, stand in for others, and end in order."""

import weakref
from collections.abc import Mapping
from typing import Any

import pytest

from forgather_mem.engine.recorder import FLOWS, OpenRecord, WorkSet
from forgather_mem.engine.run import Run, RunFacts
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import Moment, Sample

RUN: Any = Run(RunFacts())
RUN.device = 3
SAMPLE = Sample("step_end", 1, None, 0.0, {})
MOMENT = Moment("step_end", 1, None, None, None, None, {}, RUN)
CALLED: list[str] = []


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
    """Notes what is called, and fails where it is told to."""

    def __init__(self, name: str, reading: object = None, fails_in: str = "") -> None:
        self.name, self.reading, self.fails_in = name, reading, fails_in

    def __call__(self, moment: Any, sample: Any) -> Mapping[str, float]:
        return {}

    def _note(self, what: str) -> None:
        CALLED.append(f"{what} {self.name}")
        if what == self.fails_in:
            raise OSError(what)

    def begin(self, run: Any) -> None:
        self._note("begin")

    def end(self, run: Any) -> None:
        self._note("end")


@pytest.fixture(autouse=True)
def _nothing_was_called() -> None:
    CALLED.clear()


def nothing(moment: Any, sample: Any) -> Mapping[str, float]:
    return {}


def begun(*works: Any, guard: FailureGuard | None = None) -> WorkSet:
    found = WorkSet(guard or FailureGuard(strict=True))
    for work in (*works, nothing, *works[::-1]):  # nobody begins twice
        found.begun(work, RUN)
    return found


def test_what_a_work_has_begun_is_called_ends_and_is_dropped_in_its_place() -> None:
    class Settings:
        reading = "host"

        def begin(self, run: Any) -> Any:
            return Work("begun")

    settings = Settings()
    works = begun(settings)
    work = works.begun(Settings(), RUN)  # of an equal reading
    assert (work, vars(settings)) == (works.begun(settings, RUN), {})
    for end in works.ends(RUN):
        end()
    assert CALLED == ["end begun"]
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
