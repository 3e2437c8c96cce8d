"""The sinks of a run: who begins, who is left out, who prints, and what becomes of one that fails."""

from pathlib import Path
from typing import Any

import pytest

from forgather_mem.engine.sink_set import SinkSet
from forgather_mem.engine.summary import RunSummary
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.records import Finding, Sample
from tests.sinks.plain_run import PlainRun

RUN: Any = PlainRun()
SAMPLE = Sample("step_end", 1, None, 0.0, {"mine": 1.0})


class Notes:
    """A sink that notes what is called."""

    def __init__(self, key: object = None) -> None:
        self.key = key
        self.called: list[str] = []

    def begin(self, run: Any) -> None:
        self.called.append("begin")

    def write(self, sample: Sample) -> None:
        self.called.append("write")

    def tell(self, finding: Finding) -> None:
        self.called.append("tell")

    def end(self, run: Any) -> None:
        self.called.append("end")


class Says(Notes):
    """One that prints, too."""

    def say(self, text: str) -> None:
        self.called.append(text)


def used(sinks: SinkSet) -> None:
    sinks.write(SAMPLE)
    sinks.tell(Finding(kind="leak", step=1, text="it grows"))
    for call in sinks.calls("end", RUN):
        call()


def test_each_begins_once_and_of_equal_keys_the_first_alone() -> None:
    sinks = SinkSet(FailureGuard(strict=True))
    first, same_key, other = Notes("page"), Notes("page"), Notes()
    for sink in (first, same_key, other, first, other):
        sinks.add(sink, RUN)
    used(sinks)
    assert first.called == other.called == ["begin", "write", "tell", "end"]
    assert same_key.called == []


def test_only_write_is_needed() -> None:
    class Least:
        def __init__(self) -> None:
            self.samples: list[Sample] = []

        def write(self, sample: Sample) -> None:
            self.samples.append(sample)

    least, sinks, summary = Least(), SinkSet(FailureGuard(strict=True)), RunSummary()
    sinks.add(least, RUN)
    used(sinks)
    sinks.collect_problems(summary)
    assert sinks.numbers("log_values", lambda: 3) == {}
    assert (least.samples, summary.switched_off, sinks.event_folder()) == ([SAMPLE], [], None)


def test_the_first_that_can_print_prints_and_without_one_ours_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sinks = SinkSet(FailureGuard(strict=True))
    sinks.add(Notes(), RUN)
    sinks.say("by ours", RUN)
    assert "by ours" in capsys.readouterr().err
    first, second = Says("first"), Says("second")
    for sink in (first, second):
        sinks.add(sink, RUN)
    sinks.say("by theirs", RUN)
    assert (first.called, second.called) == (["begin", "by theirs"], ["begin"])
    assert capsys.readouterr().err == ""
