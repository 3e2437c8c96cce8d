"""The public checks: all parts that are shipped pass, and each fault of a part is found and named."""

from __future__ import annotations

import csv
import gc
import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem import probes
from forgather_mem.actions import Adaptive, ClearCache, Collect, TrimHost
from forgather_mem.callbacks.oom_reporter import LastWords
from forgather_mem.diagnose.oom.watch import OutOfMemoryWatch
from forgather_mem.probes.ranks import RankProbe
from forgather_mem.sinks import BlackBoxSink, Capture, ConsoleSink, JsonlSink, TensorBoardSink, TrainerLogSink
from forgather_mem.telemetry.events import EVENTS
from forgather_mem.telemetry.protocols import RunInfo
from forgather_mem.telemetry.records import Moment, Sample
from forgather_mem.testing import check_sink, check_work

SINKS: dict[str, Callable[[], Any]] = {
    "black box": BlackBoxSink,
    "capture": Capture,
    "console": lambda: ConsoleSink(every_steps=1, stream=io.StringIO()),
    "JSON lines": JsonlSink,
    "last words": LastWords,
    "TensorBoard": TensorBoardSink,
    "trainer log": TrainerLogSink,
}
PROBES = ("CleanupProbe", "DeviceProbe", "HostProbe", "PhaseProbe", "PythonProbe", "TensorProbe", "WorkerProbe")
WORKS: dict[str, Callable[[], Any]] = {
    **{name: getattr(probes, name) for name in PROBES},
    "RankProbe": RankProbe,
    "Collect": Collect,
    "ClearCache": ClearCache,
    "TrimHost": TrimHost,
    "Adaptive": lambda: Adaptive(Collect()),
    "OutOfMemoryWatch": OutOfMemoryWatch,
    "a function": lambda: lambda moment, sample: {"mine/loss_len": 2},
}


@pytest.mark.parametrize("name", SINKS)
def test_every_shipped_sink_passes(name: str, tmp_path: Path) -> None:
    check_sink(SINKS[name], folder=tmp_path)


@pytest.mark.parametrize("name", WORKS)
def test_every_shipped_work_passes(name: str) -> None:
    model = torch.nn.Linear(2, 2)
    check_work(WORKS[name], objects={"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})


def test_a_work_sees_every_event_that_a_training_has() -> None:
    seen = set()

    def note(moment: Moment, sample: Sample) -> Mapping[str, float]:
        seen.add(moment.event)
        return {}

    check_work(lambda: note)
    assert seen == set(EVENTS) - {"init_end"}, "`train` of testing/small_run.py fires them"


class CsvSink:
    """As somebody writes it who has read the protocols' docstrings and nothing else."""

    def __init__(self) -> None:
        self._file: Any = None
        self._dropped = 0

    def begin(self, run: RunInfo) -> None:
        self.end(run)
        self._dropped = 0
        if run.folder is not None and run.rank == 0:
            run.folder.mkdir(parents=True, exist_ok=True)
            self._file = (run.folder / "records.csv").open("w", newline="")

    def write(self, sample: Sample) -> None:
        if self._file is None:
            return
        try:
            csv.writer(self._file).writerows([sample.step, name, value] for name, value in sample.values.items())
            self._file.flush()
        except OSError:
            self._dropped += 1

    def problems(self) -> str | None:
        return f"records.csv: {self._dropped} records dropped" if self._dropped else None

    def end(self, run: RunInfo) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self._dropped += 1
            self._file = None


def test_a_sink_that_is_written_from_the_docstrings_alone_passes(tmp_path: Path) -> None:
    check_sink(CsvSink, folder=tmp_path)
    (first, *_) = sorted(tmp_path.rglob("records.csv"))
    with first.open(newline="") as file:
        rows = list(csv.reader(file))
    assert ["1", "mine/queue_len", "3"] in rows


class Unflushed(CsvSink):
    def write(self, sample: Sample) -> None:
        if self._file is not None:
            csv.writer(self._file).writerow([sample.step])

    def problems(self) -> str | None:
        return None


class Silent(CsvSink):
    def problems(self) -> str | None:
        return None


class Raises(CsvSink):
    def write(self, sample: Sample) -> None:
        raise OSError(28, "No space left on device")


class Greedy(CsvSink):
    def write(self, sample: Sample) -> None:
        sample.values["mine/queue_len"] = 0  # type: ignore[index]


class OneTraining(CsvSink):
    def begin(self, run: RunInfo) -> None:
        if hasattr(self, "_once"):
            raise RuntimeError("begun already")
        self._once = True


class Talks(CsvSink):
    def problems(self) -> Any:
        return 0


class Infinite(CsvSink):
    def log_values(self, step: int) -> dict[str, float]:
        return {"mem_x": float("inf")}


class NoMethod(CsvSink):
    tell = "tell"


class Hangs(CsvSink):
    key = ["a list"]  # noqa: RUF012


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CsvSink, r"make_sink\(\) gave the class CsvSink: return CsvSink\(\)"),
        (object, r"object has no method write"),
        (Unflushed, r"a forked child that ended has changed the files of Unflushed.*flush"),
        (Silent, r"Silent wrote nothing on a full disk, and problems\(\) says nothing"),
        (Raises, r"Raises raised OSError\(28.*in its first training, at the event 'train_begin' of step 0"),
        (Greedy, r"Greedy.write has changed the record"),
        (OneTraining, r"OneTraining raised RuntimeError.*in a second training of the same object, at begin"),
        (Talks, r"Talks.problems gave 0: give one sentence"),
        (Infinite, r"Infinite.log_values gave .*inf"),
        (NoMethod, r"NoMethod.tell is 'tell', and the engine calls it"),
        (Hangs, r"Hangs.key can't be compared"),
    ],
)
def test_a_fault_of_a_sink_is_named(make: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check_sink(make, folder=tmp_path)


def probe(answer: Callable[[Moment, Sample], Any], **members: Any) -> Any:
    """A probe with this answer and these members."""
    members = {name: staticmethod(member) if callable(member) else member for name, member in members.items()}
    return type("MyProbe", (), {"__call__": lambda self, moment, sample: answer(moment, sample), **members})


def changes_the_sample(moment: Moment, sample: Sample) -> Mapping[str, float]:
    sample.values["mine/x"] = 1.0  # type: ignore[index]
    return {}


def needs_a_model(moment: Moment, sample: Sample) -> Mapping[str, float]:
    return {"mine/parameters": len(list(moment.objects["model"].parameters()))}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Collect, r"make_work\(\) gave the class Collect: return Collect\(\)"),
        (object, r"object can't be called"),
        (probe(lambda *_: None), r"MyProbe gave None at the event 'train_begin' of step 0: return numbers by name"),
        (probe(lambda *_: {"mine/x": float("nan")}), r"MyProbe gave .*nan.*finite numbers by name"),
        (probe(lambda *_: {"mine/x": "1 GiB"}), r"MyProbe gave .*1 GiB.*finite numbers by name"),
        (lambda: changes_the_sample, r"changes_the_sample has changed the sample"),
        (lambda: needs_a_model, r"needs_a_model raised KeyError\('model'\).*moment.objects is empty"),
        (probe(dict, books="sweep"), r"MyProbe.books is 'sweep': the ledger knows"),
        (probe(dict, reading=["x"]), r"MyProbe.reading can't be compared"),
        (probe(lambda *_: {}, begin=lambda run: gc.disable()), r"MyProbe leaves automatic garbage collection changed"),
        (probe(lambda *_: {}, begin=lambda run: os.dup(1)), r"MyProbe leaves the number of open files changed"),
        (probe(lambda *_: {}, end=lambda run: 1 / 0), r"MyProbe raised ZeroDivisionError.*at end"),
    ],
)
def test_a_fault_of_a_work_is_named(make: Any, message: str) -> None:
    try:
        with pytest.raises(AssertionError, match=message):
            check_work(make)
    finally:
        gc.enable()
