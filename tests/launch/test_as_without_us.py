"""A watched command is, to everybody outside, the command alone: scripts that need no torch."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.launch.commands import BEGIN, JUDGED, RUN, Result, python, report_in, run, taken_apart, watched
from tests.launch.processes import Waiting
from tests.launch.scripts import TEXTS, script


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "waits"])
def test_exit_code_output_and_traceback_are_the_scripts_own(folder: Path, name: str) -> None:
    words = [script(folder, name), "one", "--two"]
    more = {"stdin": "text\n"} if name == "reads" else {}
    if name == "imports what fails":
        more["PYTHONPATH"] = str(folder / "broken")
    plain = run(python(*words), folder, **more)  # type: ignore[arg-type]
    with_us = watched(words, folder, **more)
    assert with_us.plain == plain
    assert len(with_us.report.splitlines()) <= 25
    assert max(map(len, with_us.report.splitlines())) <= 80
    assert with_us.report.isascii()
    assert report_in(folder)["run"]["exit_code"] == (plain.code if plain.code >= 0 else 128 - plain.code)


def test_a_module_and_the_options_of_python_are_passed_on(folder: Path) -> None:
    (folder / "tool").mkdir()
    (folder / "tool" / "__main__.py").write_text(
        "import sys, warnings\nprint(__name__, __spec__.name, sys.argv, sys.flags.optimize, sys.path[0])\n"
        "warnings.warn('careful')\n"
    )
    plain = run(python("-O", "-W", "error", "-m", "tool", "-x"), folder)
    with_us = run([*python("-O", "-W", "error"), *JUDGED[1:], "-m", "tool", "-x"], folder)
    assert taken_apart(with_us).plain == plain
    assert watched(["tool", "x"], folder).plain == run(python("tool", "x"), folder)


@pytest.mark.parametrize("words", [["-c", "import sys; print(sys.argv, sys.path[0]); sys.exit(7)", "x"], ["-", "x"]])
def test_a_program_that_is_no_file_runs(folder: Path, words: list[str]) -> None:
    stdin = "import sys; print(sys.argv, sys.path[0]); sys.exit(7)\n"
    plain = run(python(*words), folder, stdin=stdin)
    assert plain.code == 7
    assert taken_apart(run([*JUDGED, *words], folder, stdin=stdin)).plain == plain


def test_what_cannot_be_executed_is_said_also_when_switched_off(folder: Path) -> None:
    (folder / "no_shebang").write_text("echo never\n")
    (folder / "no_shebang").chmod(0o755)
    said = "forgather-mem: can't run ./no_shebang: Exec format error\n"
    assert watched(["./no_shebang"], folder).plain == Result(126, "", said)
    assert run([*RUN, "./no_shebang"], folder, FORGATHER_MEM="0") == Result(126, "", said)


def test_any_command_runs_and_its_pythons_are_met(folder: Path) -> None:
    name = script(folder, "exits with 3")
    (folder / "start.sh").write_text(f'#!/bin/sh\n"{sys.executable}" {name}\ncode=$?\necho "it was $code"\nexit 7\n')
    (folder / "start.sh").chmod(0o755)
    result = watched(["./start.sh"], folder)
    assert result.plain == run(["./start.sh"], folder)
    assert (result.plain.code, result.plain.out) == (7, "three\nit was 3\n")
    assert result.begin.startswith(BEGIN + "start.sh")
    assert watched([sys.executable, name], folder).begin.startswith(BEGIN + name)


# ---- signals ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_the_parent_is_one_to_the_script(folder: Path, number: signal.Signals) -> None:
    results = []
    for words in (python(), JUDGED):
        waiting = Waiting(folder, words)
        os.kill(waiting.process.pid, signal.SIGUSR1)
        assert waiting.process.stdout.readline() == "told SIGUSR1\n"
        os.kill(waiting.process.pid, number)
        results.append(waiting.result())
    plain, with_us = results[0], taken_apart(results[1]).plain
    assert (with_us.code, with_us.out) == (plain.code, plain.out)
    # Which line a Ctrl-C has met is chance
    assert with_us.err.splitlines()[:1] == plain.err.splitlines()[:1]
    assert with_us.err.splitlines()[-1:] == plain.err.splitlines()[-1:]
    assert plain.code == -number
    assert report_in(folder)["run"]["end"] == ("killed" if number == signal.SIGQUIT else "interrupted")


def test_who_is_stopped_and_continued_goes_on(folder: Path) -> None:
    waiting = Waiting(folder, JUDGED)
    for _ in range(4):
        os.kill(waiting.process.pid, signal.SIGSTOP)
        time.sleep(1.1)  # longer than the parent waits between its looks
        os.kill(waiting.process.pid, signal.SIGCONT)
        time.sleep(0.1)
    os.kill(waiting.process.pid, signal.SIGTERM)
    assert taken_apart(waiting.result()).plain.code == -signal.SIGTERM


def test_a_signal_that_the_starter_ignores_is_ignored(folder: Path) -> None:
    (folder / "looks.py").write_text(
        "import signal\nprint([signal.getsignal(n) for n in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT)])\n"
    )
    (folder / "start.sh").write_text("trap '' CHLD HUP INT\n\"$@\"\necho $?\n")
    results = [run(["sh", "start.sh", *words, "looks.py"], folder) for words in (python(), JUDGED)]
    assert taken_apart(results[1]).plain == results[0]
    assert results[0].out.endswith("]\n0\n")
