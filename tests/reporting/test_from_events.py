"""Curves, from the log or from TensorBoard's files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from forgather_mem.page.readings import read_readings
from forgather_mem.reporting.from_events import report_of_events
from forgather_mem.reporting.run_dir import read_run
from forgather_mem.sinks import JsonlSink, TensorBoardSink
from forgather_mem.telemetry.records import Sample
from forgather_mem.telemetry.report_schema import to_dict
from forgather_mem.units import GIB
from tests.reporting.report_fixtures import text_of
from tests.sinks.plain_run import PlainRun


def write_both(folder: Path, steps: Sequence[dict[str, float]]) -> None:
    """The page of a run, and its log, which is not closed: its report is made from the records."""
    run = PlainRun(folder)
    sinks = [JsonlSink(folder / "memory.rank0.jsonl"), TensorBoardSink(logging_dir=folder / "events")]
    for sink in sinks:
        sink.begin(run)
        for step, values in enumerate(steps, 1):
            sink.write(Sample("step_end", step, None, 100.0 + step, values, 2))
    sinks[1].end(run)


def test_a_tensorboard_folder_is_told_without_an_end(tmp_path: Path) -> None:
    sink = TensorBoardSink(logging_dir=tmp_path / "out/runs/1")
    sink.begin(PlainRun(tmp_path))
    for step in range(1, 30):
        sink.write(Sample("step_end", step, None, 100.0 + step, {"host/rss_bytes": 1.0 * GIB}, None))
    sink.end(PlainRun(tmp_path))
    alone = text_of(read_run(tmp_path / "out/runs"))
    assert alone.startswith("== forgather-mem == training == 29 steps in 28.0 s ===")
    assert "give the run's own folder" in " ".join(alone.split())


def test_several_devices_of_a_process_are_told_apart_in_both(tmp_path: Path) -> None:
    steps = [
        {
            "device/allocated_bytes": 1.0 * GIB,
            "device/reserved_bytes": 2.0 * GIB,
            "device/reserved_frac": 0.25,
            "phase/device/backward_peak_bytes": 1.5 * GIB,
            "device0/allocated_bytes": step * GIB / 4,
            "device0/reserved_bytes": 3.0 * GIB,
            "device0/reserved_frac": 0.75,
            "gc/pause_s": step / 1000,
        }
        for step in range(1, 10)
    ]
    write_both(tmp_path, steps)
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
    log, page = read_readings(tmp_path), read_readings(tmp_path / "events")
    assert log.steps == page.steps
    for name in (name for name in steps[0] if not name.endswith("_frac")):
        assert log.column(name) == pytest.approx(page.column(name), rel=1e-6)
