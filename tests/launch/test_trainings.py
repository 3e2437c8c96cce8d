"""Real trainings, watched: bit for bit as alone, on one and two ranks, of transformers, accelerate, torch and TRL."""

import importlib.util
import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.launch.outcome import print_reports
from forgather_mem.reporting.run_dir import read_run
from tests.forked import SCRIPTS, Forked
from tests.launch.commands import REPORT, ROOT, RUN, Result, Watched, environment, run, taken_apart
from tests.launch.forked_run import run_forked
from tests.reporting.report_fixtures import all_well, leaking, out_of_memory, parsed

SCRIPT = ROOT / "tests/launch/train.py"
LOOP = str(ROOT / "tests/launch/loop.py")
TORCHRUN = [str(SCRIPTS / "torchrun"), "--nproc_per_node=2", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
ACCELERATE = [
    str(SCRIPTS / "accelerate"), "launch", "--num_processes=1", "--num_machines=1", "--mixed_precision=no",
    "--dynamo_backend=no", "--cpu",
]  # fmt: skip


@pytest.fixture
def libuv() -> None:
    """What torchrun's c10d asks for; Debian's torch has none."""
    from torch import distributed

    try:
        distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    except RuntimeError:
        pytest.skip("this torch is built without libuv")


def alone(mode: str, folder: Path) -> Result:
    """What the script gives without us."""
    folder.mkdir()
    return Result(*Forked(SCRIPT, [mode, "."], folder, environment()).wait())


def watched(launcher: Sequence[str], mode: str, folder: Path) -> Watched:
    """The script watched: alone it is named to us as it would be to Python, or with its launcher."""
    folder.mkdir()
    return taken_apart(run([*RUN, *launcher, str(SCRIPT), mode, "."], folder))


def reports(folder: Path) -> dict[str, dict[str, Any]]:
    """Name of the folder above `forgather_mem`, and file, to report."""
    return {
        f"{path.parent.parent.parent.name}/{path.name}": json.loads(path.read_text())
        for path in folder.rglob("report*.json")
    }


@pytest.mark.slow
@pytest.mark.fresh
def test_trainings_one_after_the_other_and_an_error_in_the_last(tmp_path: Path) -> None:
    plain = alone("raises", tmp_path / "plain")
    (tmp_path / "watched").mkdir()
    with_us = taken_apart(run_forked([*RUN, str(SCRIPT), "raises", "."], tmp_path / "watched"))
    assert (with_us.plain.code, with_us.plain.out) == (plain.code, plain.out)
    assert plain.code == 1
    traces = [result.err[result.err.index("Traceback ") :] for result in (plain, with_us.plain)]
    traces = [re.sub(r"/mp-\w+", "/mp-", trace) for trace in traces]  # a semaphore's name, which Python 3.14 tells
    assert traces[0] == traces[1], "before it are bars with speeds"
    assert "the users own error" in traces[0]
    found = reports(tmp_path / "watched")
    ends = {name: (report["steps"], report["run"]["end"]) for name, report in found.items()}
    assert ends == {
        "first/report.json": (6, "finished"),
        "second/report.json": (2, "finished"),
        "third/report.json": (2, "exception"),
    }
    assert {report["run"]["exit_code"] for report in found.values()} == {1}
    assert "exception after 2 steps" in with_us.report
    assert "the worst of 3 trainings" in with_us.report
    assert not (tmp_path / "watched" / "forgather_mem").exists(), "the trainings have folders of their own"
    assert not list((tmp_path / "plain").rglob("*forgather_mem*"))


@pytest.mark.fresh
def test_an_error_of_the_trainer_before_its_first_epoch_is_told(tmp_path: Path) -> None:
    with_us = taken_apart(run_forked([*RUN, "--report", "r.json", str(SCRIPT), "empty", "."], tmp_path))
    assert with_us.plain.code == 1
    told = json.loads((tmp_path / "r.json").read_text())["run"]
    line = next(i for i, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "trainer.train()  # raises" in text)
    assert (told["end"], told["exit_code"], told["error_line"]) == ("exception", 1, f"train.py:{line}")
    assert f"\nAt train.py:{line}: ValueError: num_samples should be a positive integer" in with_us.report


@pytest.mark.slow
@pytest.mark.fresh
def test_a_script_that_watches_itself_is_watched_once_and_has_no_report_twice(tmp_path: Path) -> None:
    with_us = taken_apart(run_forked([*RUN, str(SCRIPT), "own", "."], tmp_path))
    assert with_us.plain.code == 0
    assert not with_us.plain.err.replace(
        "max_steps is given, it will override any value given in num_train_epochs\n", ""
    )
    told = [line for line in with_us.plain.out.splitlines() if line.startswith(("listed", "attached", "other"))]
    assert told == ["attached 1 1 6", "other 1 1 6", "listed 1 0 6"]
    for name in ("listed", "attached"):
        (folder,) = (tmp_path / name / "forgather_mem").iterdir()
        assert {path.name for path in folder.iterdir()} == {"memory.rank0.jsonl", "report.json", "ring.rank0"}
    assert with_us.plain.out.count(REPORT) == 2
    assert with_us.report.startswith(f"{REPORT}train.py == 6 steps in ")
    assert "of 3 trainings" not in with_us.report, "the script has printed the one before the last"
    assert {report["run"]["exit_code"] for report in reports(tmp_path).values()} == {0}


@pytest.mark.parametrize(
    ("printed", "code", "ranks", "shown"),
    [
        ([], 0, 1, [REPORT, "the last of 2 trainings", "report first"]),
        (["first"], 0, 1, [REPORT]),
        (["second"], 0, 1, ["the last, which the script has printed, of 2 trainings", "report first"]),
        (["first", "second"], 0, 1, []),
        (["first", "second"], 1, 1, [REPORT, "the last of 2 trainings", "report first"]),
        (["first", "second"], 0, 2, [REPORT, "the last of 2 trainings", "report first"]),
    ],
    ids=["none", "the first", "the last", "both", "both, then an error", "each rank its own"],
)
def test_what_is_printed_at_the_end_is_what_the_script_has_not(
    printed: list[str], code: int, ranks: int, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    both = [all_well(), all_well()]
    for name, report in zip(("first", "second"), both, strict=True):
        report["run"] |= {"folder": str(Path(name).absolute()), "exit_code": code, "world_size": ranks}
    print_reports([parsed(report) for report in both], [str(Path(name).absolute()) for name in printed])
    said = capsys.readouterr().err
    everything = [REPORT, "the last of 2 trainings", "the last, which the script", "of 2 trainings", "report first"]
    assert all(text in said for text in shown)
    assert not [text for text in everything if text in said and not any(text in wanted for wanted in shown)]


def test_the_worst_of_several_trainings_is_shown_and_the_others_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    all_of_them = [all_well(), out_of_memory(), leaking(), all_well()]
    for number, report in enumerate(all_of_them):
        report["run"] |= {"folder": f"/runs/{number}"}
    print_reports([parsed(report) for report in all_of_them], [])
    said = capsys.readouterr().err
    assert said.count(REPORT) == 1
    assert "OUT OF MEMORY" in said
    assert "this was the worst of 4 trainings; of the others:" in said
    assert re.findall(r"/runs/(\d)\n +(.*?), host peak", said) == [("3", "no leak"), ("2", "leak"), ("0", "no leak")]


@pytest.mark.fresh
@pytest.mark.parametrize("launcher", [[], pytest.param(ACCELERATE, marks=pytest.mark.soak)], ids=["alone", "launched"])
def test_a_template_of_the_users_is_attached_and_handed_on_by_a_launcher(tmp_path: Path, launcher: list[str]) -> None:
    plain = alone("short", tmp_path / "plain")
    assert plain.code == 0, plain.err
    (tmp_path / "mine.yaml").write_text(
        '-- extends "callbacks/memory.yaml"\n\n[callback_list]\n    == super()\n    mine: !singleton:rules:Mine []\n'
    )
    (tmp_path / "rules.py").write_text("from transformers import TrainerCallback\n\nclass Mine(TrainerCallback): ...\n")
    words = ["--template", "mine.yaml", "--set", "every_steps=3", "--allow", "rules", *launcher, str(SCRIPT), "short"]
    start = run if launcher else run_forked
    ended = start([*RUN, *words, "."], tmp_path, PYTHONPATH=f"{tmp_path}:{os.environ['PYTHONPATH']}")
    result = taken_apart(Result(ended.code, ended.out, ended.err.rpartition("error is explained\n")[2]))
    assert result.plain.code == 0, result.plain.err
    callbacks, weights = result.plain.out.splitlines()
    assert callbacks == "['SimpleGarbageCollector', 'ClearCacheCallback', 'TBMemoryLogger', 'Mine']"
    assert plain.out.splitlines() == ["[]", weights]
    (report,) = reports(tmp_path).values()
    assert (report["steps"], report["run"]["end"]) == (6, "finished")
    assert report["host"]["rss_end_bytes"] > 2**27
    assert result.report.startswith("== forgather-mem == train.py == 6 steps in ")


LAUNCHER = """
import os, sys
for rank in "01":
    if not os.fork():
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.execve(sys.executable, [sys.executable, sys.argv[1]], {**os.environ, **ranks})
for rank in "01":
    os.wait()
"""


@pytest.mark.fresh
def test_ranks_without_a_trainer_have_reports_too(tmp_path: Path) -> None:
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    result = taken_apart(run_forked([*RUN, "launcher.py", LOOP], tmp_path))
    assert result.plain.code == 0, result.plain.err
    assert sorted(result.plain.out.split()) == ["0", "1", "rank", "rank"]
    (folder,) = (tmp_path / "forgather_mem").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "report.json", "report.rank0.json", "report.rank1.json", "ring.rank0",
    }  # fmt: skip
    report = json.loads((folder / "report.json").read_text())
    assert (report["run"]["world_size"], report["steps"], report["run"]["end"]) == (2, 0, "finished")
    assert report["host"]["rss_peak_bytes"] > 2**27


@pytest.mark.slow
@pytest.mark.usefixtures("libuv")
def test_under_torchrun_the_rank_that_was_killed_is_named_with_its_last_step_and_phase(tmp_path: Path) -> None:
    result = taken_apart(run([*RUN, *TORCHRUN, str(ROOT / "tests/launch/ranks_die.py"), "SIGKILL"], tmp_path))
    assert result.plain.code == 1
    head, first, others, *_ = result.report.splitlines()
    assert re.fullmatch(rf"{REPORT}ranks_di.*== killed \(SIGKILL\) after 11 steps in .*", head)
    assert first == "RANK 1 OF 2 FAILED FIRST, after step 11."
    assert others in ("  The others: 1 ended by an exception.", "  The others: 1 left no end.")
    assert "\nKILLED BY SIGKILL" in result.report
    (report,) = (path for path in tmp_path.rglob("report.json"))
    again = read_run(report.parent)
    assert again["first_failure"]["signal"] == signal.SIGKILL
    assert [row["signal"] for row in again["ranks"] if row["rank"] == 1] == [signal.SIGKILL]


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
@pytest.mark.fresh
def test_a_trainer_of_trl_is_met(tmp_path: Path) -> None:
    plain = alone("trl", tmp_path / "plain")
    with_us = watched([], "trl", tmp_path / "watched")
    assert (with_us.plain.code, with_us.plain.out) == (plain.code, plain.out)
    assert plain.code == 0, plain.err
    assert reports(tmp_path / "watched")["out/report.json"]["steps"] == 3
