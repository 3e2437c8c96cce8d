"""A few steps recorded by PyTorch's own profiler, in real trainings."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem.callbacks import ProfileMemory
from tests.training import AtStep, fingerprint, make_trainer


def events_of(folder: Path) -> list[dict[str, Any]]:
    (trace,) = folder.rglob("trace.rank0.json.gz")
    with gzip.open(trace) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


@pytest.mark.slow
def test_the_trace_holds_the_operators_and_allocations_of_these_steps_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = make_trainer(tmp_path / "plain")
    plain.train()
    watched = make_trainer(tmp_path / "watched", [ProfileMemory(2, 3, strict=True)])
    watched.train()
    assert fingerprint(watched) == fingerprint(plain)
    names = [event.get("name") for event in events_of(tmp_path / "watched")]
    assert sum(name.startswith("Optimizer.step") for name in names if name) == 3
    assert "[memory]" in names
    assert "aten::embedding" in names
    said = [line for line in capfd.readouterr().err.splitlines() if "profiled" in line]
    assert len(said) == 1
    assert "profiled steps 2 to 4: python -m webbrowser https://ui.perfetto.dev  # open" in said[0]
    assert "trace.rank0.json.gz" in said[0]
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_training_that_ends_meanwhile_leaves_what_was_recorded_and_the_next_begins_anew(tmp_path: Path) -> None:
    profile = ProfileMemory(5, 30, strict=True)
    for name in ("first", "second"):
        make_trainer(tmp_path / name, [profile]).train()
        recorded = [event.get("name") or "" for event in events_of(tmp_path / name)]
        assert sum(name.startswith("Optimizer.step") for name in recorded) == 2


def test_too_few_steps_are_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, [ProfileMemory(100, strict=True)]).train()
    assert "nothing was profiled: the training ended before step 100" in " ".join(capfd.readouterr().err.split())
    assert not list(tmp_path.rglob("trace*"))


@pytest.mark.slow
def test_another_profiler_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with torch.profiler.profile(acc_events=True) as theirs:
        make_trainer(tmp_path, [ProfileMemory(2, strict=True)]).train()
    assert any(event.name == "aten::embedding" for event in theirs.events())
    assert "nothing is profiled: another profiler is active" in capfd.readouterr().err


@pytest.mark.slow
def test_an_error_in_a_recorded_step_stops_the_profiler(tmp_path: Path) -> None:
    fails = AtStep(2, ValueError("in a recorded step"), "pre_optimizer_step")
    with pytest.raises(ValueError, match="in a recorded step"):
        make_trainer(tmp_path, [ProfileMemory(2, strict=True), fails]).train()
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    assert not list(tmp_path.rglob("trace*"))


@pytest.mark.slow
def test_a_trace_that_is_too_large_is_not_left_behind(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forgather_mem.callbacks.profile_memory.MIB", 100)  # some KiB are too large then
    make_trainer(tmp_path, [ProfileMemory(2, max_mb=1, strict=True)]).train()
    assert "more than max_mb=1; record fewer steps" in capfd.readouterr().err
    assert not list(tmp_path.rglob("trace*"))
