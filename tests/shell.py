"""`forgather-mem`, and `python SCRIPT`, for the shells of a test: each start of it is a fork of this process.

A shell needs a program of that name. The one it finds on its `PATH` hands its arguments, streams and folder on, in a
hundredth of the time in which torch and transformers are imported, and ends as the fork ends. With options `python` is
Python.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from tests.forked import become, run_script
from tests.fresh import end
from tests.launch import forked_run

_PROGRAM = """#!{python} -IS
import json, os, socket, sys
words = sys.argv[1:]
if not sys.argv[0].endswith("python"):
    words.insert(0, {command!r})
elif words[0].startswith("-"):
    os.execv(sys.executable, [sys.executable, *words])
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    told = json.dumps([words, os.getcwd(), dict(os.environ)]).encode() + b"\\n"
    asked.sendall(told[socket.send_fds(asked, [told], [0, 1, 2]):])
    sys.exit(int(asked.makefile().readline()))
"""


class ForkedCommands:
    """Inside `with` it is the folder that comes first in `PATH`; what is started by then has ended at the end."""

    def __enter__(self) -> Path:
        self._folder = Path(tempfile.mkdtemp())
        address = str(self._folder / "asked")
        for name in ("forgather-mem", "python"):
            program = self._folder / name
            program.write_text(_PROGRAM.format(python=sys.executable, address=address, command=forked_run.__file__))
            program.chmod(0o755)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._pid = os.fork()
        if not self._pid:
            _serve(self._listener)
        return self._folder

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder)


def _serve(listener: socket.socket) -> NoReturn:
    """Until the listener is shut down. Two commands of one pipe run at the same time."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            break
        if not os.fork():
            _answer(connection)
        connection.close()
    for _ in iter(_next_child, False):
        pass
    os._exit(0)


def _next_child() -> bool:
    try:
        os.wait()
    except ChildProcessError:
        return False
    return True


def _answer(connection: socket.socket) -> NoReturn:
    """The exit code, as a shell would have it."""
    told, streams, _, _ = socket.recv_fds(connection, 2**16, 3)
    while not told.endswith(b"\n"):
        told += connection.recv(2**16)
    words, folder, environment = json.loads(told)
    pid = os.fork()
    if not pid:
        try:
            become(Path(folder), environment, *streams)
            connection.close()
            end(run_script(Path(words[0]), words[1:]))
        finally:
            os._exit(70)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(b"%d\n" % (code if code >= 0 else 128 - code))
    os._exit(0)
