"""The works of a run, which begin, stand in for others, and end in order."""

import weakref
from collections.abc import Mapping
from typing import Any

from forgather_mem.engine.recorder import WorkSet
from forgather_mem.engine.run import Run, RunFacts
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import Moment, Sample
from tests.engine.test_sink_set import Notes

RUN: Any = Run(RunFacts())
RUN.device = 3
SAMPLE = Sample("step_end", 1, None, 0.0, {})
MOMENT = Moment("step_end", 1, None, None, None, None, {}, RUN)


class Work(Notes):
    """Notes what is called."""

    def __call__(self, moment: Any, sample: Any) -> Mapping[str, float]:
        return {}


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
