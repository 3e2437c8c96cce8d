"""A report from the log alone."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.engine.so_far import plain_summary
from forgather_mem.engine.summary import RunSummary
from forgather_mem.formats.jsonl import LogReader, finding_line, roll_up_line
from forgather_mem.reporting.run_dir import read_run
from forgather_mem.telemetry.records import Finding, Sample
from forgather_mem.telemetry.report import LeakReport, LeakSuspect
from forgather_mem.telemetry.report_schema import to_dict
from forgather_mem.units import GIB, MIB
from tests.reporting.logs import log_of
from tests.reporting.report_fixtures import text_of


@pytest.mark.parametrize("steps", [100, 40])  # and too early for a verdict
def test_a_log_whose_process_is_gone_was_killed_and_says_what_grew(tmp_path: Path, steps: int) -> None:
    log_of(tmp_path, steps=steps)
    report = read_run(tmp_path)
    assert (report["run"]["end"], report["steps"], report["run"]["wall_s"]) == ("killed", steps, steps)
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


@pytest.mark.parametrize("told", ["4194304", ""])
def test_the_growth_of_a_killed_run_is_that_of_its_warning(tmp_path: Path, told: str) -> None:
    log_of(tmp_path, steps=100)
    with next(tmp_path.glob("memory.rank*")).open("ab") as log:
        log.write(finding_line(Finding(kind="grows", step=96, text="", data={"what": told})))
    assert read_run(tmp_path)["killed"]["process_bytes_per_step"] == pytest.approx(4 * MIB if told else MIB)


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


def long_log(folder: Path, steps: int = 300, every: int = 100) -> Path:
    """A log of a process that is gone, with what came of it so far after each `every` records, as a run writes it."""
    path = log_of(folder, steps=steps, left=(7 / 8, GIB))
    header, *lines = path.read_bytes().splitlines(True)
    data = {key: value for key, value in json.loads(header).items() if key not in ("type", "schema", "rank")}
    summary, last_s = RunSummary(), 1000.0
    summary.begin(0)
    for number, sample in enumerate(list(LogReader(path))[1:]):
        assert isinstance(sample, Sample)
        summary.add(sample)
        summary.add_step_cost(0.0, sample.time_s - last_s, 1)
        last_s = sample.time_s
        if not (number + 1) % every:
            lines[number] += roll_up_line(0, data, plain_summary(summary))
    path.write_bytes(b"".join([header, *lines]))
    return path


def without_roll_ups(path: Path, folder: Path) -> dict[str, object]:
    """The report of the same log as an older version has written it."""
    folder.mkdir()
    lines = [line for line in path.read_bytes().splitlines(True) if not line.startswith(b'{"type":"roll-up"')]
    (folder / path.name).write_bytes(b"".join(lines))
    return comparable(folder)


def comparable(folder: Path) -> dict[str, object]:
    report = read_run(folder)
    report["run"]["folder"] = None
    return report


def test_a_log_is_read_from_its_last_roll_up_on_as_from_its_beginning(tmp_path: Path) -> None:
    path = long_log(tmp_path / "run")
    whole = without_roll_ups(path, tmp_path / "old")
    assert comparable(tmp_path / "run") == whole
    data = path.read_bytes()
    at = data.rfind(b'{"type":"roll-up"')
    path.write_bytes(data[: data.index(b"\n") + 1] + b"no record\n" * 99 + data[at:])
    assert comparable(tmp_path / "run") == whole, "what stands before it is not read"


def test_a_roll_up_is_found_in_the_file_before(tmp_path: Path) -> None:
    path = long_log(tmp_path / "run", every=250)
    whole = without_roll_ups(path, tmp_path / "old")
    lines = path.read_bytes().splitlines(True)
    path.with_name(f"{path.name}.1").write_bytes(b"".join(lines[200:280]))  # the files before that one are gone
    path.write_bytes(lines[0] + b"".join(lines[280:]))
    assert comparable(tmp_path / "run") == whole


@given(cut=st.floats(0, 1), junk=st.sampled_from([b"", b"\n", b"x\n", b"\0" * 9, b'"}}\n']))
def test_a_torn_roll_up_is_passed_over(tmp_path_factory: pytest.TempPathFactory, cut: float, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("torn")
    path = long_log(folder / "run")
    data = path.read_bytes()
    at = data.rfind(b'{"type":"roll-up"')
    end = data.index(b"\n", at)
    path.write_bytes(data[: at + int(cut * (end - at))] + junk + b"\n" + data[end + 1 :])
    assert comparable(folder / "run") == without_roll_ups(path, folder / "old")


@pytest.mark.parametrize("made_by", [lambda folder: log_of(folder, steps=400), long_log], ids=["log", "with roll-ups"])
def test_a_log_that_another_process_went_on_with_tells_of_that_one_only(
    tmp_path: Path, made_by: Callable[[Path], Path]
) -> None:
    path = made_by(tmp_path)
    first = path.read_bytes()
    second = log_of(tmp_path, steps=30, pid=2**22 + 6).read_bytes()
    path.write_bytes(first + second)
    assert read_run(tmp_path)["steps"] == 30


def test_roll_ups_that_nobody_of_us_has_written_cost_little(tmp_path: Path) -> None:
    path = long_log(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"type":"roll-up","header":{},"so_far":{}}\n' * 100_000)
    began_s = time.thread_time()
    assert read_run(tmp_path)["steps"] == 300
    assert time.thread_time() - began_s < 15
