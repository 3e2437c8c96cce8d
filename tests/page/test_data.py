"""The data of the page: what is in it, how large it is, and that it is the same from each source."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forgather_mem.page.data import kept_rows, packed, page_data, run_data, shown_rank
from forgather_mem.page.html import script_json
from forgather_mem.page.readings import Readings
from forgather_mem.reporting.run_dir import run_report
from forgather_mem.telemetry.records import Finding
from forgather_mem.units import GIB, MIB
from tests.page.runs import HOSTILE, gpu_data, hostile_data, numbers, on_a_gpu, parts_of, readings_of, written_log
from tests.reporting.report_fixtures import all_well, killed, leaking, merged, out_of_memory, parsed, report_of


@pytest.mark.parametrize("num_steps", [30_000, pytest.param(300_000, marks=pytest.mark.soak)])
def test_very_many_steps_take_less_than_two_megabytes_and_keep_every_maximum(num_steps: int) -> None:
    readings = on_a_gpu(num_steps)
    peak = readings.held("device/step_peak_bytes")
    data = page_data(parsed(leaking()), readings)
    assert len(script_json([data])) < 2_000_000
    assert len(data["steps"]) > 5000  # type: ignore[arg-type]
    parts = parts_of(data, "gpu0")
    in_steps = [sum(of[row] or 0 for key, of in parts.items() if key != "cached") for row in range(len(parts["other"]))]
    assert max(in_steps) >= peak.max() - 12 * 1024
    pauses = {one["key"]: numbers(one["values"], 1e-6) for one in data["pauses"]}  # type: ignore[attr-defined]
    collector = readings.column("gc/pause_s")
    assert collector is not None
    assert max(value or 0 for value in pauses["gc"]) == pytest.approx(np.nanmax(collector), abs=1e-6)


def test_the_data_is_json_whatever_a_run_is_called() -> None:
    text = json.dumps(hostile_data(), allow_nan=False)
    assert HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b") == json.loads(text)["name"]
    assert "\\u202e\\u" not in text  # written out, so that it turns no text around
    assert len(text) < 100_000


def test_another_rank_is_shown_beside_what_rank_0_has_told_of_all(tmp_path: Path) -> None:
    for rank, slope in ((0, 1), (1, 3), (2, 2)):
        rows = [("step_end", step, {"host/rss_bytes": GIB + slope * step * float(MIB)}) for step in range(1, 21)]
        if not rank:
            rows[9][2].update({"ranks/rss_min_bytes": 5.0 * MIB, "ranks/rss_max_bytes": 9.0 * MIB, "ranks/argmax": 1.0})
        written_log(tmp_path, rank, rows[: 20 if rank else 10], world_size=3, script="train.py")
    report = run_report(tmp_path)
    data = run_data(report, tmp_path)
    assert shown_rank(report) == data["rank"] == 1
    band = data["band"]
    assert isinstance(band, dict)
    assert {key: set(values) for key, values in band.items()} == {"low": {5 * 1024}, "high": {9 * 1024}, "most": {1}}
    assert len(band["low"]) == 20


def test_rank_0_tells_the_spread() -> None:
    values = {"host/rss_bytes": GIB * 1.0, "ranks/rss_min_bytes": GIB * 1.0, "ranks/rss_max_bytes": GIB * 2.0}
    report = all_well()
    report["device"] = []
    data = page_data(parsed(report), readings_of([("step_end", 1, {**values, "ranks/argmax": 7.0})] * 3))
    assert numbers(data["band"]["most"], 1) == [7, 7, 7]  # type: ignore[index]


def test_of_very_many_ranks_one_log_and_rank_0_are_read(tmp_path: Path) -> None:
    values = {"ranks/rss_min_bytes": GIB * 1.0, "ranks/rss_max_bytes": GIB * 3.0, "ranks/argmax": 17.0}
    for rank in range(20):
        told = {"host/rss_bytes": GIB + rank * float(MIB), **(values if not rank else {})}
        rows = [("step_end", step, told) for step in (1, 2)]
        written_log(tmp_path, rank, rows, world_size=20)
    data = run_data(run_report(tmp_path), tmp_path)
    assert data["rank"] == 19
    assert numbers(data["band"]["most"], 1) == [17, 17]  # type: ignore[index]


def test_steps_that_go_back_are_drawn_where_they_were_read() -> None:
    readings = readings_of([("step_end", step, {"host/rss_bytes": 1.0}) for step in (5, 3, 9)])
    assert numbers(page_data(parsed(all_well()), readings)["steps"], 1) == [5, 5, 9]  # type: ignore[arg-type]


def test_what_happened_is_marked() -> None:
    readings = on_a_gpu(100)
    readings.findings.append(Finding(kind="alert", step=30, text="host/rss_bytes is 9 GiB"))
    found = page_data(parsed(leaking()), readings)["marks"]
    marks = {(mark["kind"], mark["step"]): mark["text"] for mark in found}  # type: ignore[attr-defined]
    assert marks["leak", 60] == "the leak begins, step 60"
    assert marks["alert", 30] == "host/rss_bytes is 9 GiB"
    assert ("evaluation", 5) in marks
    assert marks["cache", 3] == "cache clears, step 3: 40.0 ms, freed 3.0 GiB"
    for make, kind in ((out_of_memory, "oom"), (killed, "killed")):
        found = page_data(parsed(make()), on_a_gpu(10))["marks"]
        assert kind in {mark["kind"] for mark in found}  # type: ignore[attr-defined]


def test_many_marks_of_a_kind_are_an_even_selection() -> None:
    rows: list[tuple[str, int, dict[str, float]]] = [
        ("step_end", step, {"host/rss_bytes": 1.0, "collect/time_s": 0.1}) for step in range(1, 5001)
    ]
    found = page_data(parsed(all_well()), readings_of(rows))["marks"]
    steps = [mark["step"] for mark in found if mark["kind"] == "collect"]  # type: ignore[attr-defined]
    assert 200 <= len(steps) <= 300
    assert steps[-1] > 4900


@pytest.mark.parametrize("make", [all_well, leaking, out_of_memory, killed])
def test_each_report_has_data_with_and_without_readings(make: object) -> None:
    report = make()  # type: ignore[operator]
    for readings in (Readings(), on_a_gpu(3), readings_of([("evaluate", 5, {})]), readings_of([("step_end", 0, {})])):
        data = page_data(parsed(report), readings)
        assert json.loads(json.dumps(data, allow_nan=False))["text"].startswith("== forgather-mem ==")


def test_out_of_memory_in_step_1_shows_what_was_in_use_and_what_was_wanted() -> None:
    report = report_of("train.py", 0, 3.0, "oom")
    in_use = {"activations": 700 * MIB, "Python and libraries": 200 * MIB, "reserved address space": 100 * MIB}
    report["oom"] = {
        "where": "host", "step": 1, "phase": "forward", "rank": 0, "requested_bytes": 500 * MIB,
        "limit_bytes": 1100 * MIB, "limit": "container", "in_use": in_use, "error_type": "RuntimeError", "message": "",
    }  # fmt: skip
    data = page_data(parsed(report), Readings())
    (stack,) = data["stacks"]
    held = {label: numbers(part["values"])[-1] for part in stack["parts"] if (label := part["label"])}
    assert held == {
        "activations": 700 * MIB, "there before the first step": 200 * MIB, "reserved address space": 100 * MIB,
        "wanted, not there": 500 * MIB,
    }  # fmt: skip
    assert stack["limit"]["bytes"] == 1100 * MIB
    assert numbers(data["steps"], unit=1) == [1, 1]


def test_a_merged_report_of_very_many_ranks_has_short_tables() -> None:
    reports = []
    for rank in range(100):
        report = report_of("train.py", 10, 10.0, "finished", host={"rss_peak_bytes": GIB + rank})
        report["run"].update(rank=rank, world_size=100)
        reports.append(report)
    data = page_data(parsed(merged(reports)), Readings())
    tables = {table["title"]: table["rows"] for table in data["tables"]}  # type: ignore[attr-defined]
    assert len(tables["Ranks"]) == 41
    assert tables["Ranks"][-1] == ("and 60 more: see report --json",)


def test_startup_comes_first_on_the_axis_of_time(tmp_path: Path) -> None:
    rows = [("step_end", step, {"host/rss_bytes": float(GIB)}) for step in (1, 2)]
    written_log(tmp_path, 0, rows, startup=[[0.5, 10 * MIB], [1.5, 300 * MIB]])
    data = run_data(run_report(tmp_path), tmp_path)
    assert data["startup"] == [[500, 10 * 1024], [1500, 300 * 1024]]
    assert numbers(data["times_ms"], 1) == [11_000, 12_000]  # type: ignore[arg-type]


def test_the_data_of_a_long_run_is_thinned_the_same_in_each_part() -> None:
    data = gpu_data(50_000)
    lengths = {len(part["values"]) for stack in data["stacks"] for part in stack["parts"]}
    assert lengths == {len(data["steps"])} == {len(data["times_ms"])}


# ---- curves are thinned ----


SOME = st.integers(2, 400).flatmap(
    lambda rows: st.lists(
        arrays(np.float64, rows, elements=st.one_of(st.floats(-1e15, 1e15), st.just(np.nan))), min_size=1, max_size=4
    )
)


@given(SOME, st.integers(20, 100))
def test_each_column_keeps_its_highest_and_its_lowest(columns: list[np.ndarray], most: int) -> None:  # type: ignore[type-arg]
    num_rows = len(columns[0])
    rows = kept_rows(columns, num_rows, most)
    assert rows[0] == 0
    assert rows[-1] == num_rows - 1
    assert (np.diff(rows) > 0).all()
    assert len(rows) <= max(most, 2 + 2 * len(columns))
    for column in columns:
        if not np.isnan(column).all():
            assert np.nanmax(column[rows]) == np.nanmax(column)
            assert np.nanmin(column[rows]) == np.nanmin(column)


def test_in_any_stretch_that_a_reader_zooms_into_the_maximum_is_there() -> None:
    column = np.random.default_rng(0).random(100_000)
    rows = kept_rows([column], 100_000, 4000)
    for begin in range(0, 100_000, 10_000):
        inside = rows[(rows >= begin) & (rows < begin + 10_000)]
        assert column[inside].max() == column[begin : begin + 10_000].max()


@given(st.lists(st.one_of(st.none(), st.integers(-(2**50), 2**50))))
def test_packed_numbers_come_back(values: list[int | None]) -> None:
    column = np.array([np.nan if value is None else value * 1024.0 for value in values])
    found = packed(column, 1024.0)
    assert numbers(found) == [None if value is None else value * 1024 for value in values]
