"""The open record: what belongs to it, what is summed in it, and that it is closed once."""

from __future__ import annotations

from typing import Any

from forgather_mem.engine.record import FLOWS, OpenRecord
from forgather_mem.engine.run import Run, RunFacts
from forgather_mem.telemetry.records import Moment

RUN: Any = Run(RunFacts(), device=3)


def moment(event: str, step: int) -> Moment:
    return Moment(event, step, 0.5, None, None, None, {}, RUN)


def test_a_record_is_of_its_moment_and_one_inside_a_step_is_the_steps() -> None:
    record = OpenRecord()
    assert record.sample is None
    for event, expected in (("optimizer_step", "step_end"), ("step_end", "step_end"), ("evaluate", "evaluate")):
        view = record.begin(moment(event, 7))
        assert view is record.sample
        assert (view.event, view.step, view.epoch, view.device) == (expected, 7, 0.5, 3)
        record.drop()
        assert record.sample is None


def test_it_takes_what_belongs_to_it_and_nothing_else() -> None:
    record = OpenRecord()
    assert not record.takes("step_end", 7)
    record.begin(moment("pre_optimizer_step", 7))
    assert [record.takes(event, 7) for event in ("optimizer_step", "step_end", "save")] == [True, True, False]
    assert not record.takes("step_end", 8)
    record.begin(moment("save", 7))
    assert [record.takes(event, 7) for event in ("save", "step_end", "evaluate")] == [True, False, False]


def test_a_gauge_is_the_last_value_and_a_flow_the_sum_of_its_step_over_all_records() -> None:
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
    assert [sample.values["cache/freed_bytes"] for sample in (second, third) if sample is not None] == [7.0, 8.0]


def test_a_frozen_record_does_not_change_and_an_empty_one_is_none() -> None:
    record = OpenRecord()
    assert record.freeze() is None
    record.begin(moment("step_end", 7))
    assert record.freeze() is None
    record.begin(moment("step_end", 7))
    record.add({"mine": 1.0})
    sample = record.freeze()
    assert (record.sample, record.values) == (None, {})
    record.begin(moment("step_end", 8))
    record.add({"mine": 2.0})
    record.drop()
    assert sample is not None
    assert dict(sample.values) == {"mine": 1.0}
