"""The process of a stranger's template, as a fork of one that has imported what it needs.

Importing takes nine tenths of its time. What is started and waited for is still a Python with limits of its own, which
ends as the fork ends; its input and output are the fork's. Tests of how it is started ask for `real_renderer`.
"""

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from forgather_mem.config.rendering import stranger

ROOT = Path(__file__).parent.parent
REAL_START = stranger._START
_ADDRESS = "FORGATHER_MEM_TEST_RENDERER"  # the socket, to all processes of these tests
_ASKS = """
import _socket, os, sys
asked = _socket.socket(_socket.AF_UNIX)
asked.connect({address!r})
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1))
asked.sendmsg([os.fsencode(os.getcwd())], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
status = int(asked.recv(16))
if status < 0:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class WarmRenderer:
    """Begins with `start`, in the first process of these tests, and ends with `close`."""

    def __init__(self) -> None:
        self._origin: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        if _ADDRESS not in os.environ:
            self._folder = tempfile.TemporaryDirectory(prefix="forgather-mem-renderer-")
            os.environ[_ADDRESS] = f"{self._folder.name}/socket"
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(os.environ[_ADDRESS])
                listener.listen()
                self._origin = subprocess.Popen(
                    [sys.executable, "-P", __file__, str(listener.fileno())], pass_fds=[listener.fileno()],
                    cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE,
                )  # fmt: skip
            self._origin.wait()  # what it leaves behind is nobody's child
        stranger._START = _ASKS.format(address=os.environ[_ADDRESS])

    def close(self) -> None:
        stranger._START = REAL_START
        if self._origin is not None and self._folder is not None:
            self._origin.communicate()  # the end of its input ends it
            self._folder.cleanup()
            del os.environ[_ADDRESS]


def _serve(listener: socket.socket) -> None:
    """Fork for each connection, until the process that has started this one closes the pipe or ends."""
    if os.fork():
        os._exit(0)
    from forgather_mem.config.rendering import child

    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(connection, child.respond)
        connection.close()


def _answer(connection: socket.socket, respond: Callable[[], None]) -> None:
    """Tell how the fork has ended; who is ended meanwhile ends it."""
    folder, streams, _, _ = socket.recv_fds(connection, 4096, 2)
    pid = os.fork()
    if not pid:
        try:
            connection.close()
            for target, number in enumerate((*streams, os.open(os.devnull, os.O_WRONLY))):
                os.dup2(number, target)
                os.close(number)
            os.chdir(folder)
            respond()
        finally:
            os._exit(1)
    for number in streams:
        os.close(number)
    if connection in select.select([os.pidfd_open(pid), connection], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(b"%d" % code)
    os._exit(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
