"""The black box in a training: what stands in the ring while it runs, and after each way to end."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from forgather_mem import Every, Rule
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.formats.ring import Ring, read_ring, ring_files
from forgather_mem.reporting.run_dir import run_report
from forgather_mem.sinks import BlackBoxSink
from forgather_mem.telemetry.records import Finding, Moment, RunInfo, Sample
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.run_session import FOLDER, make_notes, registered
from tests.sinks.plain_run import PlainRun, begun
from tests.training import AtStep, make_trainer


def ring_below(folder: Path) -> Ring:
    (path,) = folder.rglob("ring.rank0")
    return read_ring(path)


def test_a_training_tells_step_and_phase_while_it_runs(tmp_path: Path) -> None:
    seen: list[tuple[str, int, str]] = []

    class Looks(TrainerCallback):
        def look(self, event: str) -> None:
            state = ring_below(tmp_path).state
            seen.append((event, state.step, state.phase))
            assert state.end == "running"

        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            self.look("pre_optimizer_step")

        def on_save(self, *args: Any, **kwargs: Any) -> None:
            self.look("save")

    trainer = make_trainer(
        tmp_path, [MemoryCallback(strict=True), Looks()], max_steps=3, save_strategy="steps", save_steps=2
    )
    forward = trainer.compute_loss

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        seen.append(("compute_loss", ring_below(tmp_path).state.step, ring_below(tmp_path).state.phase))
        return forward(*args, **kwargs)

    trainer.compute_loss = compute_loss
    trainer.train()
    assert [step for event, step, phase in seen if (event, phase) == ("compute_loss", "forward")] == [0, 1, 2]
    assert ("save", 2, "other") in seen
    ring = ring_below(tmp_path)
    assert ring.state.end == "finished"
    assert [sample.step for sample in ring.samples if sample.event == "step_end"] == [1, 2, 3]
    assert ring.samples[-1].values["host/rss_bytes"] > 2**26
    assert (ring.header["pid"], ring.header["rank"], ring.header["world_size"]) == (os.getpid(), 0, 1)
    assert ring.header["limit_bytes"] > 2**30


@pytest.mark.slow
def test_how_a_training_ended_stands_there(tmp_path: Path) -> None:
    for error, end in ((ValueError("bad"), "exception"), (KeyboardInterrupt(), "interrupted"), (MemoryError(), "oom")):
        folder = tmp_path / end
        with pytest.raises(type(error)):
            make_trainer(folder, [MemoryCallback(strict=True), AtStep(1, error)]).train()
        ring = ring_below(folder)
        assert (ring.state.end, ring.state.step) == (end, 1)


def test_an_error_stands_there_before_the_run_is_closed(tmp_path: Path) -> None:
    rings: list[Ring] = []
    reports: list[RunReport] = []

    class Closes:
        def __call__(self, moment: Moment, sample: Sample) -> dict[str, float]:
            return {}

        def end(self, run: RunInfo) -> None:
            rings.append(ring_below(tmp_path))
            reports.append(run_report(tmp_path))

    closes = MemoryCallback([Rule(when=Every(steps=1), do=[Closes()])])
    fails = AtStep(1, RuntimeError("Connection closed by peer"))
    with pytest.raises(RuntimeError, match="by peer"):
        make_trainer(tmp_path, [closes, MemoryCallback(strict=True), fails]).train()
    assert [(ring.state.end, ring.state.step) for ring in rings] == [("exception", 1)]
    assert [report.run.error for report in reports] == ["RuntimeError: Connection closed by peer"]


def test_findings_and_sizes_are_noted(tmp_path: Path) -> None:
    sink = BlackBoxSink()
    sink.begin(run := PlainRun(folder=tmp_path, rank=1, world_size=2))
    sink.write(Sample("step_end", 5, 0.5, 10.0, {"host/rss_bytes": 3.0}, 0))
    sink.tell(Finding(kind="leak", step=5, text="It grows."))
    ring = read_ring(ring_files(tmp_path)[1])
    assert ring.samples == [Sample("step_end", 5, 0.5, 10.0, {"host/rss_bytes": 3.0}, 0)]
    assert [finding.text for finding in ring.findings] == ["It grows."]
    assert ring.state.end == "running"
    sink.end(run)
    assert read_ring(ring_files(tmp_path)[1]).state.end == "finished"
    assert sink.problems() is None
    sink.write(Sample("step_end", 6, None, 11.0, {}))  # nobody listens
    assert read_ring(ring_files(tmp_path)[1]).state.step == 5


def test_without_a_place_it_says_so(tmp_path: Path) -> None:
    sink = begun(BlackBoxSink())
    assert "there is no output folder" in str(sink.problems())
    (tmp_path / "file").touch()
    sink.begin(PlainRun(folder=tmp_path / "file" / "out"))
    assert "Not a directory" in str(sink.problems())
    assert pickle.loads(pickle.dumps(sink)).key == sink.key


def test_a_waiting_parent_is_told_of_each_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = tmp_path / "session"
    session.mkdir()
    make_notes(str(session))
    (session / "ring.rank0").touch()
    monkeypatch.setenv(FOLDER, str(session))
    for name in ("first", "second", "first"):
        sink = BlackBoxSink()
        sink.begin(run := PlainRun(folder=tmp_path / name))
        sink.end(run)
    assert registered(str(session)) == [str(tmp_path / "first"), str(tmp_path / "second")]
    assert not (session / "ring.rank0").exists()
    assert registered(str(tmp_path / "nowhere")) == []


def test_a_folder_that_no_run_waits_for_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "ring.rank0").write_text("somebody's")
    monkeypatch.setenv(FOLDER, str(tmp_path / "theirs"))
    sink = BlackBoxSink()
    sink.begin(run := PlainRun(folder=tmp_path / "training"))
    sink.end(run)
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["ring.rank0"]
    (tmp_path / "theirs" / "trainings").symlink_to(tmp_path / "notes")
    (tmp_path / "notes").write_text("somebody's")
    sink.begin(run)
    sink.end(run)
    assert (tmp_path / "notes").read_text() == "somebody's"
