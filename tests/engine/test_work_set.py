"""The works of a run: which begin, which stand in for others, and in which order they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from forgather_mem.engine.run import Run, RunFacts
from forgather_mem.engine.work_set import WorkSet
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import Moment, Sample
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every

RUN = Run(RunFacts())
SAMPLE = Sample("step_end", 1, None, 0.0, {})
MOMENT = Moment("step_end", 1, None, None, None, None, {}, RUN)
CALLED: list[str] = []


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

    def give_back(self) -> None:
        self._note("give back")


@pytest.fixture(autouse=True)
def _nothing_was_called() -> None:
    CALLED.clear()


def nothing(moment: Any, sample: Any) -> Mapping[str, float]:
    return {}


def begun(*works: Any, guard: FailureGuard | None = None) -> WorkSet:
    found = WorkSet(guard or FailureGuard(strict=True))
    found.begin(Rule(Every(steps=1), [*works, nothing]), RUN)
    found.begin(Rule(Every(steps=2), works[::-1]), RUN)  # nobody begins twice
    return found


def test_they_begin_once_in_their_order_and_the_last_ends_first() -> None:
    works = begun(Work("a"), Work("b"))
    for end in works.ends(RUN):
        end()
    assert CALLED == ["begin a", "begin b", "end b", "end a", "give back b", "give back a"]


def test_of_works_with_one_reading_the_first_is_begun_for_all() -> None:
    first, second, other = Work("a", "host"), Work("b", "host"), Work("c", "device")
    works = begun(first, second, other)
    assert CALLED == ["begin a", "begin c"]
    assert works.stand_in(second) is first
    assert works.stand_in(other) is other
    alone = Work("d")
    assert works.stand_in(alone) is alone


@pytest.mark.parametrize("fails_in", ["begin", "end", "give back"])
def test_one_that_fails_keeps_no_other_from_beginning_and_from_giving_back(fails_in: str) -> None:
    works = begun(Work("a"), Work("b", fails_in=fails_in), Work("c"), guard=FailureGuard())
    for end in works.ends(RUN):
        end()
    works.give_back()
    begins, ends, gives_back = ([f"{what} {name}" for name in "abc"] for what in ("begin", "end", "give back"))
    assert begins + ends[::-1] + gives_back[::-1] * 2 == CALLED


def test_a_reading_that_no_rule_takes_comes_from_its_probe_which_is_begun_once() -> None:
    works = WorkSet(FailureGuard(strict=True))
    for _ in range(2):
        assert works.read("host/rss_bytes", MOMENT, SAMPLE)["host/rss_bytes"] > 2**20
    assert works.read("mine/queue_len", MOMENT, SAMPLE) == {}
    ends = list(works.ends(RUN))
    assert len(ends) == 2, "its end, and that it gives back"
    for end in ends:
        end()


def test_a_forked_child_ends_no_work_of_its_parent() -> None:
    works = begun(Work("a"))
    works.clear()
    assert list(works.ends(RUN)) == []
    works.give_back()
    assert CALLED == ["begin a"]
