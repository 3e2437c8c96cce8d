"""The process of a stranger's template, as a fork of one that has imported what it needs.

Importing takes nine tenths of its time. What is started and waited for is still a Python with limits of its own, which
ends as the fork ends; its input and output are the fork's. Tests of how it is started ask for `real_renderer`.
"""

import importlib
import os
import select
import signal
import socket

from forgather_mem.config.rendering import stranger
from tests.origin import Origin, serve

_CHILD = "forgather_mem.config.rendering.child"
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
    """Begins with `start`, and ends with `close`."""

    def __init__(self) -> None:
        self._origin = Origin(__file__, _ADDRESS)

    def start(self) -> None:
        self._origin.start()
        share()

    def close(self) -> None:
        stranger._START = REAL_START
        self._origin.close()


def share() -> None:
    """For a program that tests start: it has this process, too."""
    stranger._START = _ASKS.format(address=os.environ[_ADDRESS])


def _answer(connection: socket.socket) -> None:
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
            importlib.import_module(_CHILD).respond()
        finally:
            os._exit(1)
    for number in streams:
        os.close(number)
    if connection in select.select([os.pidfd_open(pid), connection], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(b"%d" % code)


if __name__ == "__main__":
    serve(lambda: importlib.import_module(_CHILD), _answer)
