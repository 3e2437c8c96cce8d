"""A watched command is, to everybody outside, the command alone: scripts that need no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forgather_mem.formats.ring import read_ring
from forgather_mem.reporting.run_dir import read_run
from tests.launch.commands import BEGIN, JUDGED, ROOT, RUN, Result, environment, python, run, taken_apart, watched
from tests.launch.scripts import BROKEN_TRANSFORMERS, TEXTS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in BROKEN_TRANSFORMERS.items():
        (tmp_path / "broken" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "broken" / name).write_text(text)
    return tmp_path


def script(folder: Path, name: str) -> str:
    path = folder / f"{name.replace(' ', '_')}.py"
    path.write_text(TEXTS[name])
    return path.name


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
    (report,) = folder.glob("forgather_mem/*/report.json")
    assert json.loads(report.read_text())["run"]["exit_code"] == (plain.code if plain.code >= 0 else 128 - plain.code)


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


@pytest.mark.parametrize(
    ("words", "hint"),
    [(["run", "trian.py"], "did you mean 'train.py'?"), (["run", "--templat", "x"], "did you mean '--template'?"),
     (["train.py"], "to watch it: forgather-mem run train.py")],
)  # fmt: skip
def test_a_mistyped_command_line_names_what_was_meant(folder: Path, words: list[str], hint: str) -> None:
    (folder / "train.py").touch()
    result = run([*RUN[:-1], *words], folder)
    assert result.code == 2
    assert result.err.endswith(f"\n  {hint}\n")


def test_without_a_step_it_says_so(folder: Path) -> None:
    report = watched([script(folder, "exits with 3")], folder).report
    assert "\nNo Trainer step was seen; these numbers are for the whole process.\n" in report
    assert "OWN COST" not in report


def test_any_command_runs_and_its_pythons_are_met(folder: Path) -> None:
    name = script(folder, "exits with 3")
    (folder / "start.sh").write_text(f'#!/bin/sh\n"{sys.executable}" {name}\ncode=$?\necho "it was $code"\nexit 7\n')
    (folder / "start.sh").chmod(0o755)
    result = watched(["./start.sh"], folder)
    assert result.plain == run(["./start.sh"], folder)
    assert (result.plain.code, result.plain.out) == (7, "three\nit was 3\n")
    assert result.begin.startswith(BEGIN + "start.sh")
    assert watched([sys.executable, name], folder).begin.startswith(BEGIN + name)


def test_a_sitecustomize_of_the_user_still_runs(folder: Path) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(
        "import sys\nif 'run' not in sys.orig_argv: print('customized', __name__, __file__)\n"
    )
    (folder / "show.py").write_text(
        "import sys; print(sys.modules['sitecustomize'].__spec__.origin, sys.path, sys.meta_path[-3:])\n"
    )
    more = {"PYTHONPATH": str(folder / "site")}
    plain = run(python("show.py"), folder, **more)
    assert plain.out.startswith("customized sitecustomize")
    assert watched(["show.py"], folder, **more).plain == plain
    broken = "import sys\nif 'run' not in sys.orig_argv: raise ValueError('broken')\n"
    (folder / "site" / "sitecustomize.py").write_text(broken)
    plain = run(python("show.py"), folder, **more)
    assert "ValueError: broken" in plain.err
    assert watched(["show.py"], folder, **more).plain == plain


def test_switched_off_there_is_nothing_of_ours(folder: Path) -> None:
    (folder / "show.py").write_text(
        "import os, sys\nprint(os.environ.get('PYTHONPATH'), [n for n in os.environ if 'SESSION' in n])\n"
        "print([name for name in sys.modules if 'forgather' in name], os.getpid(), os.getppid() == int(sys.argv[1]))\n"
    )
    words = ["show.py", str(os.getpid())]
    process = subprocess.Popen([*RUN, *words], cwd=folder, env=environment(FORGATHER_MEM="0"), stdout=subprocess.PIPE)
    out = process.communicate(timeout=60)[0].decode()
    assert out.splitlines()[0] == run(python(*words), folder).out.splitlines()[0]
    assert f"[] {process.pid} True" in out, "no process stands between"
    assert not (folder / "forgather_mem").exists()


# ---- signals ----


class Waiting:
    """The script that waits, plain or watched, and what comes of it."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.process = subprocess.Popen(
            [*words, script(folder, "waits")],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def child(self) -> int:
        script, _ = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(script)

    def result(self) -> Result:
        out, err = self.process.communicate(timeout=60)
        return Result(self.process.returncode, out, err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_the_parent_is_one_to_the_script(folder: Path, number: signal.Signals) -> None:
    results = []
    for words in (python(), JUDGED):
        waiting = Waiting(folder, words)
        os.kill(waiting.process.pid, signal.SIGUSR1)
        assert waiting.process.stdout is not None
        assert waiting.process.stdout.readline() == "told SIGUSR1\n"
        os.kill(waiting.process.pid, number)
        results.append(waiting.result())
    plain, with_us = results[0], taken_apart(results[1]).plain
    assert (with_us.code, with_us.out) == (plain.code, plain.out)
    # Which line a Ctrl-C has met is chance
    assert with_us.err.splitlines()[:1] == plain.err.splitlines()[:1]
    assert with_us.err.splitlines()[-1:] == plain.err.splitlines()[-1:]
    assert plain.code == -number
    (report,) = folder.glob("forgather_mem/*/report.json")
    assert json.loads(report.read_text())["run"]["end"] == ("killed" if number == signal.SIGQUIT else "interrupted")


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


def test_killed_is_explained_at_once_and_the_parent_ends_the_same_way(folder: Path) -> None:
    waiting = Waiting(folder, RUN)
    os.kill(waiting.child(), signal.SIGKILL)
    result = waiting.result()
    assert result.code == -signal.SIGKILL
    report = taken_apart(result).report
    assert "killed (SIGKILL)" in report
    assert "\nforgather-mem report forgather_mem/" in report
    assert len(report.splitlines()) <= 25
    (path,) = folder.glob("forgather_mem/*/report.json")
    written = json.loads(path.read_text())
    assert (written["run"]["end"], written["run"]["exit_code"], written["killed"]["signal"]) == ("killed", 137, 9)


def test_parent_and_child_killed_together_are_told_by_the_folder(folder: Path) -> None:
    waiting = Waiting(folder, JUDGED)
    child = waiting.child()
    os.kill(waiting.process.pid, signal.SIGKILL)
    assert waiting.result().code == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the script outlives its parent, as it would not alone"
        time.sleep(0.01)
    report = read_run(folder)
    assert report["run"]["end"] == "killed"
    assert report["run"]["script"] == "waits.py"
    (ring,) = folder.glob("forgather_mem/*/ring.rank0")
    assert read_ring(ring).header["pid"] == child


# ---- the parent ----


def test_the_waiting_parent_is_hardly_larger_than_a_python_that_does_nothing(folder: Path) -> None:
    looks = "import os, sys, pathlib; print(pathlib.Path(f'/proc/{sys.argv[1]}/status').read_text())"
    (folder / "looks.py").write_text(looks.replace("sys.argv[1]", "os.getppid()"))
    bare = subprocess.Popen(python("-c", "input()"), stdin=subprocess.PIPE)
    time.sleep(0.2)
    sizes = []
    for text in (run(python("-c", looks, str(bare.pid)), folder).out, watched(["looks.py"], folder).plain.out):
        sizes.append(next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")))
    bare.communicate(b"\n")
    assert sizes[1] - sizes[0] < 3.5 * 1024, f"KiB of a bare Python and of the parent: {sizes}"


def test_the_parent_imports_little() -> None:
    code = "import sys; import forgather_mem.launch.parent; print(*sorted(sys.modules))"
    loaded = set(run(python("-c", code), ROOT).out.split())
    assert not {"typing", "pathlib", "dataclasses", "subprocess", "typer", "rich", "yaml", "torch"} & loaded


def test_files_go_where_the_environment_says(folder: Path) -> None:
    watched([script(folder, "exits with 3")], folder, FORGATHER_MEM_DIR=str(folder / "there"))
    assert not (folder / "forgather_mem").exists()
    assert {path.name for path in folder.glob("there/*/*")} == {"report.json", "ring.rank0"}


# ---- options ----


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "run: no command was given"),
        (["nowhere.py"], "run: there is no file 'nowhere.py'"),
        (["torchrn"], "run: 'torchrn' is neither a file nor a command"),
        (["-m"], "run: -m needs the name of a module"),
        (["--tmplate", "x", "a.py"], "run: there is no option '--tmplate'"),
        (["--template"], "run: --template needs a value"),
        (["--set", "lr", "a.py"], "run: --set 'lr' must be KEY=VALUE"),
        (["--fail-on", "leaks", "a.py"], "run: --fail-on 'leaks': the only value is leak"),
        (["--max-peak", "8GiB", "a.py"], "run: --max-peak '8GiB': write host=8GiB or gpu0=40GiB"),
        (["--report", "out.txt", "a.py"], "run: --report 'out.txt': give a file that ends in .json"),
    ],
)
def test_a_wrong_command_line_says_so_and_starts_nothing(folder: Path, words: list[str], said: str) -> None:
    (folder / "a.py").write_text("print('started')")
    result = run([*RUN, *words], folder)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"forgather-mem: {said}")
    assert not (folder / "forgather_mem").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--max-peak", "host=many"], 2, "many"),
        (["--template", "callbacks/wach.yaml"], 1, "callbacks/watch.yaml"),
        (["--set", "loging_dir=x"], 1, "loging_dir"),
    ],
)
def test_a_wrong_template_or_size_is_found_before_the_command_begins(
    folder: Path, words: list[str], code: int, said: str
) -> None:
    (folder / "a.py").write_text("print('started')")
    result = run([*RUN, *words, "a.py"], folder)
    assert (result.code, result.out) == (code, "")
    assert said in result.err


def test_a_peak_over_its_limit_ends_in_3_and_the_report_goes_where_it_is_wanted(folder: Path) -> None:
    (folder / "grows.py").write_text("import sys; x = b'x' * 2**26; sys.exit(int(sys.argv[1]))")
    result = watched(["--max-peak", "host=50MiB", "--report", "r.json", "grows.py", "0"], folder)
    assert result.plain.code == 3
    assert "the peak of host was" in result.report
    report = json.loads((folder / "r.json").read_text())
    assert 2**26 < report["host"]["rss_peak_bytes"] < 2**27
    assert report["run"]["argv"] == ["0"]
    assert watched(["--max-peak=host=50MiB", "grows.py", "5"], folder).plain.code == 5, "the command's own code"
    result = watched(["--max-peak", "host=8GiB", "--max-peak", "gpu7=1GiB", "grows.py", "0"], folder)
    assert result.plain.code == 0
    assert "GPU 7 was not measured" in result.report


def test_help_is_there(folder: Path) -> None:
    result = run([*RUN, "--help"], folder)
    assert result.code == 0
    assert "--max-peak" in result.out
