"""Append-only files, on real disks that fail."""

import logging
import os
import shutil
import time
from pathlib import Path

import pytest

from forgather_mem.formats.append import AppendFile, WriteLimits
from tests.programs import printed_by
from tests.sinks.faults import small_disk


def numbered(folder: Path) -> AppendFile:
    """A file that is always new: 0, 1, 2, ..., each with a preamble."""

    def open_next() -> tuple[Path, bytes]:
        number = 0
        while (folder / str(number)).exists():
            number += 1
        return folder / str(number), b"begin\n"

    return AppendFile(open_next, always_new=True)


def write(file: AppendFile, record: bytes) -> bool:
    return file.ready() and file.append(record)


def test_a_file_begins_with_its_preamble_and_the_folder_is_made(tmp_path: Path) -> None:
    file = numbered(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    assert write(file, b"one\n")
    file.close()
    assert (tmp_path / "a" / "b" / "0").read_bytes() == b"begin\none\n"
    assert file.problem() is None
    assert file.losses.written == 1


def test_a_file_that_exists_is_continued_only_when_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    file = AppendFile(lambda: (path, b"begin\n"), always_new=False)
    assert write(file, b"one\n")
    file.close()
    assert path.read_bytes() == b"old\nbegin\none\n"
    refusing = AppendFile(lambda: (path, b"begin\n"), always_new=True)
    assert not write(refusing, b"two\n")
    assert path.read_bytes() == b"old\nbegin\none\n"
    assert "File exists" in (refusing.problem() or "")


def test_a_device_that_is_always_full_is_tried_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    tries = []

    def open_next() -> tuple[Path, bytes]:
        tries.append(time.monotonic())
        return Path("/dev/full"), b"begin\n"

    file = AppendFile(open_next, always_new=False)
    until, asked = time.monotonic() + 1.0, 0
    with caplog.at_level(logging.WARNING):
        while time.monotonic() < until:
            assert not write(file, b"x" * 100)
            asked += 1
            time.sleep(0.001)
    assert 3 <= len(tries) <= 5  # after 0, 0.1, 0.3, 0.7 s
    assert (file.losses.dropped, file.losses.written) == (asked, 0)
    assert file.problem() == f"{asked:,} of {asked:,} records dropped (No space left on device; /dev/full)"
    assert len(caplog.records) == 1


def test_what_a_short_write_left_is_cut_off_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        file = numbered(disk)
        (disk / "ballast").write_bytes(b"x" * 4096)
        record = b"r" * 9_999 + b"\n"  # no divisor of a page: the last write is a short one
        while write(file, record):
            pass
        assert (disk / "0").stat().st_size == len(b"begin\n") + file.losses.written * len(record)
        # What is left fits a smaller record, in the same file, with nothing torn before it.
        (disk / "ballast").unlink()
        time.sleep(0.15)
        assert write(file, b"last\n")
        file.close()
        assert (disk / "0").read_bytes() == b"begin\n" + record * (file.losses.written - 1) + b"last\n"


def test_no_empty_files_pile_up_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16k") as disk:
        (disk / "ballast").write_bytes(b"x" * 4 * 4096)
        file = numbered(disk)
        for _ in range(3):
            assert not write(file, b"one\n")
            time.sleep(0.25)
        assert [path.name for path in disk.iterdir()] == ["ballast"]


def test_an_error_other_than_a_full_disk_starts_a_new_file(tmp_path: Path) -> None:
    # A limit on the size of files: the write that crosses it is short, the next one fails with EFBIG.
    code = (
        "import resource, sys, time\n"
        "from pathlib import Path\n"
        "from tests.formats.test_append import numbered, write\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "file = numbered(Path(sys.argv[1]))\n"
        "good = sum(write(file, b'r' * 299 + b'\\n') for _ in range(4))\n"
        "time.sleep(0.15)\n"
        "good += sum(write(file, b'r' * 299 + b'\\n') for _ in range(2))\n"
        "print(good, file.problem())\n"
    )
    assert printed_by(code, tmp_path).startswith("5 1 of 6 records dropped (File too large")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert files["0"].startswith(b"begin\n" + b"r" * 299 + b"\n")
    assert files["1"] == b"begin\n" + (b"r" * 299 + b"\n") * 2


def test_a_pipe_that_nobody_reads_does_not_hold_the_training_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = AppendFile(lambda: (tmp_path / "pipe", b"begin\n"), always_new=False)
    assert not write(file, b"one\n")
    assert "No such device or address" in (file.problem() or "")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    time.sleep(0.15)
    assert write(file, b"two\n")
    assert os.read(reading, 100) == b"begin\ntwo\n"
    os.close(reading)
    assert not write(file, b"three\n")
    assert not write(file, b"four\n")
    assert (file.losses.written, file.losses.dropped) == (1, 3)


def test_a_file_deleted_just_before_the_end_is_counted_too(tmp_path: Path) -> None:
    file = numbered(tmp_path / "run")
    assert write(file, b"one\n")
    shutil.rmtree(tmp_path / "run")
    file.close()
    assert file.problem() is not None
    assert file.losses.dropped == 1


def test_one_stall_is_no_slow_disk_but_many_are(tmp_path: Path) -> None:
    file = numbered(tmp_path)
    assert write(file, b"one\n")
    file._slow(time.monotonic(), 0.1)
    assert file.rests == 0
    for _ in range(3):
        file._slow(time.monotonic(), 0.1)
    assert file.rests == 2
    # From now on records wait, up to the limit; what is beyond it is dropped and counted.
    record = b"x" * (WriteLimits.queued_bytes // 4)
    assert [write(file, record) for _ in range(6)] == [True] * 4 + [False] * 2
    assert (tmp_path / "0").stat().st_size == len(b"begin\none\n")
    file.close()
    assert (tmp_path / "0").stat().st_size == len(b"begin\none\n") + 4 * len(record)
    assert (file.losses.written, file.losses.dropped) == (5, 2)
