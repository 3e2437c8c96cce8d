"""The parent of `forgather-mem run`: small, checked before it starts anything, and gone when switched off."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.hostile_folders import assert_obeyed_by_nobody
from tests.launch.commands import ROOT, RUN, environment, python, run, watched
from tests.launch.scripts import script


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
    assert not {"typing", "pathlib", "dataclasses", "subprocess", "argparse", "rich", "yaml", "torch"} & loaded


def test_files_go_where_the_environment_says(folder: Path) -> None:
    watched([script(folder, "exits with 3")], folder, FORGATHER_MEM_DIR=str(folder / "there"))
    assert not (folder / "forgather_mem").exists()
    assert {path.name for path in folder.glob("there/*/*")} == {"report.json", "ring.rank0"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--max-peak", "host=many"], 2, "many"),
        (["--template", "callbacks/wach.yaml"], 1, "callbacks/watch.yaml"),
        (["--set", "loging_dir=x"], 1, "loging_dir"),
        (["--set", "every_steps=3"], 1, "it has logging_dir; --template callbacks/memory.yaml has more"),
    ],
)
def test_a_wrong_template_or_size_is_found_before_the_command_begins(
    folder: Path, words: list[str], code: int, said: str
) -> None:
    (folder / "a.py").write_text("print('started')")
    result = run([*RUN, *words, "a.py"], folder)
    assert (result.code, result.out) == (code, "")
    assert said in result.err


def test_a_script_by_a_name_of_a_strangers_moves_no_cursor_and_commands_no_runner(folder: Path) -> None:
    name = "\n::error::a\x1b[2J\x9b.py"
    (folder / name).write_text("import os; os.kill(os.getpid(), 9)")
    told = run([*RUN, name], folder).err.replace("forgather_mem", "")
    assert "watching" in told
    assert_obeyed_by_nobody(told)
    assert_obeyed_by_nobody(run([*RUN, f"{name}.missing.py"], folder).err)
