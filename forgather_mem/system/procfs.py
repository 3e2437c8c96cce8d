"""Kernel files (/proc, /sys): open for cheap reading during a run, also in a forked child, or read once."""

from __future__ import annotations

import functools
import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from forgather_mem.errors import missing
from forgather_mem.files import close_own, identity, out_of_the_way
from forgather_mem.system.forks import FORKS

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class KernelFile:
    """A file under /proc or /sys that is read (or written) at each step, and so stays open until it is closed.

    In one process each path is open once, however many objects read it. After a fork, a kept descriptor of
    `/proc/self/...` still refers to the parent, so the child reopens it. Reading `statm` this way takes about 1.4 us;
    with opening it, 8 us: what is read less than once a second is for `read_once`.

    Args:
        path: The file. `self` in it refers to this process.
        write: Open for writing.

    Raises:
        OSError: from `read` and `write`, if the kernel has no such file or forbids it.
    """

    def __init__(self, path: str | Path, *, write: bool = False) -> None:
        self.path = str(path)
        self._flags = (os.O_WRONLY if write else os.O_RDONLY) | os.O_CLOEXEC
        self._opened: _Opened | None = None

    def read(self, max_bytes: int = 4096) -> bytes:
        """The file's current text."""
        return os.pread(self._file(), max_bytes, 0)

    def write(self, data: bytes) -> None:
        """Write to the file, from its start."""
        os.pwrite(self._file(), data, 0)

    def close(self) -> None:
        """Let the descriptor go, which the last to do so closes; the next `read` opens the file again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.leave(self)

    def _file(self) -> int:
        opened = self._opened
        if opened is None or opened.forks != FORKS.number or identity(opened.file) != opened.identity:
            opened = self._open()
        return opened.file

    def _open(self) -> _Opened:
        # What "thread-self" names is settled when it is opened
        thread = threading.get_ident() if "thread-self" in self.path else 0
        opened = _of_process(self.path, self._flags, thread)
        opened.join(self)
        self._opened = opened
        return opened


class _Opened:
    """The descriptor of a file in this process, and who reads it; -1 while nobody does.

    Attributes:
        identity: Of the file: the script may close the descriptor, and have one of its own with this number.
    """

    def __init__(self, path: str, flags: int, thread: int) -> None:
        self._path, self._flags = path, flags
        self._readers: set[KernelFile] = set()
        self._lock = threading.RLock()
        self.file, self.forks = -1, FORKS.number
        self.identity: tuple[int, int] | None = None

    def join(self, reader: KernelFile) -> None:
        with self._held():
            if self.forks != FORKS.number or identity(self.file) != self.identity:
                self._close()  # the child's copy of the parent's descriptor, or one that is ours no more
            if self.file < 0:
                self.file = out_of_the_way(os.open(self._path, self._flags))
                self.identity, self.forks = identity(self.file), FORKS.number
            self._readers.add(reader)

    def leave(self, reader: KernelFile) -> None:
        with self._held():
            self._readers.discard(reader)
            if not self._readers:
                self._close()

    def _held(self) -> AbstractContextManager[bool]:
        if self.forks != FORKS.number:
            self._lock = threading.RLock()  # a thread of the parent may hold the other for ever
        return self._lock

    def _close(self) -> None:
        file, self.file = self.file, -1
        close_own(file, self.identity)


_of_process = functools.cache(_Opened)  # one of each, because there is one process


def read_once(path: str | Path, max_bytes: int = 4096) -> bytes:
    """The current text of a file under /proc or /sys, opened for this reading; takes some 7 us longer."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, max_bytes)
    finally:
        os.close(file)


def resident_bytes(statm: KernelFile) -> int:
    """Resident memory of this process, from its open `/proc/self/statm`."""
    return int(statm.read(128).split()[1]) * PAGE_BYTES


def anonymous_bytes(process: Path) -> int:
    """Anonymous resident memory of the process with this folder under /proc.

    Raises:
        OSError: if the process has ended.
    """
    _, resident, shared, *_ = read_once(process / "statm").split()
    return (int(resident) - int(shared)) * PAGE_BYTES


PLANNER = "forgather_plan"
"""How a process calls itself that plans beside a training: it is ours, not a child of the script's."""


def is_named(process: Path, name: str) -> bool:
    """Whether the process with this folder under /proc calls itself so (8 us)."""
    with missing(OSError):  # it has ended
        return (process / "comm").read_text(errors="replace").strip() == name
    return False


def child_pids(process: Path = Path("/proc/self")) -> list[str]:
    """The children of the process with this folder under /proc; none if it has ended or the kernel doesn't tell."""
    pids: list[str] = []
    with missing(OSError):
        for thread in (process / "task").iterdir():
            with missing(OSError):  # a thread that has ended, or a kernel without this file
                pids += (thread / "children").read_text().split()
    return pids


def shmem_bytes(status: bytes) -> int:
    """Shared memory that a process maps and has touched, from the text of its `status`; 0 if the kernel doesn't tell.

    >>> shmem_bytes(b"RssFile:\\t  120 kB\\nRssShmem:\\t    8 kB\\n")
    8192
    """
    _, found, rest = status.partition(b"RssShmem:")
    return int(rest.split(None, 1)[0]) * 1024 if found else 0


class OwnMemory(NamedTuple):
    """Memory of this process at one moment; `address_bytes` is the size of its address space."""

    resident_bytes: int
    anonymous_bytes: int
    address_bytes: int


def own_memory() -> OwnMemory:
    """Resident memory of this process and its anonymous part; opens the file for one reading (10 us)."""
    addresses, resident, shared, *_ = map(int, read_once("/proc/self/statm").split())
    return OwnMemory(resident * PAGE_BYTES, (resident - shared) * PAGE_BYTES, addresses * PAGE_BYTES)


def kib_fields(text: bytes) -> dict[bytes, int]:
    """The `Name:   123 kB` lines of `status`, `meminfo` and `smaps_rollup`, as bytes.

    >>> kib_fields(b"VmHWM:\\t    1768 kB\\nThreads:\\t1\\n")
    {b'VmHWM': 1810432}
    """
    fields = {}
    for line in text.splitlines():
        if line.endswith(b" kB"):
            name, _, amount = line.partition(b":")
            fields[name] = int(amount[:-3]) * 1024
    return fields
