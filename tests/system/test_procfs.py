"""What the kernel's files say of a process, compared with psutil and with other files of the kernel."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from forgather_mem.system.procfs import KernelFile, anonymous_bytes, child_pids, kib_fields, own_memory, read_once
from forgather_mem.units import MIB
from tests.memory import open_descriptors, status_bytes, touched


def test_a_file_that_stays_open_tells_what_is_now(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    file = KernelFile(path)
    assert file.read() == b"first"
    path.write_bytes(b"second")
    assert (file.read(), file.read(3)) == (b"second", b"sec")
    before = open_descriptors()
    file.close()
    assert len(before - open_descriptors()) == 1
    assert file.read() == b"second", "it opens again"
    file.close()


def test_a_file_is_written_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    file = KernelFile(path, write=True)
    file.write(b"ab")
    file.write(b"c")
    assert path.read_bytes() == b"cb345"
    file.close()


def test_a_file_that_is_not_there_fails_when_it_is_read() -> None:
    file = KernelFile("/proc/self/no_such_file")
    with pytest.raises(FileNotFoundError):
        file.read()


def test_in_a_forked_child_a_file_is_the_childs_and_none_is_left_open() -> None:
    before = open_descriptors()
    files = [KernelFile("/proc/self/stat") for _ in range(2)]
    assert {int(file.read().split()[0]) for file in files} == {os.getpid()}
    pid = os.fork()
    if not pid:
        files[0].close()  # before it has read anything here
        right = [int(file.read().split()[0]) == os.getpid() for file in files]
        for file in files:
            file.close()
        os._exit(not all(right) + 2 * (open_descriptors() != before))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert {int(file.read().split()[0]) for file in files} == {os.getpid()}
    for file in files:
        file.close()


def test_threads_that_read_one_file_at_any_time_read_it_and_leave_nothing_open() -> None:
    before = open_descriptors()

    def reads(number: int) -> None:
        file = KernelFile("/proc/self/statm")
        for _ in range(3000):
            file.read(128)
            file.close()

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(reads, range(4)))
    finally:
        sys.setswitchinterval(interval_s)
    assert open_descriptors() == before


def test_what_is_of_the_thread_that_reads_is_open_once_for_each_thread() -> None:
    def tid(file: KernelFile) -> int:
        return int(file.read().split()[0])

    mine, others = KernelFile("/proc/thread-self/stat"), KernelFile("/proc/thread-self/stat")
    with ThreadPoolExecutor(1) as pool:
        assert (tid(mine), pool.submit(tid, others).result()) == (
            threading.get_native_id(),
            pool.submit(threading.get_native_id).result(),
        )
    mine.close()
    others.close()


def test_what_is_read_once_is_not_left_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    before = open_descriptors()
    assert (read_once(tmp_path / "file"), read_once(str(tmp_path / "file"), 2)) == (b"12345", b"12")
    with pytest.raises(IsADirectoryError):
        read_once(tmp_path)
    assert open_descriptors() == before


def test_this_processs_memory_is_what_psutil_says() -> None:
    block = touched(64)
    ours, theirs = own_memory(), psutil.Process().memory_full_info()
    assert ours.resident_bytes == pytest.approx(theirs.rss, abs=2 * MIB)
    assert ours.address_bytes == pytest.approx(theirs.vms, abs=2 * MIB)
    assert ours.anonymous_bytes == pytest.approx(status_bytes("RssAnon"), abs=2 * MIB)
    block.close()
    assert ours.anonymous_bytes - own_memory().anonymous_bytes == pytest.approx(64 * MIB, abs=2 * MIB)


def test_a_child_is_found_with_its_anonymous_memory_until_it_has_ended() -> None:
    here = Path("/proc/self")
    before = child_pids(here)
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    assert [pid for pid in child_pids(here) if pid not in before] == [str(child.pid)]
    folder = Path(f"/proc/{child.pid}")
    assert anonymous_bytes(folder) == pytest.approx(status_bytes("RssAnon", child.pid), abs=2 * MIB)
    child.communicate()
    assert str(child.pid) not in child_pids(here)
    assert child_pids(folder) == []
    with pytest.raises(OSError, match="No such file"):
        anonymous_bytes(folder)


def test_lines_with_kb_are_sizes_and_others_are_none() -> None:
    status = Path("/proc/self/status").read_bytes()
    fields = kib_fields(status)
    assert fields[b"VmData"] == status_bytes("VmData")
    assert b"Threads" not in fields
    assert fields[b"RssShmem"] == status_bytes("RssShmem")
