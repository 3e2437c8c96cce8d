"""The action for continuous integration: its script, run as GitHub's runner runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from forgather_mem.reporting.build import write_report
from tests.comparing.runs import run

FOLDER = Path(__file__).parent.parent / ".github" / "actions" / "memory"


def step(folder: Path, command: str, **inputs: str) -> tuple[int, str, str]:
    """Exit code, summary and outputs of the action's one step."""
    action = yaml.safe_load((FOLDER / "action.yml").read_text())
    (only,) = action["runs"]["steps"]
    given = {name: told.get("default", "") for name, told in action["inputs"].items()}
    given |= {"command": command, **{name.replace("_", "-"): value for name, value in inputs.items()}}
    variables = {name: given[told.split("inputs.")[1].split()[0]] for name, told in only["env"].items()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGATHER_MEM")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    runner = {
        "GITHUB_ACTION_PATH": str(FOLDER), "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_OUTPUT": str(folder / "output"), "RUNNER_TEMP": str(folder), "PATH": path,
    }  # fmt: skip
    for name in ("summary.md", "output"):
        (folder / name).write_text("")
    done = subprocess.run(
        ["bash", "-c", only["run"]], cwd=folder, env={**kept, **runner, **variables}, capture_output=True, check=False
    )
    return done.returncode, (folder / "summary.md").read_text(), (folder / "output").read_text()


def test_memory_that_has_grown_fails_the_step_and_stands_in_the_summary(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import sys, time\nkept = bytearray(int(sys.argv[1]) * 2**20)\ntime.sleep(0.3)\n")
    write = ["run", "--baseline", "memory.json", "--update-baseline", "job.py", "1"]
    subprocess.run([sys.executable, "-m", "forgather_mem", *write], cwd=tmp_path, check=True, capture_output=True)
    code, summary, output = step(tmp_path, "job.py 1", baseline="memory.json")
    assert code == 0
    assert summary.startswith("### Memory: not grown\n")
    assert "<details><summary>The report</summary>\n\n```text\n== forgather-mem == job.py ==" in summary
    assert output == f"report={tmp_path}/this-run.json\n"
    code, summary, _ = step(tmp_path, "job.py 128", baseline="memory.json")
    assert code == 3
    assert summary.startswith("### Memory: grown\n```text\nthe peak of host: "), "the decision comes first"


def test_a_run_is_compared_with_another_and_a_failing_command_keeps_its_code(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit(7)\n")
    write_report(run(), tmp_path / "before")
    code, summary, _ = step(tmp_path, "fails.py", compare_with="before")
    assert code == 7
    assert summary.startswith("### Memory: the command failed with 7\n")
    assert "| memory | before | this-run.json | difference |" in summary


SHOWS = "import json, sys\nfrom pathlib import Path\nPath('words.json').write_text(json.dumps(sys.argv[1:]))\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show.py --name 'a b' \"c d\" e\\ f", ["--name", "a b", "c d", "e f"]),
        ("\nshow.py\n  --one 1\n  --two 2\n", ["--one", "1", "--two", "2"]),
        ("show.py --one 1 \\\n  --two # 2", ["--one", "1", "--two", "#", "2"]),
        ("show.py $HOME `id` $(id) ; id | id && id > x * 'two\nlines'", [
            "$HOME", "`id`", "$(id)", ";", "id", "|", "id", "&&", "id", ">", "x", "*", "two\nlines"
        ]),
        ("show.py ''", [""]),
    ],
)  # fmt: skip
def test_the_words_of_a_command_are_those_that_its_author_quoted(
    tmp_path: Path, command: str, words: list[str]
) -> None:
    (tmp_path / "show.py").write_text(SHOWS)
    code, _, _ = step(tmp_path, command)
    assert code == 0
    assert json.loads((tmp_path / "words.json").read_text()) == words
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("command", "baseline", "told"),
    [
        ("", "", "no command was given"),
        ("job.py 'open", "", "the command can not be split into words: No closing quotation"),
        ("--fail-on leaks job.py", "", "--fail-on takes no 'leaks'"),
        ("job.py", "the 'first' one.json", "--update-baseline writes it"),
        ("job.py", "job.json", "is no baseline"),
    ],
)
def test_what_kept_it_from_starting_is_the_decision(tmp_path: Path, command: str, baseline: str, told: str) -> None:
    (tmp_path / "job.py").write_text("")
    (tmp_path / "job.json").write_text("{")
    write_report(run(), tmp_path)  # an earlier step's, which is not handed out
    (tmp_path / "report.json").rename(tmp_path / "this-run.json")
    write_report(run(), tmp_path / "before")
    code, summary, output = step(tmp_path, command, baseline=baseline, compare_with="before")
    assert (code, output) == (2, "")
    assert summary.startswith("### Memory: could not be judged (exit code 2)\n```text\n")
    assert told in " ".join(summary.split())
    assert not {"<details>", "difference"} & set(summary.split()), "there is no report"


@pytest.mark.parametrize(
    ("command", "code", "decision"),
    [
        ("ends.py 3", 3, ": the command failed with 3"),
        ("--max-peak host=1MiB ends.py 0", 3, ": a limit is exceeded"),
        ("--fail-on leak ends.py 0", 4, ": could not be judged (exit code 4)"),
        ("--baseline new.json --update-baseline ends.py 0", 0, ": the baseline is written"),
        ("ends.py 0", 0, ""),
    ],
)
def test_a_limit_is_told_from_the_commands_own_code(tmp_path: Path, command: str, code: int, decision: str) -> None:
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
    ended, summary, _ = step(tmp_path, command, compare_with="nothing")
    assert (ended, summary.splitlines()[0]) == (code, f"### Memory{decision}")
    assert "**Memory could not be judged: there is no folder 'nothing'" in summary


def test_what_a_training_prints_stays_inside_its_fence(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(
        "import sys\nprint('== forgather-mem ==\\n' + '`' * 5 + '\\n![x](http://host/x)', file=sys.stderr)\n"
    )
    code, summary, _ = step(tmp_path, "prints.py")
    lines = summary.splitlines()
    assert (code, lines[4], lines[-3]) == (0, "``````text", "``````")
    assert lines.count("``````") == 1
    assert "`````" in lines
