"""A process that has imported, and done nothing else; who asks it at its socket gets a fork of it.

Started as a program by `conftest.py`, once for all workers of xdist and the processes that they start.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1; older ones refuse
_HUGE = 2**21


class Origin:
    """Begins with `start`, unless an earlier process has started it, and ends with `close` or with this process."""

    def __init__(self, program: str, address: str) -> None:
        """The file that is run, and the variable that holds the socket's name."""
        self._program, self._variable = program, address
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """The socket's name."""
        if self._variable not in os.environ:
            # Not by tests/quick_start: what that leaves uncollected would be in the heap that tests look at
            path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            kept = os.pathsep.join([*(entry for entry in path if not entry.endswith("quick_start")), str(ROOT)])
            os.environ[self._variable] = f"{tempfile.mkdtemp(prefix='forgather-mem-origin-')}/socket"
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(os.environ[self._variable])
                listener.listen()
                self._process = subprocess.Popen(
                    [sys.executable, "-P", self._program, str(listener.fileno())], pass_fds=[listener.fileno()],
                    cwd=ROOT, env={**os.environ, "PYTHONPATH": kept}, stdin=subprocess.PIPE,
                )  # fmt: skip
            self._process.wait()  # what it leaves behind is nobody's child: tests count the children of their process
        return os.environ[self._variable]

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()  # the end of its input ends it
            del os.environ[self._variable]
        self._process = None


def serve(prepare: Callable[[], object], answer: Callable[[socket.socket], object]) -> None:
    """Fork for each connection, until the process that has started this one closes the pipe or ends: also by a kill.

    The socket's folder goes then.
    """
    listener = socket.socket(fileno=int(sys.argv[1]))
    if os.fork():
        os._exit(0)
    prepare()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # each fork would take apart 180 libraries of torch
    gc.collect()
    gc.freeze()
    _use_huge_pages()
    while sys.stdin not in (ready := select.select([sys.stdin, listener], [], [])[0]):
        connection, _ = ready[0].accept()
        if not os.fork():
            listener.close()
            answer(connection)
            os._exit(0)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)  # an earlier one
    shutil.rmtree(os.path.dirname(listener.getsockname()))


def _use_huge_pages() -> None:
    """Where all pages are there: a fork, and its end, are half as dear. What is resident stays as it is."""
    size = _HUGE // mmap.PAGESIZE
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", 0) as pages:
        for addresses, access, _, _, inode, *_ in map(str.split, maps.readlines()):
            first, end = (int(address, 16) for address in addresses.split("-"))
            if access.startswith("rw") and inode == "0":
                for start in range(-(-first // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                    pages.seek(start // mmap.PAGESIZE * 8)
                    if all(one >> 63 for one in struct.unpack(f"{size}Q", pages.read(8 * size))):
                        advise(start, _HUGE, _COLLAPSE)
