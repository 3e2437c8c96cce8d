"""The ring's writer: what happens to the file ends no training."""

import contextlib
import os
import resource
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from forgather_mem.formats import ring_writer as layout
from forgather_mem.formats.ring import read_ring
from forgather_mem.formats.ring_writer import RingWriter
from forgather_mem.testing.small_run import in_child
from tests.sinks.faults import small_disk


def test_other_values_in_the_ring_take_another_magic() -> None:
    assert (layout.MAGIC, zlib.crc32(" ".join(layout.NAMES).encode())) == (b"FGMRING2", 1984783046), "another MAGIC"


def copied_over(path: Path) -> None:
    (path.parent / "other").write_bytes(b"another file's content")
    shutil.copyfile(path.parent / "other", path)


def cut_short(path: Path) -> None:
    os.truncate(path, layout.SAMPLES_AT + 10)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def replaced(path: Path) -> None:
    (path.parent / "other").write_bytes(b"")
    os.replace(path.parent / "other", path)


def deleted(path: Path) -> None:
    path.unlink()


def closed(path: Path) -> None:
    """Somebody closes every descriptor, as daemons do, and opens a file of their own."""
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    theirs = [os.open(path.parent / f"theirs{number}", os.O_RDWR | os.O_CREAT) for number in range(40)]
    assert len(theirs) == 40


FAULTS = [copied_over, cut_short, emptied, replaced, deleted, closed]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.__name__))
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_nothing_done_to_the_file_ends_the_process(tmp_path: Path, fault: Callable[[Path], None]) -> None:
    path, go = tmp_path / "ring", 2_000_000_000.0
    child = os.fork()  # a store that fails would take this process along
    if not child:
        ring = RingWriter(path, {"rank": 0})
        for step in range(1, 601):
            if step == 300:
                fault(path)
            ring.state(step - 1, "forward")
            ring.phase("backward")
            ring.sample(step, {"host/rss_bytes": float(step)}, time_s=go + step)  # a second each
            ring.note("noise", step, "text")
        ring.state(600, "other", "finished")
        stopped = ring.problem is not None
        ring.close()
        os._exit(0 if stopped is (fault is closed) else 1)
    assert os.waitpid(child, 0)[1] == 0
    if fault in (copied_over, cut_short, emptied):
        read = read_ring(path)
        assert (read.header, read.state.step, read.state.end) == ({"rank": 0}, 600, "finished")
        steps = [sample.step for sample in read.samples]
        assert steps == list(range(600 - len(steps) + 1, 601))
        assert len(steps) >= 295


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_full_disk_leaves_out_what_has_no_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:

        def child() -> str:
            ring = RingWriter(disk / "ring", {"rank": 0})
            ring.sample(1, {}, time_s=1.0)
            (disk / "ring").write_bytes(b"")  # its room is free again, and is taken by others
            with contextlib.suppress(OSError), open(disk / "ballast", "wb", buffering=0) as ballast:
                while True:
                    ballast.write(b"x" * 4096)
            ring.state(1, "forward")
            ring.sample(2, {}, time_s=2.0)
            told = ring.problem or ""
            (disk / "ballast").unlink()
            ring.sample(3, {}, time_s=4.0)
            ring.state(3, "forward")
            return told

        assert "No space left" in str(in_child(child))
        read = read_ring(disk / "ring")
        assert (read.state.step, read.state.phase, [sample.step for sample in read.samples]) == (3, "forward", [3])
        (disk / "ballast").write_bytes(b"x" * 80_000)
        with pytest.raises(OSError, match="No space left"):
            RingWriter(disk / "another", {})


def test_it_keeps_the_newest_and_takes_no_more_room(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path / "ring", {})
    size = (tmp_path / "ring").stat()
    assert size.st_blocks * 512 >= size.st_size, "its room is taken at the beginning"
    for step in range(1, 1401):
        ring.sample(step, {"host/rss_bytes": float(step)})
        ring.note("noise", step, "x" * step)
    read = read_ring(tmp_path / "ring")
    assert [sample.step for sample in read.samples] == list(range(1401 - layout.NUM_SAMPLES, 1401))
    assert [finding.step for finding in read.findings] == list(range(1401 - layout.NUM_NOTES, 1401))
    assert (tmp_path / "ring").stat().st_size == size.st_size


@pytest.mark.parametrize("text", ["", "x" * 5000, "\n" * 5000, "\U0001f9e0" * 5000])
def test_a_note_of_any_length_fits(tmp_path: Path, text: str) -> None:
    ring = RingWriter(tmp_path / "ring", {})
    ring.note("leak", 1, text)
    (finding,) = read_ring(tmp_path / "ring").findings
    assert text.startswith(finding.text)
    assert len(finding.text) >= min(len(text), 60)


def test_a_header_that_is_too_long_goes_without_its_long_parts(tmp_path: Path) -> None:
    RingWriter(tmp_path / "ring", {"rank": 3, "script": "train.py", "argv": ["x" * 100_000]})
    assert read_ring(tmp_path / "ring").header == {"rank": 3, "script": "train.py"}


def test_a_ring_in_the_way_is_replaced_and_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"mine")
    (tmp_path / "ring").symlink_to(tmp_path / "real")
    RingWriter(tmp_path / "ring", {})
    assert (tmp_path / "real").read_bytes() == b"mine"
    with pytest.raises(OSError, match="No such file"):
        RingWriter(tmp_path / "nowhere" / "ring", {})


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path / "ring", {})
    ring.state(1, "forward")

    def child() -> None:
        ring.state(2, "save")
        ring.sample(2, {})
        ring.note("noise", 2, "text")

    assert in_child(child) is None
    read = read_ring(tmp_path / "ring")
    assert (read.state.step, read.samples, read.findings) == (1, [], [])
