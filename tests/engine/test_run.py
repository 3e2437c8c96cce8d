"""The engine, driven event by event, as any loop may do it."""

import contextlib
import io
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.engine.run import Run
from forgather_mem.probes import HostProbe, PhaseProbe
from forgather_mem.reporting.build import build_report
from forgather_mem.sinks import Capture, ConsoleSink
from forgather_mem.system.procfs import own_memory
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.records import Moment, Sample
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Above, AtEvent, Every


class Loop:
    """A loop's bookkeeping: fires events at a run, as a trainer's callback handler does."""

    def __init__(self, run: Run, state: Any) -> None:
        self.run, self.state = run, state
        self.members: list[dict[str, Any]] = []
        self._kept: list[object] = []

    def add(self, rules: list[Rule], sinks: Any = ()) -> object:
        member = object()
        self.members.append(self.run.add_member(member, rules, sinks, self.state.epoch))
        self._kept.append(member)
        return member

    def fire(self, event: str) -> None:
        for plans in self.members:
            if event in plans:
                self.run.handle(plans[event], None, self.state, None, {})

    def step(self, num_micro_batches: int = 1) -> None:
        self.fire("step_begin")
        for _ in range(num_micro_batches - 1):
            self.fire("substep_end")
        self.fire("pre_optimizer_step")
        self.fire("optimizer_step")
        self.state.global_step += 1
        self.fire("step_end")

    def steps(self, num: int) -> None:
        for _ in range(num):
            self.step()

    def to_the_end(self, steps: int = 1) -> None:
        self.steps(steps)
        self.run.close()


def new_loop(step: int = 0, epoch: float = 0.0, *, strict: bool = True) -> Loop:
    state = SimpleNamespace(global_step=step, epoch=epoch)
    return Loop(Run.begin(SimpleNamespace(output_dir=None), state, strict=strict), state)


def reading(name: str, value: float = 1.0) -> Any:
    def read(moment: Moment, sample: Sample) -> Mapping[str, float]:
        return {name: value}

    return read


class Counter:
    """A probe that counts its calls and its beginnings."""

    def __init__(self, reading: str | None = None) -> None:
        self.reading = reading
        self.calls: list[int] = []
        self.begun = self.ended = 0

    def begin(self, run: Any) -> None:
        self.begun += 1

    def end(self, run: Any) -> None:
        self.ended += 1

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        self.calls.append(moment.step)
        return {"count": float(len(self.calls))}


@given(period=st.integers(1, 12), first=st.integers(0, 40), steps=st.integers(0, 60))
def test_every_fires_once_per_period_and_at_multiples_of_it(period: int, first: int, steps: int) -> None:
    loop, counter = new_loop(step=first), Counter()
    loop.add([Rule(Every(steps=period), [counter])])
    loop.to_the_end(steps)
    assert counter.calls == [step for step in range(first + 1, first + steps + 1) if step % period == 0]


def test_epochs_are_counted_from_the_epoch_in_which_a_resumed_run_comes_in() -> None:
    loop, counter = new_loop(step=30, epoch=1.5), Counter()
    loop.add([Rule(Every(epochs=2), [counter])])
    for _ in range(3):  # the ends of epochs 2, 3 and 4
        loop.step()
        loop.fire("epoch_end")
    loop.run.close()
    assert counter.calls == [31, 33]


def test_a_rule_inside_a_step_counts_the_step_it_works_for() -> None:
    loop, counter, capture = new_loop(), Counter(), Capture()
    loop.add([Rule(Every(steps=2, at="pre_optimizer_step"), [counter])], [capture])
    for _ in range(4):
        loop.step(num_micro_batches=3)
    loop.run.close()
    assert counter.calls == [2, 4]
    assert [sample.step for sample in capture.samples] == [2, 4]


def test_of_two_probes_with_one_reading_one_alone_is_begun_and_asked_also_where_only_the_other_is_named() -> None:
    loop, first, second = new_loop(), Counter("same"), Counter("same")
    loop.add([Rule(Every(steps=1), [first])])
    loop.add([Rule(Every(steps=1), [second]), Rule(AtEvent("evaluate"), [second])])
    loop.step()
    loop.fire("evaluate")
    loop.run.close()
    assert first.calls == [1, 1]
    assert (first.begun, first.ended) == (1, 1)
    assert (second.calls, second.begun, second.ended) == ([], 0, 0)


def test_readings_of_one_step_stand_in_one_record_whoever_asked_for_them() -> None:
    loop, capture = new_loop(), Capture()
    loop.add([Rule(AtEvent("pre_optimizer_step"), [reading("early", 1.0)])], [capture])
    loop.add([Rule(Every(steps=1), [reading("first", 2.0)])])
    loop.add([Rule(Every(steps=2), [reading("second", 3.0)])])
    loop.to_the_end(2)
    kept = pickle.loads(pickle.dumps(capture.samples))  # also after the run
    ours = [{name: v for name, v in s.values.items() if not name.startswith("step/")} for s in kept]
    assert ours == [{"early": 1.0, "first": 2.0}, {"early": 1.0, "first": 2.0, "second": 3.0}]
    assert [(s.event, s.step) for s in capture.samples] == [("step_end", 1), ("step_end", 2)]


def test_events_after_a_step_have_records_of_their_own() -> None:
    loop, capture = new_loop(), Capture()
    loop.add([Rule(AtEvent("step_end", "evaluate", "save"), [reading("host/rss_bytes", 5.0)])], [capture])
    loop.step()
    loop.fire("evaluate")
    loop.fire("save")
    loop.run.close()
    assert [(s.event, s.step) for s in capture.samples] == [("step_end", 1), ("evaluate", 1), ("save", 1)]


def test_a_limit_sees_what_another_reads_more_rarely_and_after_it() -> None:
    loop, counter = new_loop(), Counter()
    loop.add([Rule(Above("mine/queue_len", 1), [counter])])
    loop.add([Rule(Every(steps=2), [reading("mine/queue_len", 5.0)])])
    loop.to_the_end(4)
    assert counter.calls == [3]


def test_a_limit_on_a_size_of_the_workers_is_read_by_their_probe() -> None:
    loop, counter = new_loop(), Counter()
    loop.add([Rule(Above("host/children_pss_bytes", 1), [counter])])
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    loop.to_the_end()
    child.communicate()
    assert counter.calls == [1]


def test_the_last_step_of_an_epoch_ended_twice_counts_once() -> None:
    """Forgather's trainer fires `step_end` again at the end of an epoch."""
    loop, counter, capture = new_loop(), Counter(), Capture()
    loop.add([Rule(Every(steps=1), [counter])], [capture])
    loop.step()
    loop.fire("step_end")
    loop.run.close()
    assert counter.calls == [1]
    assert len(capture.samples) == 1


def test_works_begin_once_and_end_once_however_the_run_ends() -> None:
    for end in ("finished", "exception", "interrupted"):
        loop, counter = new_loop(), Counter()
        loop.add([Rule(Every(steps=1), [counter]), Rule(AtEvent("save"), [counter])])
        loop.step()
        loop.run.close(end)
        loop.run.close(end)
        assert (counter.begun, counter.ended) == (1, 1)
        assert loop.run.summary.facts.end == end


def test_a_failure_between_successes_does_not_switch_off() -> None:
    loop, calls = new_loop(strict=False), list[int]()

    def sometimes(moment: Moment, sample: Sample) -> Mapping[str, float]:
        calls.append(moment.step)
        if moment.step % 3:
            raise ValueError("not now")
        return {}

    loop.add([Rule(Every(steps=1), [sometimes])])
    loop.to_the_end(9)
    assert len(calls) == 9
    assert loop.run.summary.switched_off == []


def test_a_console_that_a_user_brings_takes_the_place_of_ours() -> None:
    loop, ours, theirs = new_loop(), io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(ours):
        loop.run.print_line("before")
        loop.add([Rule(Every(steps=1), [reading("mine/queue_len", 3.0)])], [ConsoleSink(every_steps=1, stream=theirs)])
        loop.run.print_line("after")
        loop.to_the_end()
    assert ours.getvalue() == "before\n"
    assert theirs.getvalue().startswith("after\nforgather-mem: step 1: mine/queue_len 3, ")


def test_the_folder_of_a_run_is_new_and_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [Run.begin(SimpleNamespace(output_dir="out"), SimpleNamespace(global_step=0)).folder for _ in range(3)]
    assert len({str(folder) for folder in folders}) == 3
    monkeypatch.chdir("/")
    assert all(folder is not None and folder.parent == tmp_path / "out" / "forgather_mem" for folder in folders)
    assert all(folder is not None and folder.is_dir() for folder in folders), "two at once can't take the same"


@pytest.mark.parametrize(
    ("steps", "end", "phase"),
    [(7, "finished", ""), (0, "interrupted", "forward"), (7, "interrupted", "backward"), (0, "exception", "forward"),
     (7, "exception", "evaluate")],
)  # fmt: skip
def test_steps_end_and_peak_are_those_of_the_end_though_it_has_no_record(steps: int, end: str, phase: str) -> None:
    loop, capture = new_loop(), Capture()
    loop.add([Rule(when=Every(steps=4), do=[HostProbe(), PhaseProbe(host_mark=True)])], [capture])
    loop.steps(steps)
    loop.run.phases.enter(phase or "startup")
    before, held = own_memory().resident_bytes, bytearray(b"x") * 2**26
    if end == "exception":  # of a plain loop nobody hears that
        loop.run.phases.fail()
        loop.run.phases.leave(phase)
    loop.run.close(end)
    resident, peak = (loop.run.summary.spans[f"host/{name}_bytes"] for name in ("rss", "rss_peak"))
    assert min(resident.last, peak.last) - before > 0.9 * len(held)
    report, step = build_report(loop.run.summary), steps + (phase in STEP_PHASES)
    told = report.steps, report.peaks[0].step, report.peaks[0].phase
    assert (told, resident.step, [one.step for one in capture.samples]) == (
        (steps, step, phase or "other"),
        step,
        [4][:steps],
    )
