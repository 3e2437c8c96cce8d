"""The public check of a sink: the shipped ones pass, and each fault is found and named."""

import contextlib
import csv
import importlib.util
import inspect
import io
import os
import pickle
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forgather_mem import sinks
from forgather_mem.callbacks.oom_reporter import LastWords
from forgather_mem.reporting.run_dir import NoRun, run_report
from forgather_mem.sinks import (
    BlackBoxSink,
    Capture,
    ConsoleSink,
    JsonlSink,
    OpenTelemetrySink,
    PrometheusSink,
    TensorBoardSink,
    TrackerSummarySink,
    TrainerLogSink,
)  # fmt: skip
from forgather_mem.telemetry.records import RunInfo, Sample
from forgather_mem.testing import check_sink
from forgather_mem.testing.small_run import SmallRun, readings


def open_telemetry() -> OpenTelemetrySink:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    return OpenTelemetrySink(readers=[InMemoryMetricReader()])


SINKS: dict[str, Callable[[], Any]] = {
    "black box": BlackBoxSink,
    "capture": Capture,
    "console": lambda: ConsoleSink(every_steps=1, stream=io.StringIO()),
    "JSON lines": JsonlSink,
    **({"OpenTelemetry": open_telemetry} if importlib.util.find_spec("opentelemetry") else {}),
    "last words": LastWords,
    "Prometheus": lambda: PrometheusSink("train.prom"),  # in the folder whose disk fails
    "TensorBoard": TensorBoardSink,
    "tracker summary": TrackerSummarySink,
    "trainer log": lambda: TrainerLogSink(also=["headroom", "phases", "tensors"]),
}


@pytest.mark.parametrize("name", SINKS)
def test_every_shipped_sink_passes(name: str, tmp_path: Path, own_folder: None) -> None:
    made: list[Any] = []
    check_sink(lambda: made.append(SINKS[name]()) or made[-1], folder=tmp_path)  # type: ignore[func-returns-value]
    if name != "OpenTelemetry":  # its reader is the user's
        pickle.dumps(made)  # a copy of a callback has one of its sinks: `__getstate__` leaves out what is open


@pytest.mark.parametrize("name", SINKS)
def test_of_a_run_with_this_sink_alone_that_was_killed_nothing_false_is_told(
    name: str, tmp_path: Path, own_folder: None
) -> None:
    if not (child := os.fork()):
        try:
            SmallRun(tmp_path, [readings], [SINKS[name]()]).train()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    left = " ".join(path.name for path in tmp_path.rglob("*"))
    is_log, has_curves = "memory.rank0.jsonl" in left or "ring.rank0" in left, "tfevents" in left
    if not is_log and not has_curves:
        with pytest.raises(NoRun, match="no run was found"):
            run_report(tmp_path)
        return
    report = run_report(tmp_path)
    assert (report.steps, report.run.end) == (3, "killed" if is_log else None)
    assert ("curves alone" in str(report.hints)) == (not is_log)


def test_each_sink_is_tried_and_takes_no_file_of_another_kind(tmp_path: Path) -> None:
    exported = {name: getattr(sinks, name) for name in sinks.__all__}
    kinds = {name: kind for name, kind in exported.items() if hasattr(kind, "write")}
    tried = {type(make()).__name__ for make in SINKS.values()} | {"OpenTelemetrySink"}
    assert kinds.keys() <= tried, "a line in SINKS"
    page = (Path(__file__).parents[2] / "docs" / "security_details.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for name, kind in kinds.items():
        for argument, declared in inspect.signature(kind).parameters.items():
            if re.search("path|file|dir|folder", argument) or "Path" in str(declared.annotation):
                explained = [row for row in rows if f"`{argument}`" in row and f"`{name}`" in row]
                assert explained, f"a row in 'Addresses and paths' of security_details.md: `{argument}` of `{name}`"
            for path in (tmp_path / "train.py", str(tmp_path / ".bashrc")):
                with contextlib.suppress(ValueError, TypeError, AttributeError):
                    small = SmallRun(tmp_path, [readings], [kind(**{argument: path})])
                    small.train()
                    small.close()
                assert not Path(path).is_file(), (
                    f"a template of somebody else may name any file: {name}({argument}=...)"
                )


class TextSink:
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
    check_sink(TextSink, folder=tmp_path)
    (first, *_) = sorted(tmp_path.rglob("records.csv"))
    with first.open(newline="") as file:
        rows = list(csv.reader(file))
    assert ["1", "mine/queue_len", "3"] in rows


def broken(name: str, **members: Any) -> Any:
    """That sink with other members."""
    return type(name, (TextSink,), members)


WRITE = TextSink.write
Silent = broken("Silent", problems=lambda self: None)
Buffers = broken("Buffers", write=lambda self, sample: vars(self).setdefault("rows", []).append(sample))
Twice = broken("Twice", write=lambda self, sample: [WRITE(self, sample) for _ in range(2)])
Forgets = broken("Forgets", write=lambda self, sample: sample.step % 10 and WRITE(self, sample))
Unflushed = broken("Unflushed", write=lambda self, it: self._file and csv.writer(self._file).writerow([it.step]))
Delays = broken(
    "Delays", last=[], write=lambda self, it: [self.last and WRITE(self, self.last.pop()), self.last.append(it)]
)
NoMethod = broken("NoMethod", tell="tell")
Hangs = broken("Hangs", key=["a list"])


class Fixed(TextSink):
    def write(self, sample: Sample) -> None:
        if self._file is not None:
            csv.writer(self._file).writerow([sample.step, sample.values.get("mine/mark")])
            self._file.flush()


class Raises(TextSink):
    def write(self, sample: Sample) -> None:
        raise OSError(28, "No space left on device")


class EachRank(TextSink):
    def begin(self, run: RunInfo) -> None:
        self.end(run)
        self._dropped = 0
        self._file = (Path.cwd() / "all.csv").open("a", newline="")


class NoPlace(TextSink):
    def begin(self, run: RunInfo) -> None:
        with contextlib.suppress(OSError):
            super().begin(run)


class OneTraining(TextSink):
    def begin(self, run: RunInfo) -> None:
        if hasattr(self, "_once"):
            raise RuntimeError("begun already")
        self._once = True


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TextSink, r"make_sink\(\) gave the class TextSink: return TextSink\(\)"),
        (object, r"object has no method write"),
        (Unflushed, r"a forked child that ended has changed the files of Unflushed.*flush"),
        (Silent, r"Silent wrote nothing on a full disk, and problems\(\) says nothing"),
        (Raises, r"Raises raised OSError\(28.*in its first training, at the event 'train_begin' of step 0"),
        (Delays, r"Delays, in .*records.csv: 1 of 150 records were lost: write in end\(\)"),
        (Buffers, r"Buffers has left .*records.csv.* empty: write in end\(\)"),
        (Forgets, r"Forgets, in .*records.csv: 15 of 150 records were lost"),
        (Twice, r"Twice, in .*records.csv: a record was written twice"),
        (EachRank, r"EachRank has changed .*all.csv'] of rank 0 on rank 1"),
        (NoPlace, r"NoPlace wrote nothing where its folder can't be made, and problems\(\) says nothing"),
        (Fixed, r"Fixed, in .*records.csv: 50 of 50 values were lost whose name came after the first record"),
        (OneTraining, r"OneTraining raised RuntimeError.*in a second training of the same object, at begin"),
        (NoMethod, r"NoMethod.tell is 'tell', and the engine calls it"),
        (Hangs, r"Hangs.key can't be compared"),
    ],
)
def test_a_fault_of_a_sink_is_named(make: Any, message: str, tmp_path: Path, own_folder: None) -> None:
    with pytest.raises(AssertionError, match=message):
        check_sink(make, folder=tmp_path)
