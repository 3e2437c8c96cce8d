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
    """A sink with every member, which fails in one of them."""

    def __init__(self, key: object = None, fails_in: str = "") -> None:
        self.key, self.fails_in = key, fails_in
        self.folder = "their/folder"
        self.called: list[str] = []

    def _note(self, what: str) -> None:
        self.called.append(what)
        if what == self.fails_in:
            raise OSError(what)

    def begin(self, run: Any) -> None:
        self._note("begin")

    def write(self, sample: Sample) -> None:
        self._note("write")

    def tell(self, finding: Finding) -> None:
        self._note("tell")

    def log_values(self, step: int) -> dict[str, float]:
        self._note("log_values")
        return {"mine": float(step), "nan": float("nan")}

    def problems(self) -> str | None:
        self._note("problems")
        return "2 records were dropped"

    def end(self, run: Any) -> None:
        self._note("end")


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
    assert sinks.log_values(3) == {}
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
