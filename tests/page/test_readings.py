"""Readings of a log and of event files, also of files that somebody else has made."""

from pathlib import Path

import numpy as np
import pytest

from forgather_mem.page.readings import Readings, read_readings
from forgather_mem.telemetry.metrics import metric_of
from tests.page.runs import readings_of, written_log


def test_a_value_stands_in_the_row_in_which_it_was_read(tmp_path: Path) -> None:
    rows = [("step_end", 1, {"host/rss_bytes": 5.0}), ("step_end", 2, {}), ("step_end", 3, {"host/rss_bytes": 7.0})]
    written_log(tmp_path, 0, [*rows, ("step_end", 4, {"gc/pause_s": 0.5, "mine/what": 1.0})])
    readings = read_readings(tmp_path)
    assert list(readings.steps) == [1, 2, 3, 4]
    column, held = readings.column("host/rss_bytes"), readings.held("host/rss_bytes")
    assert column[[0, 2]].tolist() == [5.0, 7.0]
    assert np.isnan(column[[1, 3]]).all()
    assert held.tolist() == [5.0, 5.0, 7.0, 7.0]
    assert readings.held("gc/pause_s") is not None
    assert readings.column("mine/what") is None
    assert [finding.step for finding in readings.findings] == [2]


def test_an_evaluation_stands_between_rows_as_it_was_before_and_after() -> None:
    readings = readings_of([("step_end", 1, {}), ("evaluate", 1, {"host/rss_bytes": 5.0}), ("step_end", 2, {})])
    assert list(readings.steps) == [1, 1, 1, 1, 2]
    assert readings.events == ["step_end", "between", "evaluate", "between", "step_end"]
    assert readings.inside_steps().tolist() == [True, True, False, True, True]


def test_another_process_starts_over(tmp_path: Path) -> None:
    path = written_log(tmp_path, 0, [("step_end", 1, {"host/rss_bytes": 5.0})])
    first = path.read_bytes()
    written_log(tmp_path, 0, [("step_end", 9, {"host/rss_bytes": 6.0})], pid=2**22 + 9)
    path.write_bytes(first + path.read_bytes())
    assert list(read_readings(tmp_path).steps) == [9]


@pytest.mark.parametrize("name", ["host/rss_bytes", "device3/allocated_bytes"])
def test_what_no_machine_has_is_left_out(name: str) -> None:
    readings = readings_of([("step_end", 1, {name: 1e30}), ("step_end", 2, {name: 4.0})])
    assert np.nansum(readings.column(name)) == 4.0  # type: ignore[arg-type]


def test_very_many_devices_take_no_more_memory_than_a_few() -> None:
    readings = Readings()
    for device in range(5000):
        readings.add("step_end", device, 0.0, [(f"device{device}/allocated_bytes", 1.0)])
    found = [device for device in range(5000) if readings.column(f"device{device}/allocated_bytes") is not None]
    assert len(found) < 300


def test_each_name_that_is_wanted_is_measured() -> None:
    from forgather_mem.page import readings

    assert [name for name in readings._WANTED if metric_of(name).meaning == "A metric of your own."] == []
