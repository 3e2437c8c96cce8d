"""Which commands leave a report, and which leave nothing."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.launch.commands import BEGIN, RUN, Result, files, python, run, taken_apart
from tests.launch.forked_run import run_forked

USAGE = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\nparser.parse_args()\n"


@pytest.mark.parametrize(
    ("first", "text", "words", "code"),
    [
        ("", USAGE, ["--help"], 0),
        ("", USAGE, ["-h"], 0),
        ("", USAGE, ["--learning"], 2),
        ("", "import no_such_module_at_all\n", [], 1),
        ("", "print('x'\n", [], 1),
        pytest.param("import torch\n", USAGE, ["--learning"], 2, marks=pytest.mark.soak),
    ],
    ids=["help", "short help", "a wrong option", "an import", "no Python", "a wrong option with torch"],
)
def test_usage_texts_and_first_lines_leave_nothing(
    tmp_path: Path, first: str, text: str, words: list[str], code: int
) -> None:
    (tmp_path / "a.py").write_text(text)
    plain = run(python("a.py", *words), tmp_path)  # torch says nothing when it is imported
    (tmp_path / "a.py").write_text(first + text)
    with_us = run([*RUN, "a.py", *words], tmp_path)
    assert plain.code == code
    begin = "" if code == 0 else f"{BEGIN}a.py; your run is not changed. Report at the end.\n"
    end = "forgather-mem: no report: a.py ended after ... s, with no step of torch\n" if code else ""
    said = re.sub(r"(?<=ended after )\S+", "...", with_us.err)
    assert Result(with_us.code, with_us.out, said) == Result(plain.code, plain.out, begin + plain.err + end)
    assert files(tmp_path) == {"a.py"}


def test_a_short_script_without_torch_leaves_nothing_and_is_told_why(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print('hello')  # its own: --plan")
    (tmp_path / "forgather_mem").mkdir()
    result = run([*RUN, "a.py", "--plan", "--set", "a=1"], tmp_path)
    assert (result.code, result.out) == (0, "hello\n")
    begin, end = result.err.splitlines()
    assert begin.startswith(BEGIN)
    assert begin.endswith("--set goes to a.py, behind which it stands; for us it goes before.")
    assert end.startswith("forgather-mem: no report: a.py ended after 0.")
    assert files(tmp_path) == {"a.py", "forgather_mem"}


def test_a_short_script_that_is_killed_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    taken_apart(run([*RUN, "a.py"], tmp_path))
    assert list(tmp_path.glob("forgather_mem/*/report.json"))


@pytest.mark.fresh
@pytest.mark.parametrize("words", [[], ["--report", "r.json"]], ids=["as it is", "asked for"])
def test_an_error_before_any_training_is_told_in_one_line_unless_a_report_was_asked_for(
    tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "a.py").write_text("import torch\n\nraise ValueError('no such row\\nin the table')\n")
    result = run_forked([*RUN, *words, "a.py"], tmp_path)
    after = result.err.partition("in the table\n")[2]
    (path,) = tmp_path.glob("forgather_mem/*/report.json")
    written = json.loads(path.read_text())["run"]
    assert (written["end"], written["exit_code"]) == ("exception", 1)
    assert (written["error"], written["error_line"]) == ("ValueError: no such row", "a.py:3")
    peak, command = r"; peak \d+\.\d MiB ", f"forgather-mem report {path.parent.relative_to(tmp_path)}"
    line = rf"forgather-mem: no training step: ValueError at a\.py:3{peak}\({command}\)\n"
    assert bool(re.fullmatch(line, after)) != bool(words), after
    text = after if words else run_forked([sys.executable, "-m", "forgather_mem", *command.split()[1:]], tmp_path).out
    assert "\nAt a.py:3: ValueError: no such row\nNo training step was seen" in text


@pytest.mark.fresh
def test_an_exit_code_before_any_training_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import sys, torch\nsys.exit(1)\n")
    result = run_forked([*RUN, "a.py"], tmp_path)
    assert re.fullmatch(rf"{BEGIN}a.py.*\nforgather-mem: no training step; peak \d+\.\d MiB\n", result.err), result.err
    assert files(tmp_path) == {"a.py"}


def test_a_process_below_a_shell_that_is_killed_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text("#!/bin/sh\nsh -c 'kill -KILL $$'\n")
    (tmp_path / "start.sh").chmod(0o755)
    assert taken_apart(run([*RUN, "./start.sh"], tmp_path)).plain.code == 137
