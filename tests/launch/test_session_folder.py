"""Which files `run` makes, and that it touches nobody else's."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from forgather_mem.launch.session_folder import SessionFolder
from tests.launch.commands import JUDGED, ROOT, RUN, files, report_in, run, taken_apart
from tests.launch.forked_run import run_forked

TRAIN = str(ROOT / "tests/launch/train.py")
THE_USERS = ("trainings", "ring.rank0", "report.json", "report.rank1.json", "report.csv", "oom.rank0.json", "oom.txt")


def put_files(folder: Path) -> dict[str, str]:
    """Files of the user with the names of ours."""
    for name in THE_USERS:
        (folder / name).write_text(f"the user's {name}")
    return contents(folder)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.name in THE_USERS}


def nowhere(folder: Path) -> dict[str, str]:
    """Neither the current folder nor the one for temporary files takes a folder of ours."""
    (folder / "forgather_mem").write_text("in the way")
    return {"TMPDIR": str(folder / "forgather_mem")}


def without_privileges() -> list[str]:
    """What to put before a command so that permissions hold for it, also where tests run as root."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root, and no setpriv")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]


def test_without_a_place_the_command_runs_and_nothing_is_written(tmp_path: Path) -> None:
    more = nowhere(tmp_path)
    (tmp_path / "three.py").write_text("print('three'); raise SystemExit(3)")
    before, names = put_files(tmp_path), files(tmp_path)
    result = taken_apart(run([*JUDGED, "three.py"], tmp_path, **more))
    assert (result.plain.code, result.plain.out) == (3, "three\n")
    (line,) = result.plain.err.splitlines()
    assert line.startswith("forgather-mem: no folder for our files (forgather_mem: Not a directory)")
    assert "host" in result.report, "what is seen from outside"
    assert (contents(tmp_path), files(tmp_path)) == (before, names)


@pytest.mark.fresh
def test_without_a_place_a_training_is_watched_all_the_same(tmp_path: Path) -> None:
    more, before = nowhere(tmp_path), put_files(tmp_path)
    result = taken_apart(run_forked([*RUN, TRAIN, "short", "."], tmp_path, **more))
    watching, _ = result.plain.out.splitlines()
    assert (result.plain.code, watching) == (0, "['MemoryCallback', 'LeakDetector', 'OOMReporter']")
    assert contents(tmp_path) == before
    assert report_in(tmp_path / "out")["steps"] == 6


@pytest.mark.fresh
def test_without_a_place_it_does_not_say_that_torch_was_not_imported(tmp_path: Path) -> None:
    more = nowhere(tmp_path)
    (tmp_path / "short.py").write_text("import torch; print(len(torch.ones(3)))")
    assert "host" in taken_apart(run_forked([*RUN, "short.py"], tmp_path, **more)).report
    (tmp_path / "none.py").write_text("print('none')")
    assert run([*RUN, "none.py"], tmp_path, **more).err.endswith("with no step of torch\n")


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    for name in ("elsewhere", "tmp", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "forgather_mem").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / "three.py").write_text("raise SystemExit(3)")
    result = taken_apart(run([*JUDGED, "three.py"], tmp_path / "run", TMPDIR=str(tmp_path / "tmp")))
    assert result.plain.code == 3
    assert not files(tmp_path / "elsewhere")
    (folder,) = (tmp_path / "tmp").iterdir()
    assert result.plain.err == f"forgather-mem: our files are in {folder}: can't write forgather_mem: it is a link\n"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert files(folder) == {"report.json", "ring.rank0"}
    taken_apart(run([*JUDGED, "three.py"], tmp_path / "run", FORGATHER_MEM_DIR="forgather_mem"))
    assert files(tmp_path / "elsewhere"), "who names the link means it"


def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "three.py").write_text("raise SystemExit(3)")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "forgather_mem").mkdir(mode=0o555)  # as another user's, who was here first
    tmp_path.chmod(0o555)
    try:
        result = taken_apart(run([*without_privileges(), *JUDGED, "three.py"], tmp_path, TMPDIR=str(tmp_path / "tmp")))
    finally:
        tmp_path.chmod(0o755)
    assert result.plain.code == 3
    assert "forgather_mem: Permission denied" in result.plain.err
    assert not (tmp_path / "forgather_mem").exists()
    (folder,) = (path for path in (tmp_path / "tmp").iterdir() if path.name != "forgather_mem")
    assert (folder / "report.json").exists()


def test_only_what_the_run_wrote_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORGATHER_MEM_DIR", "a/b")
    (tmp_path / "a").mkdir()
    first, second = SessionFolder("x"), SessionFolder("x")
    assert first.path != second.path
    for folder in (first, second):
        put_files(Path(str(folder.path)))
    first.remove()
    assert files(Path(str(first.path))) == {"report.csv", "oom.txt"}, "not of our names"
    Path(str(second.path)).rename("moved")
    Path(str(second.path)).mkdir()
    kept = put_files(Path(str(second.path)))
    second.remove()
    assert contents(Path(str(second.path))) == kept, "another folder of this name"
    shutil.rmtree("a/b")
    third = SessionFolder("x")
    third.remove()
    assert files(tmp_path / "a") == set()
    (tmp_path / "a" / "b").mkdir()
    fourth = SessionFolder("x" * 500)
    fourth.remove()
    assert files(tmp_path / "a") == {"b"}, "the user's, although it is empty"
