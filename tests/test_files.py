"""Files are replaced in one step, never through a planted link, and read only when they are files."""

import os
import resource
import stat
import subprocess
import threading
import tracemalloc
from pathlib import Path

import pytest

from forgather_mem.files import new_file, out_of_the_way, read_regular, replace_file, write_chosen_file
from tests.sinks.faults import small_disk as disk_of_size


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"old")
    path.chmod(0o640)
    inode = path.stat().st_ino
    replace_file(path, b"new", sync=True)
    assert content_of(tmp_path) == {"a.toml": b"new"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_ino != inode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"old")
    os.chown(path, 12345, 54321)
    replace_file(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_a_new_file_has_the_usual_mode(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    replace_file(tmp_path / "new", b"x")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode
    replace_file(tmp_path / ("n" * 255), b"as long as a name can be")


def test_a_link_is_replaced_and_what_it_leads_to_is_untouched(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "report.json"
    victim.write_bytes(b"precious")
    link.symlink_to(victim)
    replace_file(link, b"report")
    assert victim.read_bytes() == b"precious"
    assert not link.is_symlink()
    assert link.read_bytes() == b"report"


def test_a_new_file_takes_the_place_of_a_link_and_a_pipe(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "snapshot"
    victim.write_bytes(b"precious")
    for make in (lambda: path.symlink_to(victim), lambda: os.mkfifo(path), lambda: path.write_bytes(b"old")):
        make()
        with new_file(path) as file:
            file.write(b"new")
        assert (path.is_symlink(), path.read_bytes(), victim.read_bytes()) == (False, b"new", b"precious")
        path.unlink()


def test_a_planted_name_of_the_draft_can_not_be_guessed(tmp_path):
    names = set()
    for number in range(3):
        (tmp_path / f"{number}").mkdir()
        with pytest.raises(IsADirectoryError) as error:
            replace_file(tmp_path / f"{number}", b"x")
        names.add(error.value.filename)
        assert content_of(tmp_path) == {}
    assert len(names) == 3


def test_on_a_full_disk_the_old_file_stays_whole(small_disk):
    path = small_disk / "pyproject.toml"
    path.write_bytes(b"old" * 100)
    (small_disk / "ballast").write_bytes(b"x" * (os.statvfs(small_disk).f_bavail * 4096 - 4096))
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"n" * 20_000)
    assert path.read_bytes() == b"old" * 100
    assert sorted(os.listdir(small_disk)) == ["ballast", "pyproject.toml"]


@pytest.fixture
def small_disk(tmp_path):
    with disk_of_size(tmp_path / "disk", "64k") as disk:
        yield disk


def test_a_chosen_path_is_followed_and_may_be_a_pipe(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "target")
    write_chosen_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "target").read_bytes() == b"new"
    (tmp_path / "to new").symlink_to(tmp_path / "folder" / "made")
    write_chosen_file(tmp_path / "to new", b"made")
    assert (tmp_path / "folder" / "made").read_bytes() == b"made"

    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_chosen_file(tmp_path / "pipe", b"through")
    reader.join()
    assert read == [b"through"]
    write_chosen_file("/dev/null", b"gone")


def test_a_chosen_file_that_is_mounted_alone_is_written_over(small_disk, tmp_path):
    outside, mounted = small_disk / "file", tmp_path / "mounted"
    outside.write_bytes(b"old")
    mounted.touch()
    subprocess.run(["mount", "--bind", outside, mounted], check=True)
    try:
        write_chosen_file(mounted, b"new")
        assert outside.read_bytes() == b"new"
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 5) == read_regular(tmp_path / "link", 5, follow=True) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "file", 4)
    with pytest.raises(OSError, match="it is a link"):
        read_regular(tmp_path / "link", 5)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero", "."):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(tmp_path / name, 5, follow=True)


def test_a_small_file_takes_no_buffer_of_all_that_it_might_be(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    tracemalloc.start()
    try:
        assert read_regular(tmp_path / "file", 1 << 30) == b"12345"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


# ---- descriptors with high numbers ----


@pytest.fixture
def file(tmp_path: Path) -> int:
    path = tmp_path / "file"
    path.write_bytes(b"text")
    return os.open(path, os.O_RDONLY)


def test_the_file_is_the_same_under_a_high_number_and_its_low_one_is_free(file: int) -> None:
    inode = os.fstat(file).st_ino
    high = out_of_the_way(file)
    assert high >= 900
    assert (os.fstat(high).st_ino, os.read(high, 9)) == (inode, b"text")
    assert not os.get_inheritable(high), "a program that is started does not get it"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    os.close(high)


def test_where_numbers_end_below_it_stays_as_it_is(file: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 800), hard))
    try:
        assert out_of_the_way(file) == file
        assert os.read(file, 9) == b"text"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(file)
