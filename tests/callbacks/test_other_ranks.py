"""A rank that is not the first prints nothing, however it knows its number."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerCallback

from forgather_mem import cleanup, load_callbacks
from forgather_mem.callbacks import (
    ClearCacheCallback,
    GradLogger,
    InfoCallback,
    JsonMemoryLogger,
    MemoryCallback,
    PeakMemory,
    ProfileMemory,
    ProgressCallback,
    SimpleGarbageCollector,
    TextgenCallback,
)
from forgather_mem.loops.training_loop import TrainingLoop
from forgather_mem.sinks import ConsoleSink
from forgather_mem.trackers import EpochMemoryMonitor, MemoryMonitor, MemoryTracker, track_memory
from tests.training import Tokens, tiny_model

TEMPLATES = ("watch", "memory", "memory_debug", "memory_production", "gc_governor", "loggers", "memory_and_loggers")


def talkative(monitor: Any = None) -> list[TrainerCallback]:
    ours: list[TrainerCallback] = [c for name in TEMPLATES for c in load_callbacks(f"callbacks/{name}.yaml")]
    ours += [ProgressCallback(), InfoCallback(verbose=True), TextgenCallback(prompts=["w3"], generation_steps=1)]
    ours += [GradLogger(), PeakMemory(), JsonMemoryLogger(), ProfileMemory(1, 1), SimpleGarbageCollector(verbose=True)]
    ours += [ClearCacheCallback("step", 1), MemoryCallback([], [ConsoleSink(1)], monitor=monitor)]
    return ours


def train(folder: Path, callbacks: list[TrainerCallback], **args: Any) -> None:
    loop = TrainingLoop(tiny_model(), args=SimpleNamespace(output_dir=str(folder), **args), callbacks=callbacks)
    batch = {name: value.unsqueeze(0) for name, value in Tokens(1)[0].items()}
    with loop.train(), loop.epoch():
        for _ in range(2):
            with loop.step():
                loop.model(**batch).loss.backward()
            loop.log({"loss": 1.0})
        with loop.evaluation() as metrics:
            metrics["eval_loss"] = 1.0


@pytest.mark.slow
def test_a_rank_that_only_the_arguments_know_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    callbacks = talkative(EpochMemoryMonitor(say=lines.append))
    capfd.readouterr()
    train(tmp_path, callbacks, process_index=1, world_size=2)
    said = capfd.readouterr()
    errors = [line for line in said.err.splitlines() if "USDT" not in line and "CPUAllocator" not in line]
    assert (said.out, errors) == ("", [])
    assert any("Batch 0" in line for line in lines)  # who gives a place of their own for the lines gets them


def test_a_rank_of_a_launcher_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    train(tmp_path, load_callbacks("callbacks/memory_debug.yaml"))
    MemoryMonitor.print_memory_usage()
    with track_memory("block"), cleanup("block"):
        pass
    tracker = MemoryTracker()
    tracker.print_summary()
    said = capfd.readouterr()
    assert said.out + said.err == ""


def test_a_rank_that_is_no_number_is_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "captain")
    monkeypatch.setenv("WORLD_SIZE", "all")
    train(tmp_path, load_callbacks("callbacks/memory_debug.yaml"))
    MemoryMonitor.print_memory_usage("Now: ")
    out = capfd.readouterr().out
    assert "Memory monitoring enabled" in out
    assert "Now: " in out
