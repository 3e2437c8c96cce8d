"""Curves, from the log or from TensorBoard's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from forgather_mem.reporting.from_events import read_curves
from forgather_mem.reporting.html import CURVES
from forgather_mem.sinks import JsonlSink, TensorBoardSink
from forgather_mem.telemetry.records import Sample
from forgather_mem.units import GIB
from tests.sinks.plain_run import PlainRun


def test_log_and_tensorboard_page_give_the_same_curves(tmp_path: Path) -> None:
    run = PlainRun(tmp_path)
    sinks = [JsonlSink(tmp_path / "memory.rank0.jsonl"), TensorBoardSink(logging_dir=tmp_path / "events")]
    for sink in sinks:
        sink.begin(run)
    for step in range(1, 30):
        values = {
            "host/rss_bytes": step * GIB / 8,
            "device/step_peak_bytes": step * GIB / 4,
            "phase/device/backward_peak_bytes": 2.0 * GIB,
            "gc/pause_s": step / 1000,
        }
        for sink in sinks:
            sink.write(Sample("step_end", step, None, 100.0 + step, values, 2))
    for sink in sinks:
        sink.end(run)
    of_log, of_page = read_curves(tmp_path, CURVES), read_curves(tmp_path / "events", CURVES)
    assert set(of_log) == set(of_page) == set(values)
    for name, found in of_log.items():
        assert found.steps == of_page[name].steps
        assert list(found.values) == pytest.approx(list(of_page[name].values), rel=1e-6)
