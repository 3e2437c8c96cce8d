"""Callbacks, engine, probes and sinks together for two million steps."""

import gc
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from forgather_mem.callbacks import JsonMemoryLogger, PeakMemory, SimpleGarbageCollector, TBMemoryLogger
from forgather_mem.engine.run_of import run_of
from forgather_mem.system.procfs import own_memory
from forgather_mem.units import MIB

pytestmark = pytest.mark.soak
NUM_STEPS = 2_000_000
WARM_UP = 50_000


def test_two_million_steps_leave_no_memory_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The default metrics at every step into both files and the trainer's log, an epoch every 1000 steps."""
    callbacks = [
        TBMemoryLogger(logging_dir=tmp_path / "tb", strict=True),
        JsonMemoryLogger(tmp_path / "memory.jsonl", strict=True),
        PeakMemory(strict=True),
        SimpleGarbageCollector(collect_freq_epoch=100, strict=True),
    ]
    args, state = SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=0, epoch=0.0)
    for callback in callbacks:
        callback.on_train_begin(args, state, None)
    run = run_of(state)
    start_bytes, began_s = 0, time.monotonic()
    for step in range(1, NUM_STEPS + 1):
        state.global_step, state.epoch = step, step / 1000
        for callback in callbacks:
            callback.on_step_end(args, state, None)
        if step % 10 == 0:
            assert run.log_values()
        if step % 1000 == 0:
            for callback in callbacks:
                callback.on_epoch_end(args, state, None)
        if step == WARM_UP:
            gc.collect()
            start_bytes = own_memory().anonymous_bytes
    gc.collect()
    grown_bytes = own_memory().anonymous_bytes - start_bytes
    took_s = time.monotonic() - began_s
    for callback in callbacks:
        callback.on_train_end(args, state, None)
    with capsys.disabled():
        print(f"\n{NUM_STEPS:,} steps in {took_s:.0f} s: anonymous memory grew by {grown_bytes / MIB:.2f} MiB")
    assert run.summary.last_step == NUM_STEPS
    assert run.summary.switched_off == []
    assert grown_bytes <= 2 * MIB
