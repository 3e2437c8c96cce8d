"""A report from the log alone."""

from __future__ import annotations

import platform
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgather_mem.formats.jsonl import LogReader, finding_line, header_line, sample_line
from forgather_mem.formats.like_lines import Rows
from forgather_mem.reporting.from_log import LogReplay, finished_report, is_reported, report_of_log
from forgather_mem.reporting.run_dir import read_run
from forgather_mem.telemetry.metrics import every_metric
from forgather_mem.telemetry.records import Finding, Sample
from forgather_mem.telemetry.report import LeakReport, LeakSuspect
from forgather_mem.telemetry.report_schema import to_dict
from forgather_mem.units import GIB, MIB
from tests.reporting.logs import log_of
from tests.reporting.report_fixtures import text_of


def test_a_log_whose_process_is_gone_was_killed_and_says_what_grew(tmp_path: Path) -> None:
    log_of(tmp_path, steps=100)
    report = read_run(tmp_path)
    assert (report["run"]["end"], report["steps"], report["run"]["wall_s"]) == ("killed", 100, 100.0)
    assert report["killed"]["process_bytes_per_step"] == pytest.approx(MIB)
    assert report["killed"]["workers_bytes_per_step"] is None
    assert "Growth: this process 1.0 MiB a step since step 1." in text_of(report)


def test_the_holder_of_a_killed_run_has_what_it_has_at_the_end_not_when_it_was_named(tmp_path: Path) -> None:
    log_of(tmp_path, steps=100)
    holder = LeakSuspect(type="list", held_by="kept", bytes_per_step=MIB, count_per_step=2.0, count=50, bytes=25 * MIB)
    told = LeakReport(verdict="leak", where="tensors", bytes_per_step=MIB, suspects=(holder,))
    with next(tmp_path.glob("memory.rank*")).open("ab") as log:
        log.write(finding_line(Finding(kind="leak", step=25, text="", data=to_dict(told))))
    (found,) = read_run(tmp_path)["leak"]["suspects"]
    assert (found["count"], found["bytes"]) == (50 + 75 * 2, (25 + 75) * MIB)


def test_growth_is_told_of_a_run_that_was_killed_too_early_for_a_verdict(tmp_path: Path) -> None:
    log_of(tmp_path, steps=40)
    assert read_run(tmp_path)["killed"]["process_bytes_per_step"] == pytest.approx(MIB)


@pytest.mark.parametrize(
    ("left", "used"),
    [
        ((7 / 8, GIB), 7 * GIB),
        ((6 / 7, GIB), 6 * GIB),  # of memory.high, in the same group
        ((63 / 64, GIB), None),  # of the machine, on which others have taken the rest
    ],
)
def test_what_counts_against_another_limit_is_not_told_of_the_one_that_is_named(
    tmp_path: Path, left: tuple[float, float], used: int | None
) -> None:
    log_of(tmp_path, left=left)
    report = read_run(tmp_path)
    assert report["host"]["limit_bytes"] == 8 * GIB
    assert report["killed"]["used_bytes"] == (None if used is None else pytest.approx(used, abs=2))


def test_the_ranks_of_one_machine_are_added_up(tmp_path: Path) -> None:
    for rank, host in enumerate(("a", "a", "b")):
        log_of(tmp_path, rank, world_size=3, host=host)
    report = read_run(tmp_path)
    total = (1024 + 40) * MIB + (1024 + 80) * MIB
    assert report["spread"]["host_sum_bytes"] == total
    assert f"on one host, all ranks together: at most {total / GIB:,.1f} of 8.0 GiB" in text_of(report)


def test_ranks_on_machines_of_their_own_have_no_sum(tmp_path: Path) -> None:
    for rank, host in enumerate("ab"):
        log_of(tmp_path, rank, world_size=2, host=host)
    assert "host_sum_bytes" not in read_run(tmp_path)["spread"]


def test_a_log_of_another_machine_does_not_say_how_it_ended(tmp_path: Path) -> None:
    log_of(tmp_path, host="elsewhere")
    assert read_run(tmp_path)["run"]["end"] is None


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 20_000), junk=st.binary(max_size=60))
def test_a_log_that_was_cut_off_anywhere_is_read_as_far_as_it_goes(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    path = log_of(tmp_path_factory.getbasetemp() / "cut", steps=20)
    whole = path.read_bytes()
    cut = min(cut, len(whole))
    path.write_bytes(whole[:cut] + junk)
    report = read_run(path.parent)
    num_whole = max(0, whole[:cut].count(b"\n") - 1)
    assert num_whole <= report["steps"] <= num_whole + 1  # a line may lack its end only
    assert text_of(report)


def test_a_log_that_another_process_went_on_with_tells_of_that_one_only(tmp_path: Path) -> None:
    path = log_of(tmp_path, steps=400)
    first = path.read_bytes()
    second = log_of(tmp_path, steps=30, pid=2**22 + 6).read_bytes()
    path.write_bytes(first + second)
    assert read_run(tmp_path)["steps"] == 30


def test_a_log_that_was_begun_anew_for_its_size_is_one(tmp_path: Path) -> None:
    lines = log_of(tmp_path, steps=40).read_bytes().splitlines(True)
    (tmp_path / "memory.rank0.jsonl.1").write_bytes(b"".join(lines[:20]))
    (tmp_path / "memory.rank0.jsonl").write_bytes(lines[0] + b"".join(lines[20:]))
    assert read_run(tmp_path)["steps"] == 40


def test_records_of_every_tenth_step_count_all_steps(tmp_path: Path) -> None:
    path = log_of(tmp_path, steps=100)
    lines = path.read_bytes().splitlines(True)
    path.write_bytes(lines[0] + b"".join(lines[10::10]))
    assert read_run(tmp_path)["steps"] == 100


def lines_of_all_kinds(seed: int) -> Iterator[bytes]:
    """A log with stretches of like samples, between them other names, events, gaps, actions and no records."""
    chance, step, time_s = random.Random(seed), 0, 1000.0
    yield header_line(0, {"pid": 2**22 + 5, "time_s": time_s})
    for _ in range(60):
        more = chance.sample(["host/limit_used_frac", "collect/time_s", "phase/host/forward_peak_bytes", "my/own"], 1)
        names = ["host/rss_bytes", "host/anon_bytes", "step/self_s", *more * chance.randrange(2)]
        gap, epoch = chance.choice((1, 1, 3)), chance.choice((None, 0.5))
        event = chance.choice(("step_end", "step_end", "evaluate"))
        for _ in range(chance.choice((1, 3, 40))):
            step, time_s = step + gap, time_s + chance.random()
            values = {name: chance.choice((1, 10, 2**30)) * chance.random() for name in names}
            yield sample_line(Sample(event, step, epoch, time_s, values))
        yield chance.choice((b"no record\n", finding_line(Finding(kind="alert", step=step, text="full")), b""))


@pytest.mark.parametrize("seed", range(4))
def test_samples_in_one_piece_give_the_same_report_as_one_by_one(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "memory.rank0.jsonl"
    path.write_bytes(b"".join(lines_of_all_kinds(seed)))
    pieces, single = LogReplay(), LogReplay()
    in_pieces = list(LogReader(path).runs(is_reported))
    for piece in in_pieces:
        pieces.take(piece)
    for record in LogReader(path):
        single.take(record)
    assert max(len(one.steps) for one in in_pieces if isinstance(one, Rows)) >= 40
    report, one_by_one = (finished_report(replay, None, "log") for replay in (pieces, single))
    if sys.version_info >= (3, 12):  # sum() rounds once there
        for name in ("seconds", "share_of_run", "share_of_step", "step_s", "once_s"):
            assert getattr(report.overhead, name) == pytest.approx(getattr(one_by_one.overhead, name), rel=1e-3)
        report = replace(report, overhead=one_by_one.overhead)
    assert report == one_by_one


@pytest.mark.parametrize("seed", range(3))
def test_what_is_left_unread_tells_a_report_nothing(tmp_path: Path, seed: int) -> None:
    """A log with every metric there is, also of other devices, grows and shrinks: the same report as of all of it."""
    chance, path = random.Random(seed), tmp_path / "memory.rank0.jsonl"
    names = [row.name for row in every_metric()]
    names += [f"device1/{name.removeprefix('device/')}" for name in names if name.startswith("device/")]
    some = [[name for name in names if "_frac" not in name and "/time_s" not in name], names]
    lines = [header_line(0, {"pid": 2**22 + 5, "host": platform.node(), "time_s": 1000.0})]
    for step in range(1, 1500):
        sizes = {name: chance.choice((0, 1, 2**30)) * chance.random() for name in some[step > 1300]}
        sizes |= {name: chance.random() for name in sizes if name.endswith("_frac")}
        lines.append(sample_line(Sample("step_end", step, None, 1000.0 + step, sizes)))
    path.write_bytes(b"".join(lines))
    single = LogReplay()
    for record in LogReader(path):
        single.take(record)
    report = report_of_log([path])
    assert report.killed is not None
    assert report == finished_report(single, None, path.name)
    assert any(isinstance(one, Rows) for one in LogReader(path).runs(is_reported))
