"""How does a small file of the kernel stay cheap to read for a whole run, also in a forked child?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import psutil

from forgather_mem.forks import FORKS

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class KernelFile:
    """One file under /proc or /sys, opened once and read (or written) again and again.

    A kept descriptor of `/proc/self/...` still means the parent after a fork, so it is opened anew in the
    child. Reading `statm` this way takes about 1.4 us; opening it each time takes 8 us.

    Args:
        path: The file. `self` in it means this process.
        write: Open for writing.

    Raises:
        OSError: from `read` and `write`, where the kernel has no such file or forbids it.
    """

    __slots__ = ("_fd", "_forks", "_write", "path")

    def __init__(self, path: str | Path, *, write: bool = False) -> None:
        self.path = str(path)
        self._write = write
        self._fd = -1
        self._forks = -1

    def read(self, max_bytes: int = 4096) -> bytes:
        """The file's text now."""
        if self._forks != FORKS.number:
            self._open()
        return os.pread(self._fd, max_bytes, 0)

    def write(self, data: bytes) -> None:
        """Write to the file, from its start."""
        if self._forks != FORKS.number:
            self._open()
        os.pwrite(self._fd, data, 0)

    def close(self) -> None:
        """Give the descriptor back; the next `read` opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._forks = -1

    def _open(self) -> None:
        self.close()  # after a fork this closes the child's copy of the parent's descriptor
        self._fd = os.open(self.path, (os.O_WRONLY if self._write else os.O_RDONLY) | os.O_CLOEXEC)
        self._forks = FORKS.number


def resident_bytes(statm: KernelFile) -> int:
    """Resident memory of this process, from its kept `/proc/self/statm`."""
    return int(statm.read(128).split()[1]) * PAGE_BYTES


def anonymous_bytes(process: Path) -> int:
    """Resident memory without mapped files of the process with this folder under /proc.

    Raises:
        OSError: when the process is gone.
    """
    _, resident, shared, *_ = (process / "statm").read_bytes().split()
    return (int(resident) - int(shared)) * PAGE_BYTES


class OwnMemory(NamedTuple):
    """This process's memory at one moment; `address_bytes` is what it could use without asking for more addresses."""

    resident_bytes: int
    anonymous_bytes: int
    address_bytes: int


def own_memory() -> OwnMemory:
    """Resident memory of this process, and of that what no file backs; opened for one reading (10 us).

    Where there is no /proc the anonymous part is the resident size, too.
    """
    try:
        addresses, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    except OSError:
        memory = psutil.Process().memory_info()
        return OwnMemory(int(memory.rss), int(memory.rss), int(memory.vms))
    pages = (int(resident), int(resident) - int(shared), int(addresses))
    return OwnMemory(*(number * PAGE_BYTES for number in pages))


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
