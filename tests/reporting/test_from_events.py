"""Curves, from the log or from TensorBoard's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from forgather_mem.reporting.from_events import read_curves, report_of_events
from forgather_mem.reporting.html import CURVES
from forgather_mem.reporting.run_dir import read_run
from forgather_mem.sinks import JsonlSink, TensorBoardSink
from forgather_mem.telemetry.records import Sample
from forgather_mem.telemetry.report_schema import to_dict
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


def test_several_devices_of_a_process_are_told_apart_in_both(tmp_path: Path) -> None:
    run = PlainRun(tmp_path)
    sinks = [JsonlSink(tmp_path / "memory.rank0.jsonl"), TensorBoardSink(logging_dir=tmp_path / "events")]
    for sink in sinks:
        sink.begin(run)
    for step in range(1, 10):
        values = {
            "device/allocated_bytes": 1.0 * GIB,
            "device/reserved_bytes": 2.0 * GIB,
            "device/reserved_frac": 0.25,
            "phase/device/backward_peak_bytes": 1.5 * GIB,
            "device0/allocated_bytes": step * GIB / 4,
            "device0/reserved_bytes": 3.0 * GIB,
            "device0/reserved_frac": 0.75,
        }
        for sink in sinks:
            sink.write(Sample("step_end", step, None, 100.0 + step, values, 2))
    sinks[1].end(run)  # the log is not closed: its report is made from the records
    of_log, of_page = read_run(tmp_path), to_dict(report_of_events(tmp_path / "events"))
    for report in (of_log, of_page):
        devices = [
            (used["index"], used["total_bytes"], used["peak_allocated_bytes"], used["peak_reserved_bytes"])
            for used in report["device"]
        ]
        assert devices == [(2, 8 * GIB, 1.5 * GIB, 2 * GIB), (0, 4 * GIB, 9 * GIB / 4, 3 * GIB)]
        assert {(peak["where"], peak["bytes"]) for peak in report["peaks"]} == {
            ("gpu2", 1.5 * GIB),
            ("gpu0", 9 * GIB / 4),
        }
    assert set(read_curves(tmp_path, CURVES)) == set(read_curves(tmp_path / "events", CURVES))
