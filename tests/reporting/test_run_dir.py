"""What is read back of a run is what the run itself would have said, whichever of its files are left."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.engine.schedule import PaceLimits
from forgather_mem.formats.jsonl import log_files
from forgather_mem.reporting.run_dir import NoRun, find_run, read_run
from forgather_mem.sinks import BlackBoxSink, JsonlSink
from forgather_mem.telemetry.records import Sample
from forgather_mem.units import MIB
from tests.forked import Forked
from tests.json_schema import assert_fits
from tests.programs import printed_by
from tests.reporting.logs import log_of
from tests.reporting.report_fixtures import all_well, killed_by, text_of, written
from tests.sinks.plain_run import PlainRun

pytestmark = pytest.mark.alone(forked=True)


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
    code, said, _ = Forked(Path(__file__).parents[1] / "run_child.py", [str(folder), "60"], folder, os.environ).wait()
    assert code == -signal.SIGKILL
    return folder, max(int(line) for line in said.splitlines() if line.isdecimal())


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
    for part in ("steps", "gc", "cleanup_calls", "device"):
        assert read[part] == report[part], part
    # The reading at the end is in no record, and may be the peak
    for here, there in zip(read["peaks"], report["peaks"], strict=True):
        assert here | {"bytes": 0} == there | {"bytes": 0}
        assert here["bytes"] == pytest.approx(there["bytes"], rel=0.02)
    for part in ("parameters", "gradients", "optimizer", "cached"):
        assert read["breakdown"][part] == report["breakdown"][part], part
    assert read["breakdown"]["activations_peak"] <= report["breakdown"]["activations_peak"]
    ends = ("_start_bytes", "_end_bytes", "rss_peak_bytes")
    told = {name: size for name, size in report["host"].items() if not name.endswith(ends)}
    assert told.items() <= read["host"].items()  # the log begins with the first step
    for name in ("rss_end_bytes", "rss_peak_bytes"):
        assert read["host"][name] == pytest.approx(report["host"][name], rel=0.02)
    assert read["run"]["script"] == report["run"]["script"]
    assert read["overhead"]["seconds"] > 0  # without what the end cost, which is most of it on a busy machine


def test_a_tensorboard_folder_alone_gives_steps_peaks_and_parts(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, report = trained
    read = read_run(shutil.copytree(folder / "runs", tmp_path / "runs"))
    assert (read["steps"], read["run"]["end"]) == (report["steps"], None)
    assert read["host"]["rss_peak_bytes"] == pytest.approx(report["host"]["rss_peak_bytes"], rel=0.02)
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
    # The black box knows each step; the log, on a busy machine, each 16th
    within = PaceLimits.most_stretch if left == "log" else 1
    assert abs(report["steps"] - step) <= within
    assert abs(report["killed"]["step"] - (step + 1)) <= within  # what it has printed it has done by then
    assert report["host"]["rss_peak_bytes"] > 50 * MIB
    assert report["run"]["script"].endswith("tests/run_child.py")
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
    assert printed_by(code) == "[]\n"


# ---- logs made here: nothing heavy ----


@pytest.mark.parametrize("hours", [-30, 1, 24 * 365])
def test_a_running_training_is_running_however_its_clock_was_set(tmp_path: Path, hours: int) -> None:
    sinks = [JsonlSink(), BlackBoxSink()]
    for sink in sinks:
        sink.begin(run := PlainRun(folder=tmp_path))
        sink.write(Sample("step_end", 1, None, time.time(), {"host/rss_bytes": 2.0**30}))
    log = tmp_path / "memory.rank0.jsonl"
    header, record = map(json.loads, log.read_text().splitlines())
    header["started_s"] -= hours * 3600  # by the clock of today it was begun then
    log.write_text(f"{json.dumps(header)}\n{json.dumps(record)}\n")
    assert read_run(tmp_path)["run"]["end"] is None
    log.unlink()
    assert read_run(tmp_path)["run"]["end"] is None
    for sink in sinks:
        sink.end(run)


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
