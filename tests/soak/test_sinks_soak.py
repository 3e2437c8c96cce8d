"""Sinks for a long time: two million samples, and a disk that stops."""

import gc
import os
import random
import time
from pathlib import Path

import pytest

from forgather_mem.formats.event_file import read_scalars
from forgather_mem.sinks import ConsoleSink, JsonlSink, TensorBoardSink, TrainerLogSink
from forgather_mem.telemetry.records import Sample
from forgather_mem.units import MIB
from tests.sinks.plain_run import PlainRun

pytestmark = pytest.mark.soak
NUM_SAMPLES = 2_000_000
WARM_UP = 50_000


def test_two_million_samples_leave_no_memory_behind(tmp_path: Path) -> None:
    """All sinks at once, names that come and go as probes of a slow cadence make them, 2 MB at most."""
    run = PlainRun(output_dir=tmp_path, folder=tmp_path / "memory")
    tensorboard, log = TensorBoardSink(logging_dir=tmp_path / "tb"), TrainerLogSink()
    with Path(os.devnull).open("w") as nowhere:
        sinks = [tensorboard, JsonlSink(max_bytes=16 * MIB, keep=1), ConsoleSink(every_steps=100, stream=nowhere), log]
        for sink in sinks:
            if not isinstance(sink, ConsoleSink):
                sink.begin(run)
        chance = random.Random(0)
        start_bytes, began_s = 0, time.monotonic()
        for step in range(NUM_SAMPLES):
            if step == WARM_UP:
                gc.collect()
                start_bytes = anonymous_bytes()
            sample = sample_of(step, chance)
            for sink in sinks:
                sink.write(sample)
            if step % 10 == 0:
                log.log_values(step)
        gc.collect()
        grown_bytes = anonymous_bytes() - start_bytes
        took_s = time.monotonic() - began_s
        problems = [sink.problems() for sink in sinks if isinstance(sink, TensorBoardSink | JsonlSink)]
        for sink in sinks:
            if isinstance(sink, TensorBoardSink | JsonlSink):
                sink.end(run)
    print(f"{NUM_SAMPLES:,} samples in {took_s:.0f} s: {grown_bytes / 1e6:+.2f} MB")
    assert grown_bytes <= 2e6
    assert problems == [None, None]
    assert len(read_scalars(tmp_path / "tb")["mem_host/rss_gib"].steps) == NUM_SAMPLES


def sample_of(step: int, chance: random.Random) -> Sample:
    values = {"host/rss_bytes": chance.random() * 2**34, "host/rss_peak_bytes": 2.0**34, "gc/pause_s": 1e-3}
    values |= {"device/allocated_bytes": 2.0**30, "device/step_peak_bytes": 2.0**31 + step}
    if step % 7 == 0:
        values["host/pss_bytes"] = 2.0**33
    if step % 50 == 0:
        values["gc/tracked"] = float(step)
    return Sample(event="step_end", step=step, epoch=step / 1e5, time_s=1e9 + step, values=values, device=0)


def anonymous_bytes() -> int:
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
