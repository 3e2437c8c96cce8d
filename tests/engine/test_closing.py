"""A run closes whole whenever somebody presses Ctrl-C: its end, its report, its files."""

import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

from forgather_mem import load_callbacks
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.engine.closing import Closing
from forgather_mem.engine.run_of import run_of
from forgather_mem.formats.ring import read_ring
from forgather_mem.sinks import BlackBoxSink, JsonlSink
from forgather_mem.telemetry.records import Finding, Moment, Sample
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.launch.commands import report_in
from tests.memory import open_descriptors
from tests.programs import no_collections
from tests.training import STAYS, AtStep, make_trainer
from tests.ways_to_train import by_loop, by_trainer


class Presses:
    """A work and a sink: presses Ctrl-C when it is told of `moment`, so many times; "step" is the second step.

    Or another signal comes.
    """

    key = None

    def __init__(self, *moments: str, times: int = 1, number: int = signal.SIGINT) -> None:
        self.number = number
        self.left = dict.fromkeys(moments, times)
        self.seen: list[str] = []

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if moment.step == 2:
            self._reach("step")
        return {}

    def write(self, sample: Sample) -> None: ...

    def tell(self, finding: Finding) -> None:
        self._reach(f"tell {finding.kind}")

    def end(self, run: Any) -> None:
        self._reach("end")

    def _reach(self, moment: str) -> None:
        self.seen.append(moment)
        if self.left.get(moment):
            self.left[moment] -= 1
            signal.raise_signal(self.number)


def open_files(folder: Path) -> set[str]:
    return {file for file in open_descriptors() if str(folder) in file}


def by_plain_calls(folder: Path, callbacks: list[TrainerCallback]) -> tuple[Any, Callable[[], None]]:
    loop, _ = by_loop(folder, callbacks)

    def train() -> None:
        loop.on_epoch_begin(0)
        for batch in range(3):
            loop.on_batch_end(batch)
        loop.on_train_end()

    return loop, train


WAYS = {"trainer": by_trainer, "loop": by_loop}


def close_with(folder: Path, way: Any, work: Presses, sink: Presses, *, watched: bool = True) -> tuple[Any, Any]:
    """Trains, expects a KeyboardInterrupt; the run and the report on disk."""
    rules = [Rule(Every(steps=1), [work])]
    ours = [MemoryCallback(rules, [JsonlSink(), BlackBoxSink(), sink])]
    owner, train = way(folder, [*(load_callbacks("callbacks/watch.yaml") if watched else []), *ours])
    before = gc.isenabled(), list(gc.callbacks), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train()
    run = run_of(owner.state)
    assert run.closed
    assert (gc.isenabled(), list(gc.callbacks), signal.getsignal(signal.SIGINT)) == before
    assert open_files(folder) == set()
    methods = [name for name, value in vars(owner).items() if type(value).__name__ == "MethodPatch"]
    assert set(methods) <= set(STAYS)
    return run, report_in(folder)


def assert_ended(folder: Path, run: Any, report: Mapping[str, Any], end: str) -> None:
    assert run.summary.facts.end == end
    assert report["run"]["end"] == end
    (log,) = folder.rglob("memory.rank0.jsonl")
    told = [record for line in log.read_text().splitlines() if (record := json.loads(line)).get("kind") == "verdict"]
    assert [record["data"]["report"]["run"]["end"] for record in told][-1:] == [end]
    (ring,) = folder.rglob("ring.rank0")
    assert read_ring(ring).state.end == end


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("of_work", "of_sink"),
    [
        ({"step", "end"}, set()),
        ({"step"}, {"end"}),
        ({"step"}, {"tell verdict"}),
        ({"step", "end"}, {"tell verdict", "end"}),
    ],
)
def test_a_second_ctrl_c_while_we_close_leaves_the_end_and_the_report(
    tmp_path: Path, way: str, of_work: set[str], of_sink: set[str]
) -> None:
    work, sink = Presses(*of_work), Presses(*of_sink)
    run, report = close_with(tmp_path, WAYS[way], work, sink)
    assert_ended(tmp_path, run, report, "interrupted")
    assert "end" in sink.seen


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_before", [0, 1])
def test_a_ctrl_c_in_the_verdict_leaves_the_end_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, num_before: int
) -> None:
    """While the report is being written: its draft takes its place by `os.replace`, which a Ctrl-C comes before."""
    replace, left = os.replace, [1]

    def replace_later(draft: Any, path: Any, **folders: Any) -> None:
        if Path(path).name == "report.json" and left:
            left.pop()
            signal.raise_signal(signal.SIGINT)
        replace(draft, path, **folders)

    monkeypatch.setattr(os, "replace", replace_later)
    run, report = close_with(tmp_path, WAYS[way], Presses("step", times=num_before), Presses())
    assert not left
    assert_ended(tmp_path, run, report, "interrupted")
    assert not list(tmp_path.rglob(".report*"))


@pytest.mark.parametrize("way", [*WAYS, "plain calls"])
def test_a_first_ctrl_c_while_we_close_is_an_interruption_too(tmp_path: Path, way: str) -> None:
    run, report = close_with(tmp_path, {**WAYS, "plain calls": by_plain_calls}[way], Presses("end"), Presses())
    assert_ended(tmp_path, run, report, "interrupted")


@pytest.mark.slow
@pytest.mark.parametrize("way", [*WAYS, "plain calls"])
def test_a_ctrl_c_in_the_end_of_a_sink_comes_after_the_end_that_all_files_tell(tmp_path: Path, way: str) -> None:
    run, report = close_with(tmp_path, {**WAYS, "plain calls": by_plain_calls}[way], Presses(), Presses("end"))
    assert_ended(tmp_path, run, report, "finished")


@pytest.mark.parametrize("way", WAYS)
def test_a_third_ctrl_c_leaves_a_step_out_that_hangs(tmp_path: Path, way: str) -> None:
    work, sink = Presses("step", "end", times=9), Presses("tell verdict", times=9)
    run, report = close_with(tmp_path, WAYS[way], work, sink, watched=False)
    assert_ended(tmp_path, run, report, "interrupted")
    assert work.seen.count("end") == 2
    assert sink.seen == ["tell settings", "tell verdict", "tell verdict", "end"]


class FailsInStep(Trainer):
    def training_step(self, *arguments: Any, **keywords: Any) -> Any:
        if self.state.global_step == 2:
            raise ValueError("of the user")
        return super().training_step(*arguments, **keywords)


def test_a_ctrl_c_while_an_error_closes_the_run_leaves_its_end(tmp_path: Path) -> None:
    def way(folder: Path, callbacks: list[TrainerCallback]) -> tuple[Any, Callable[[], None]]:
        trainer = make_trainer(folder, callbacks, max_steps=4, trainer_class=FailsInStep)
        return trainer, lambda: trainer.train() and None

    run, report = close_with(tmp_path, way, Presses("end"), Presses("end"))
    assert_ended(tmp_path, run, report, "exception")


def test_a_signal_that_exits_counts_as_a_ctrl_c(tmp_path: Path) -> None:
    def leave(number: int, frame: object) -> None:
        sys.exit(3)

    work = Presses("end", number=signal.SIGTERM)
    trainer = make_trainer(tmp_path, [MemoryCallback([Rule(Every(steps=1), [work])], [JsonlSink()])], max_steps=2)
    earlier = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit):
            trainer.train()
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert run_of(trainer.state).summary.facts.end == "interrupted"
    assert work.seen == ["step", "end", "end"]


def test_an_error_of_a_callback_at_the_end_of_a_plain_loop_ends_the_run(tmp_path: Path) -> None:
    fails = AtStep(None, ValueError("of the user"), "train_end")
    loop, train = by_loop(tmp_path, [fails, MemoryCallback([Rule(Every(steps=1), [Presses()])], [JsonlSink()])])
    with pytest.raises(ValueError, match="of the user"):
        train()
    assert run_of(loop.state).summary.facts.end == "exception"
    assert open_files(tmp_path) == set()


def test_what_interrupted_the_closing_is_not_kept_alive(tmp_path: Path) -> None:
    import weakref

    class Thing: ...

    def train() -> weakref.ref[Thing]:
        thing = Thing()
        callback = MemoryCallback([Rule(Every(steps=1), [Presses("end")])])
        trainer = make_trainer(tmp_path, [callback], max_steps=1)
        trainer.thing = thing
        with contextlib.suppress(KeyboardInterrupt):
            trainer.train()
        return weakref.ref(thing)

    train()
    with no_collections():
        assert train()() is None


def test_a_step_that_a_handlers_error_has_left_is_done_all_the_same() -> None:
    def preempt(number: int, frame: object) -> None:
        raise TimeoutError("preempted")

    done = []

    def step() -> None:
        done.append("begun")
        if len(done) == 1:
            signal.raise_signal(signal.SIGALRM)
        done.append("over")

    closing = Closing()
    closing.add(step, lambda: done.append("next"))
    before = signal.signal(signal.SIGALRM, preempt)
    try:
        with pytest.raises(TimeoutError, match="preempted"):
            closing.carry_out(lambda: done.append("interrupted"))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert done == ["begun", "interrupted", "begun", "over", "next"]
