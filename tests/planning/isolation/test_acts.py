"""What is done outside a process is noted, or not done; and what only reads is."""

import ctypes
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from os import remove  # a name that was taken before
from pathlib import Path

import pytest
import torch

from forgather_mem.planning.isolation.acts import acted_on
from forgather_mem.planning.isolation.child import in_a_child
from tests.trees import tree

Act = Callable[[Path], object]
libc = ctypes.CDLL(None)
HAS_LANDLOCK = libc.syscall(444, None, 0, 1) > 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "old").write_text("of last week")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "one").write_text("1")
    with sqlite3.connect(tmp_path / "rows.db") as rows:
        rows.execute("create table rows (number)")
        rows.execute("insert into rows values (7)")
    rows.close()
    return tmp_path


def result_in_a_child(act: Act, folder: Path) -> tuple[str, list[str]]:
    """What the act comes to there, and the lines that were not done."""

    def child() -> str:
        try:
            return str(act(folder))
        except Exception as error:  # whatever it is
            return type(error).__name__

    lines: dict[str, None] = {}
    return in_a_child(child, not_done=lines), list(lines)


def appends(folder: Path) -> None:
    with (folder / "old").open("a") as file:
        file.write("more")


def makes_whole(folder: Path) -> None:
    (folder / "new").mkdir(parents=True, exist_ok=True)
    (folder / "new" / "draft").write_text("x")
    os.replace(folder / "new" / "draft", folder / "old")


def lists_a_new_one(folder: Path) -> list[str]:
    os.makedirs(new := folder / "new" / "inner", exist_ok=True)
    return [*os.listdir(str(new)), *map(str, new.parent.iterdir()), *os.listdir(folder / "cache")]


def in_a_temporary_folder(_: Path) -> str:
    with tempfile.TemporaryDirectory() as there, tempfile.NamedTemporaryFile("w", dir=there) as file:
        torch.save(torch.ones(3), f"{there}/one.pt")
        file.write("x")
        file.flush()
        assert os.environ["TMPDIR"] == tempfile.gettempdir()
        return f"{Path(file.name).read_text()} {torch.load(f'{there}/one.pt').tolist()}"


def moved_over(folder: Path) -> None:
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("x")
    shutil.move(file.name, folder / "old")


def by_number(folder: Path) -> int:
    return os.write(os.open(folder / "old", os.O_WRONLY | os.O_TRUNC), b"x")


def in_a_fork(folder: Path) -> int:
    if not (pid := os.fork()):
        os.remove(folder / "old")
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


SKIPPED: list[tuple[Act, str]] = [
    (appends, "None"),
    (makes_whole, "None"),
    (lists_a_new_one, "['one']"),
    (moved_over, "None"),
    (by_number, "1"),
    (lambda folder: open(folder / "old", "r+").read(), "of last week"),  # noqa: SIM115
    (lambda folder: (folder / "old").unlink(), "None"),
    (lambda folder: (folder / "old").touch(), "None"),
    (lambda folder: os.chmod(folder / "old", 0o600), "None"),
    (lambda folder: shutil.rmtree(folder / "cache"), "None"),
    (lambda folder: torch.save({"a": torch.ones(3)}, folder / "old"), "None"),
    (lambda folder: torch.save({"a": torch.ones(3)}, str(folder / "new.pt")), "None"),
]


@pytest.mark.parametrize(("act", "result"), SKIPPED)
def test_who_changes_files_goes_on_and_none_is_changed(folder: Path, act: Act, result: str) -> None:
    before = tree(folder)
    came_to, lines = result_in_a_child(act, folder)
    assert came_to == result
    assert lines
    assert all(line.startswith("tests/planning/isolation/test_acts.py:") for line in lines), lines
    assert tree(folder) == before


REFUSED: list[Act] = [
    lambda folder: subprocess.run(["touch", folder / "new"], check=False),
    lambda folder: os.system(f"touch {folder / 'new'}"),
    lambda folder: os.posix_spawn("/bin/touch", ["touch", f"{folder / 'new'}"], {}),
    lambda folder: os.kill(os.getppid(), signal.SIGUSR1),
    lambda folder: remove(folder / "old"),
    lambda folder: socket.getaddrinfo("localhost", 80),
]


@pytest.mark.parametrize("act", REFUSED)
def test_what_would_answer_is_refused(folder: Path, act: Act) -> None:
    before = tree(folder)
    came_to, (line,) = result_in_a_child(act, folder)
    assert came_to == "PermissionError"
    assert line.startswith("tests/planning/isolation/test_acts.py:")
    assert tree(folder) == before


def test_nobody_is_called(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        address = listener.getsockname()

        def call(_: Path) -> None:
            with socket.socket() as caller:
                caller.connect(address)

        came_to, lines = result_in_a_child(call, tmp_path)
        assert (came_to, len(lines)) == ("PermissionError", 1)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_the_forks_of_a_child_act_on_nothing_either(folder: Path) -> None:
    before = tree(folder)
    assert result_in_a_child(in_a_fork, folder)[0] == "3"
    assert tree(folder) == before


def insert(folder: Path) -> None:
    sqlite3.connect(folder / "rows.db").execute("insert into rows values (8)")


BY_THE_KERNEL: list[Act] = [
    lambda folder: libc.unlink(bytes(folder / "old")),
    lambda folder: libc.creat(bytes(folder / "old"), 0o666),
    lambda folder: libc.mkdir(bytes(folder / "new"), 0o777),
    lambda folder: libc.system(b"touch " + bytes(folder / "new")),
    lambda folder: torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), str(folder / "old")),
    insert,
]


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
@pytest.mark.parametrize("act", BY_THE_KERNEL)
def test_libraries_that_do_not_ask_are_held_by_the_kernel(folder: Path, act: Act) -> None:
    before = tree(folder)
    result_in_a_child(act, folder)
    assert tree(folder) == before


READS: list[tuple[Act, str]] = [
    (lambda folder: (folder / "old").read_text(), "of last week"),
    (lambda folder: os.read(os.open(folder / "old", os.O_RDONLY), 2), "b'of'"),
    (lambda folder: (folder / "cache").mkdir(exist_ok=True), "None"),
    (lambda folder: sqlite3.connect(folder / "rows.db").execute("select number from rows").fetchone(), "(7,)"),
    (lambda folder: sorted(os.listdir(folder)), "['cache', 'old', 'rows.db']"),
    (lambda folder: open(os.devnull, "w").write("x"), "1"),  # noqa: SIM115
    (lambda folder: torch.multiprocessing.get_context("fork").Lock().acquire(), "True"),
    (in_a_temporary_folder, "x [1.0, 1.0, 1.0]"),
]


@pytest.mark.parametrize(("act", "result"), READS)
def test_what_only_reads_is_done_and_not_named(folder: Path, act: Act, result: str) -> None:
    before = tree(folder)
    assert result_in_a_child(act, folder) == (result, [])
    assert tree(folder) == before


def test_a_missing_file_and_one_that_may_not_be_read_are_what_they_are(folder: Path) -> None:
    assert result_in_a_child(lambda folder: open(folder / "none"), folder) == ("FileNotFoundError", [])  # noqa: SIM115
    assert result_in_a_child(lambda folder: (folder / "cache").mkdir(), folder) == ("FileExistsError", [])


def test_what_was_not_done_stands_beside_what_failed_for_it(folder: Path) -> None:
    def caches() -> str:
        (folder / "kept").write_text("x")
        return (folder / "kept").read_text()

    with pytest.raises(
        Exception,
        match=r"FileNotFoundError.*\n.*write_text.* would do outside was not done \(open .*\): a plan acts on",
    ):
        in_a_child(caches)


def test_an_event_is_an_act_by_what_it_changes(tmp_path: Path) -> None:
    number = os.open(tmp_path, os.O_RDONLY)
    try:
        assert acted_on("os.remove", ("name", number)) == [f"{tmp_path}/name"]
    finally:
        os.close(number)
    assert acted_on("open", ("name", None, os.O_RDWR)) == ["name"]
    assert acted_on("open", (tmp_path / "name", "w", os.O_CREAT)) == [f"{tmp_path}/name"]
    assert acted_on("open", ("name", "r", os.O_CLOEXEC)) is None
    assert acted_on("open", (3, "wb", os.O_WRONLY)) is None
    assert acted_on("os.rename", ("here", b"there", -1, -1)) == ["here", "there"]
    assert acted_on("socket.connect", (None, ("127.0.0.1", 80))) == ["127.0.0.1:80"]
    assert acted_on("os.kill", (1, 9)) == []
    assert acted_on("os.mkdir", (str(tmp_path), 0o777, -1)) is None
    assert acted_on("os.listdir", (".",)) is None


def test_it_imports_next_to_nothing() -> None:
    code = (
        "import sys, contextlib, io, os, __future__; before = {*sys.modules};"
        "import forgather_mem.planning.isolation.acts;"
        "print(*({*sys.modules} - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if not name.startswith("forgather_mem")] == []
