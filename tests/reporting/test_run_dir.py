"""What is read back of a run is what the run itself would have said, whichever of its files are left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgather_mem.engine.schedule import MAX_STRETCH
from forgather_mem.formats.jsonl import header_line, log_files, sample_line
from forgather_mem.reporting.run_dir import NoRun, find_run, read_run
from forgather_mem.sinks import BlackBoxSink, JsonlSink
from forgather_mem.telemetry.records import Sample
from forgather_mem.units import GIB, MIB
from tests.json_schema import assert_fits
from tests.reporting.report_fixtures import all_well, killed_by, merged, report_of, text_of, written
from tests.sinks.plain_run import PlainRun

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a training that was watched to its end, and its report as it was then."""
    from forgather_mem import attach
    from tests.training import make_trainer

    folder = tmp_path_factory.mktemp("trained")
    trainer = make_trainer(folder, max_steps=30, eval_strategy="steps", eval_steps=10)
    watched = attach(trainer)
    trainer.train()
    return folder, dict(watched.report())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder of a training that was killed, and the step it was in."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.run_child", str(folder), "100000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    step = -1
    for line in child.stdout:  # what was printed before the kill is still in the pipe after it
        step = int(line) if line.strip().isdecimal() else step
        if step == 60:
            child.send_signal(signal.SIGKILL)
    assert child.wait(timeout=60) == -signal.SIGKILL
    child.stdout.close()
    return folder, step


@pytest.mark.parametrize("left", ["everything", "log"])
def test_a_run_that_was_closed_is_read_back_as_it_reported_itself(
    trained: tuple[Path, dict[str, Any]], left: str, tmp_path: Path
) -> None:
    folder, report = trained
    place = shutil.copytree(find_run(folder), tmp_path / "run")
    if left == "log":
        for path in place.glob("report*.json"):
            path.unlink()
    assert read_run(tmp_path) == report
    assert_fits(report)
    assert report["run"]["end"] == "finished"


def test_without_its_closing_line_the_log_still_gives_the_sizes(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, report = trained
    (log,) = log_files(find_run(folder))[0]
    lines = [line for line in log.read_bytes().splitlines(True) if b'"kind":"verdict"' not in line]
    (tmp_path / log.name).write_bytes(b"".join(lines))
    read = read_run(tmp_path)
    assert read["run"]["end"] is None  # the process that wrote it, this one, is still here
    for part in ("steps", "peaks", "gc", "cleanup_calls", "device"):
        assert read[part] == report[part], part
    for part in ("parameters", "gradients", "optimizer", "cached"):
        assert read["breakdown"][part] == report["breakdown"][part], part
    assert read["breakdown"]["activations_peak"] <= report["breakdown"]["activations_peak"]
    told = {name: size for name, size in report["host"].items() if name != "rss_start_bytes"}
    assert told.items() <= read["host"].items()  # the log begins with the first step
    assert read["run"]["script"] == report["run"]["script"]
    assert read["overhead"]["seconds"] == pytest.approx(report["overhead"]["seconds"], rel=0.5)


def test_a_tensorboard_folder_alone_gives_steps_peaks_and_parts(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, report = trained
    read = read_run(folder / "runs")
    assert (read["steps"], read["run"]["end"]) == (report["steps"], None)
    assert read["host"]["rss_peak_bytes"] == pytest.approx(report["host"]["rss_peak_bytes"], rel=1e-6)
    assert read["host"]["limit_bytes"] == pytest.approx(report["host"]["limit_bytes"], rel=1e-3)
    for part in ("parameters", "gradients", "optimizer"):
        assert read["breakdown"][part] == pytest.approx(report["breakdown"][part], rel=1e-6)
    assert {(peak["where"], peak["phase"]) for peak in read["peaks"]} == {
        (peak["where"], peak["phase"]) for peak in report["peaks"]
    }


@pytest.mark.parametrize("left", ["everything", "log", "black box"])
def test_a_run_that_was_killed_tells_its_last_step_from_whatever_is_left(
    killed: tuple[Path, int], left: str, tmp_path: Path
) -> None:
    folder, step = killed
    place = shutil.copytree(find_run(folder), tmp_path / "run")
    for path in place.iterdir():
        if (left == "log" and "ring" in path.name) or (left == "black box" and "memory" in path.name):
            path.unlink()
    report = read_run(tmp_path)
    assert_fits(report)
    assert report["run"]["end"] == "killed"
    within = MAX_STRETCH if left == "log" else 1  # the black box knows each step; the log, on a busy machine, each 16th
    assert abs(report["steps"] - step) <= within
    assert abs(report["killed"]["step"] - step) <= within
    assert report["host"]["rss_peak_bytes"] > 50 * MIB
    assert report["run"]["script"].endswith("run_child.py")
    assert report["run"]["wall_s"] > 0
    if left != "log":
        assert report["killed"]["oom_kill_before"] == report["killed"]["oom_kill_after"]
    text = text_of(killed_by(report, 9))
    assert f"killed (SIGKILL) after {report['steps']} steps" in text
    if left == "everything":
        assert "KILLED BY SIGKILL, but not for memory" in text


def test_reading_a_killed_run_loads_neither_torch_nor_numpy(killed: tuple[Path, int]) -> None:
    code = (
        "import sys; from forgather_mem.reporting.run_dir import *;"
        "from forgather_mem.reporting.text import report_text;"
        f"report_text(killed_report(run_report({str(killed[0])!r}), 9));"
        "print(sorted({'torch', 'transformers', 'numpy', 'yaml', 'tensorboard'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- logs made here: nothing heavy ----


def log_of(
    folder: Path,
    rank: int = 0,
    world_size: int = 1,
    steps: int = 40,
    left: tuple[float, float] | None = None,
    **header: Any,
) -> Path:
    """A log whose process is gone: its number is one that no process has."""
    said = {
        "pid": 2**22 + 5, "host": socket.gethostname(), "world_size": world_size, "time_s": 1000.0, "script": "a.py",
        "argv": [], "versions": {}, "limit_bytes": 8 * GIB, "limit_kind": "cgroup", **header,
    }  # fmt: skip
    lines = [header_line(rank, said)]
    for step in range(1, steps + 1):
        values = {"host/rss_bytes": 2**30 + (rank + 1) * step * MIB, "host/anon_bytes": 2**30 + step * MIB}
        if left is not None:
            values |= {"host/limit_used_frac": left[0], "host/available_bytes": left[1]}
        lines.append(sample_line(Sample("step_end", step, None, 1000.0 + step, values)))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"memory.rank{rank}.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def test_a_log_whose_process_is_gone_was_killed_and_says_what_grew(tmp_path: Path) -> None:
    log_of(tmp_path, steps=100)
    report = read_run(tmp_path)
    assert (report["run"]["end"], report["steps"], report["run"]["wall_s"]) == ("killed", 100, 100.0)
    assert report["killed"]["process_bytes_per_step"] == pytest.approx(MIB)
    assert report["killed"]["workers_bytes_per_step"] is None
    assert "Growth: this process 1.0 MiB a step since step 1." in text_of(report)


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


@pytest.mark.parametrize("hours", [-30, 1, 24 * 365])
def test_a_running_training_is_running_however_its_clock_was_set(tmp_path: Path, hours: int) -> None:
    sinks = [JsonlSink(), BlackBoxSink()]
    for sink in sinks:
        sink.begin(run := PlainRun(folder=tmp_path))
        sink.write(Sample("step_end", 1, None, time.time(), {"host/rss_bytes": 2.0**30}))
    log = tmp_path / "memory.rank0.jsonl"
    header, record = map(json.loads, log.read_text().splitlines())
    header["time_s"] -= hours * 3600  # by the clock of today it was begun then
    log.write_text(f"{json.dumps(header)}\n{json.dumps(record)}\n")
    assert read_run(tmp_path)["run"]["end"] is None
    log.unlink()
    assert read_run(tmp_path)["run"]["end"] is None
    for sink in sinks:
        sink.end(run)


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


def test_the_newest_run_below_a_folder_counts(tmp_path: Path) -> None:
    for number, name in enumerate(("older", "newest", "old")):
        path = log_of(tmp_path / "out" / "forgather_mem" / name, steps=20 + number)
        age_s = {"older": 300, "old": 200, "newest": 100}[name]
        os.utime(path, (time.time() - age_s,) * 2)
    assert find_run(tmp_path).name == "newest"
    assert read_run(tmp_path)["steps"] == 21
    assert find_run(tmp_path / "out" / "forgather_mem" / "old").name == "old"


def test_a_report_that_was_written_goes_before_the_log_and_a_broken_one_does_not(tmp_path: Path) -> None:
    log_of(tmp_path)
    path = written({**all_well(), "steps": 7}, tmp_path)
    assert read_run(tmp_path)["steps"] == 7
    path.write_text(path.read_text()[:-40])
    assert read_run(tmp_path)["steps"] == 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (None, "there is no folder"),
        ("nothing", "no run was found below"),
        ("file", "is a file"),
        ("foreign events", "have no tags mem_*"),
    ],
)
def test_where_there_is_no_run_the_message_says_what_is_there(make: str | None, message: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if make == "file":
        place.touch()
    elif make is not None:
        place.mkdir()
    if make == "foreign events":
        (place / "events.out.tfevents.1.x").write_bytes(b"")
    with pytest.raises(NoRun, match=message.replace("*", r"\*")):
        read_run(place)


def test_a_misspelt_folder_is_answered_with_its_neighbour(tmp_path: Path) -> None:
    log_of(tmp_path / "training")
    with pytest.raises(NoRun, match="did you mean 'training'"):
        read_run(tmp_path / "trainig")


# ---- several ranks ----


def test_of_several_ranks_each_number_is_the_worst_and_its_rank_is_named(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        log_of(tmp_path, rank, world_size=4, steps=40 if rank != 3 else 38)
    report = read_run(tmp_path)
    assert_fits(report)
    assert report["host"]["rank"] == 3
    assert report["host"]["rss_peak_bytes"] == 2**30 + 4 * 38 * MIB
    assert report["spread"]["host_peak_bytes"] == {
        "min": 2**30 + 40 * MIB,
        "max": 2**30 + 4 * 38 * MIB,
        "argmax": 3,
    }
    assert [row["rank"] for row in report["ranks"]] == [0, 1, 3]
    assert report["missing_ranks"] == [2]
    text = text_of(report)
    assert "RANKS     3 of 4, peaks: host 1.04 to 1.15 GiB, most on rank 3" in text
    assert "no files from rank 2" in text


def test_the_page_of_rank_0_is_pointed_to_whichever_rank_was_worst() -> None:
    reports = [
        report_of("a.py", 5, 1.0, "finished", run={"rank": rank, "world_size": 2}, host={"rss_peak_bytes": GIB})
        for rank in (0, 1)
    ]
    reports[0]["run"]["event_folder"] = "out/runs/a"
    reports[1]["run"]["end"] = "exception"
    whole = merged(reports)
    assert (whole["run"]["rank"], whole["run"]["event_folder"]) == (1, "out/runs/a")
    assert "2 of 2, peaks: host 1.00 GiB each" in text_of(whole)


def test_a_merged_report_has_a_file_of_its_own_that_is_read_first(tmp_path: Path) -> None:
    reports = []
    for rank in (0, 1):
        report = report_of("a.py", 10, 5.0, "finished", run={"rank": rank, "world_size": 2})
        assert written(report, tmp_path).name == f"report.rank{rank}.json"
        reports.append(report)
    whole = read_run(tmp_path)
    assert whole["ranks"][1]["rank"] == 1
    assert written(whole, tmp_path).name == "report.json"
    assert read_run(tmp_path) == whole
    assert merged(reports)["ranks"] == whole["ranks"]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**40),
            st.sampled_from(["finished", None, "exception", "killed", "oom", "interrupted"]),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_merging_neither_hides_a_failure_nor_a_peak_whatever_the_order(ranks: list[tuple[int, str | None]]) -> None:
    reports = [
        report_of("a.py", 5, 1.0, end, run={"rank": rank, "world_size": len(ranks)}, host={"rss_peak_bytes": size})
        for rank, (size, end) in enumerate(ranks)
    ]
    whole = merged(reports)
    assert whole["host"]["rss_peak_bytes"] == max(size for size, _ in ranks)
    ends = {end for _, end in ranks}
    worst = next(end for end in ("oom", "killed", "exception", "interrupted", None, "finished") if end in ends)
    assert whole["run"]["end"] == worst
    again = merged(reports[::-1])
    assert (again["host"]["rss_peak_bytes"], again["run"]["end"]) == (whole["host"]["rss_peak_bytes"], worst)
    assert set(report_of("a.py", 1, 1.0, None)) <= set(whole)
