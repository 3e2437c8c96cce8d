"""Kernel files (/proc, /sys): open for cheap reading during a run, also in a forked child, or read once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from forgather_mem.errors import missing
from forgather_mem.files import close_own, identity, out_of_the_way
from forgather_mem.system.forks import FORKS

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class KernelFile:
    """A file under /proc or /sys that is read (or written) at each step, and so stays open until it is closed.

    After a fork, a kept descriptor of `/proc/self/...` still refers to the parent, so the child reopens it. Reading
    `statm` this way takes about 1.4 us; with opening it, 8 us: what is read less than once a second is for `read_once`.
    One thread at a time.

    Args:
        path: The file. `self` in it refers to this process; what `thread-self` names is settled when it is opened.
        write: Open for writing.

    Raises:
        OSError: from `read` and `write`, if the kernel has no such file or forbids it.
    """

    def __init__(self, path: str | Path, *, write: bool = False) -> None:
        self.path = str(path)
        self._flags = (os.O_WRONLY if write else os.O_RDONLY) | os.O_CLOEXEC
        self._file, self._forks = -1, FORKS.number
        # The script may close the descriptor, and have a file of its own with this number
        self._identity: tuple[int, int] | None = None

    def read(self, max_bytes: int = 4096) -> bytes:
        """The file's current text."""
        return os.pread(self._opened(), max_bytes, 0)

    def write(self, data: bytes) -> None:
        """Write to the file, from its start."""
        os.pwrite(self._opened(), data, 0)

    def close(self) -> None:
        """Let the descriptor go; the next `read` opens the file again."""
        file, self._file = self._file, -1
        close_own(file, self._identity)

    def _opened(self) -> int:
        if self._file < 0 or self._forks != FORKS.number or identity(self._file) != self._identity:
            self.close()  # the child's copy of the parent's descriptor, or one that is ours no more
            self._file, self._forks = out_of_the_way(os.open(self.path, self._flags)), FORKS.number
            self._identity = identity(self._file)
        return self._file


def read_once(path: str | Path, max_bytes: int = 4096) -> bytes:
    """The current text of a file under /proc or /sys, opened for this reading; takes some 7 us longer."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, max_bytes)
    finally:
        os.close(file)


def anonymous_bytes(process: Path = Path("/proc/self")) -> int:
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
    """The children of the process with this folder under /proc, without what plans beside it.

    None if it has ended or the kernel doesn't tell.
    """
    pids: list[str] = []
    with missing(OSError):
        for thread in (process / "task").iterdir():
            with missing(OSError, ValueError):  # a thread that has ended, or a kernel without this file
                pids += (thread / "children").read_text().split()
    return [pid for pid in pids if not is_named(process.parent / pid, PLANNER)]


class OwnMemory(NamedTuple):
    """Memory of this process at one moment; of addresses the size of its space, and of its data."""

    resident_bytes: int
    anonymous_bytes: int
    address_bytes: int
    data_bytes: int


def own_memory() -> OwnMemory:
    """Resident memory of this process and its anonymous part; opens the file for one reading (10 us)."""
    addresses, resident, shared, _, _, data, *_ = map(int, read_once("/proc/self/statm").split())
    return OwnMemory(*(pages * PAGE_BYTES for pages in (resident, resident - shared, addresses, data)))


def kib_fields(text: bytes) -> dict[bytes, int]:
    """The `Name:   123 kB` lines of `status`, `meminfo` and `smaps_rollup`, as bytes.

    >>> kib_fields(b"VmHWM:\\t    1768 kB\\nThreads:\\t1\\n")
    {b'VmHWM': 1810432}
    """
    fields = {}
    for line in text.splitlines():
        name, _, amount = line.removesuffix(b" kB").partition(b":")
        if line.endswith(b" kB") and amount.strip().isdigit():
            fields[name] = int(amount) * 1024
    return fields
