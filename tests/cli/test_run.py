"""The command line of `forgather-mem run`."""

import shutil
import sys
from pathlib import Path

import pytest

from forgather_mem.cli.command import Arguments, command_of
from forgather_mem.cli.parser import CommandParser
from forgather_mem.cli.run import add_arguments
from forgather_mem.errors import UsageError
from forgather_mem.launch.parent import _OURS, _environment
from forgather_mem.telemetry import run_session
from tests.launch.commands import ROOT, RUN, run

PARSER = CommandParser("forgather-mem run", "")
add_arguments(PARSER)


def asked(*words: str) -> Arguments:
    return Arguments(PARSER.parse(words))


# What the waiting parent itself needs, before or after the command
OF_THE_PARENT = {"report", "fail_on", "baseline", "update_baseline", "max_peaks", "advice_s"}


def test_each_option_reaches_who_needs_it_and_is_explained() -> None:
    options = {one.dest: one for one in PARSER._actions if one.dest not in ("help", "command")}
    assert Arguments.__annotations__.keys() == {*options, "command"}
    assert options.keys() - run_session.OPTIONS.keys() == OF_THE_PARENT, (
        "what a training needs is in `run_session.OPTIONS`, what the parent alone needs is named here"
    )
    assert {*_OURS} == {name for one in options.values() for name in one.option_strings}, "told of behind a script"
    docs = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert [one.option_strings for one in options.values() if one.option_strings[0] not in docs] == []
    asked = Arguments(dict.fromkeys(options, "x"))
    assert _environment(asked, None).items() >= dict.fromkeys(run_session.OPTIONS.values(), "x").items()
    code = {path: path.read_text(encoding="utf-8") for path in (ROOT / "forgather_mem").rglob("*.py")}
    names = [name for name, value in vars(run_session).items() if value in run_session.OPTIONS.values()]
    assert [name for name in names if not any(f"run_session.{name}" in text for text in code.values())] == []
    for option in OF_THE_PARENT:
        assert any(f"arguments.{option}" in text for text in code.values()), option


@pytest.mark.parametrize(
    ("words", "hint"),
    [(["run", "trian.py"], "did you mean 'train.py'?"), (["run", "--templat", "x"], "did you mean '--template'?"),
     (["train.py"], "to watch it: forgather-mem run train.py")],
)  # fmt: skip
def test_a_mistyped_command_line_names_what_was_meant(tmp_path: Path, words: list[str], hint: str) -> None:
    (tmp_path / "train.py").touch()
    result = run([*RUN[:-1], *words], tmp_path)
    assert result.code == 2
    assert result.err.endswith(f"\n  {hint}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "run: no command was given"),
        (["nowhere.py"], "run: there is no file 'nowhere.py'"),
        (["python a.py"], "run: there is no file 'python a.py'\n  write its words without quotes"),
        (["RANK=0", "python", "a.py"], "run: 'RANK=0' is no command\n  variables stand before ours: RANK=0 "),
        (["--max-peak", "host", "a.py"], "run: --max-peak 'host': write host=40GiB or gpu0=40GiB"),
        (["a.yml"], "run: 'a.yml' is no Python script\n  give the command that trains with it"),
        (["a.ipynb"], "run: 'a.ipynb' is no Python script\n  `%load_ext forgather_mem` in the notebook"),
        (["torchrn"], "run: 'torchrn' is neither a file nor a command"),
        (["-m", "a.py"], "run: -m needs the name of a module\n  a file goes without -m"),
        (["--tmplate", "x", "a.py"], "run: there is no option '--tmplate'"),
        (["--template"], "run: --template needs a value"),
        (["--set", "lr", "a.py"], "run: --set 'lr' must be KEY=VALUE"),
        (["--fail-on", "leaks", "a.py"], "run: --fail-on takes no 'leaks': --fail-on leak\n  did you mean 'leak'?"),
        (["--max-peak", "8GiB", "a.py"], "run: --max-peak '8GiB': write host=8GiB or gpu0=8GiB"),
        (["--report", "out.txt", "a.py"], "run: --report 'out.txt': give a file that ends in .json"),
    ],
)
def test_a_wrong_command_line_says_so_and_starts_nothing(tmp_path: Path, words: list[str], said: str) -> None:
    for name in ("a.py", "a.yml", "a.ipynb"):
        (tmp_path / name).write_text("print('started')")
    result = run([*RUN, *words], tmp_path)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"forgather-mem: {said}")
    assert not (tmp_path / "forgather_mem").exists()


@pytest.mark.parametrize("update", [[], ["--update-baseline"]])
@pytest.mark.parametrize("text", ['{"lr": 0.1}', '{"allowed_growth": {"counted": 0.1}}', "\n" * 4096 + "lr: 0.1"])
def test_a_file_of_another_kind_stays_as_it_is(tmp_path: Path, update: list[str], text: str) -> None:
    other = tmp_path / "config.json"
    other.write_text(text)
    result = run([*RUN, "--baseline", str(other), *update, "-c", "print('started')"], tmp_path)
    assert (result.code, result.out) == (2, "")
    assert "config.json' is no baseline" in " ".join(result.err.split())
    assert other.read_text() == text
    other.write_text("")  # as mktemp makes it
    result = run([*RUN, "--baseline", str(other), "--update-baseline", "-c", "print('started')"], tmp_path)
    assert result.out == "started\n"


def test_options_end_where_the_command_begins(tmp_path: Path, own_folder: None) -> None:
    (tmp_path / "mine.yaml").touch()
    words = ["--template", "mine.yaml", "--set=lr=1", "--set", "run=a=b", "--allow", "mine", "--report", "r.json"]
    words += ["--plan", "--fail-on", "leak", "--max-peak", "host=8GiB", "--max-peak=gpu0=1GiB", "--"]
    words += ["train.py", "--set", "x"]
    assert vars(asked(*words)) == {
        "template": str(tmp_path / "mine.yaml"),  # the command may change its folder
        "settings": ["lr=1", "run=a=b"],
        "allow": ["mine"],
        "report": str(tmp_path / "r.json"),
        "fail_on": "leak",
        "max_peaks": [("host", "8GiB"), ("gpu0", "1GiB")],
        "plan": True,
        "baseline": None,
        "update_baseline": False,
        "advice_s": 60,
        "command": ["train.py", "--set", "x"],
    }
    assert not asked("train.py", "--plan").plan, "it is the script's"
    with pytest.raises(UsageError, match="--plan takes no value"):
        asked("--plan=yes", "train.py")


def test_a_command_is_named_after_its_script_whoever_starts_it(tmp_path: Path, own_folder: None) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "train.py").touch()
    (tmp_path / "launch").write_text("#!/bin/sh\n")
    (tmp_path / "launch").chmod(0o755)
    (tmp_path / "mine.yaml").write_text("#!/usr/bin/env axolotl\n")
    (tmp_path / "mine.yaml").chmod(0o755)
    for words, name, arguments, is_python in (
        (["runs/train.py", "-x"], "train.py", ["-x"], True),
        (["-m", "tool.train", "-x"], "tool.train", ["-x"], True),
        (["./mine.yaml", "-x"], "mine.yaml", ["-x"], False),
        (["-c", "print()", "-x"], "-c", ["-x"], True),
        (["python", "-u", "-X", "dev", "runs/train.py", "-x"], "train.py", ["-x"], True),
        (["python3", "-W", "error", "-m", "tool.train", "-x"], "tool.train", ["-x"], True),
        (["python", "-m", "torch.distributed.run", "runs/train.py", "-x"], "train.py", ["-x"], False),
        (["python", "./launch", "-x"], "python", ["./launch", "-x"], False),
        (["python", "-i"], "python", ["-i"], False),
        (["./launch", "--ranks", "2", "runs/train.py", "-x"], "train.py", ["-x"], False),
        (["./launch", "-x"], "launch", ["-x"], False),
    ):
        found = command_of(words)
        assert (found.name, found.arguments, found.is_python) == (name, arguments, is_python)
        is_named = words[0].startswith("python")
        # Debian has no command `python`: then that beside ours
        of_python = shutil.which(words[0]) or str(Path(sys.executable).parent / words[0])
        begin = of_python if is_named else sys.executable if is_python else words[0]
        assert found.argv[0] == begin
        assert found.argv[-len(words) + is_named :] == words[is_named:]


def test_what_is_not_given_has_the_default_of_a_command_without_options() -> None:
    plain = Arguments({"command": ["train.py"]})
    read = asked("train.py")
    for name, value in vars(read).items():
        assert getattr(plain, name) in ((value, tuple(value)) if isinstance(value, list) else (value,)), name


def test_an_option_of_the_script_before_it_is_told_where_it_belongs(tmp_path: Path) -> None:
    for option in ("--lr", "-x"):
        result = run([*RUN, option, "1", "train.py"], tmp_path)
        assert result.code == 2
        assert f"there is no option '{option}'\n  options of the command come after it" in result.err
