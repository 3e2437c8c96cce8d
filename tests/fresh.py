"""Tests marked `fresh` run in forks of a process that has imported, and knows the operations that most plans look up.

Each connection gets a fork of it, which collects one file of tests and forks again for each run of some of them:
pytest's own start takes longer than most of these tests. It is asked in lines of JSON: the tests, the environment, the
file for what they print. The answer is a line with the exit code and the CPU seconds of the tests and their children.
"""

import atexit
import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from tests.origin import Origin, serve

TIMEOUT_S = 300
OPTIONS = ["-q", "--no-header", "-p", "no:xdist"]
# A plugin of pytest that has been imported is not rewritten: it has no asserts that matter here
_IMPORTED = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
_PLUGINS = ("_hypothesis_pytestplugin", "forgather_mem.testing.pytest_plugin")
IN_CHILD = "FORGATHER_MEM_TEST_CHILD"
_ADDRESS = "FORGATHER_MEM_TEST_ORIGIN"  # the origin's socket, to xdist's workers
# What most of these tests import themselves: in each fork it would take longer than a tiny training
IMPORTED = (
    "hypothesis", "torch", "torch._dynamo", "transformers.trainer", "transformers.models.llama.modeling_llama",
    *("forgather_mem.callbacks." + name for name in ("leak_detector", "memory_loggers", "oom_reporter")),
    *("forgather_mem.launch." + name for name in ("at_exit", "loops", "outcome", "parent", "planning", "watching")),
    *("forgather_mem.planning." + name for name in ("answers", "loop.script", "refusal", "trainer")),
    "forgather_mem.diagnose.alerts.planned",
    "forgather_mem.callbacks.run_begin", "forgather_mem.engine.run", "forgather_mem.loops.observed",
    "forgather_mem.config.rendering.stranger", "pdb", "readline", "tomllib", *_PLUGINS,  # and what pytest does
)  # fmt: skip


class FreshProcesses:
    """Begins with the first test that asks for one, or with `start`, and ends with `close`."""

    def __init__(self) -> None:
        self._origin = Origin(__file__, _ADDRESS)
        self._asked: IO[str] | None = None
        self._file = ""  # whose tests that connection is for
        self.cpu_s = 0.0  # of all tests so far

    def start(self) -> None:
        """Start the origin, which those that this process starts find, too."""
        self._origin.start()

    def run(self, tests: Sequence[str], **environment: str) -> tuple[int, str]:
        """The exit code of pytest for these tests of one file, all in one process, and what it printed."""
        file = tests[0].partition("::")[0]
        if self._asked is None or file != self._file:
            self._disconnect()
            self._asked, self._file = self._connected(), file
        asked = self._asked
        with tempfile.NamedTemporaryFile("r", errors="replace") as printed:
            variables = {**os.environ, IN_CHILD: "1", **environment}
            asked.write(json.dumps({"tests": tests, "environment": variables, "printed": printed.name}) + "\n")
            asked.flush()
            code, _, cpu_s = asked.readline().partition(" ")
            if not code:
                self._disconnect()
            self.cpu_s += float(cpu_s or 0)
            return int(code or -1), printed.read()

    def _connected(self) -> IO[str]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._origin.start())
            return connection.makefile("rw")

    def _disconnect(self) -> None:
        if self._asked is not None:
            self._asked.close()
        self._asked = None

    def close(self) -> None:
        self._disconnect()
        self._origin.close()


def has_autograd_threads() -> bool:
    """Whether torch has computed gradients with threads, which it can't do again in a forked child.

    It has them where there is a device, and in Debian's packages.
    """
    for name in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # a thread that has ended
            if name.read_text().startswith("pt_autograd"):
                return True
    return False


def _prepare() -> None:
    from _pytest.config import default_plugins

    for name in (*(f"_pytest.{plugin}" for plugin in default_plugins), *IMPORTED):
        importlib.import_module(name)
    with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
        importlib.import_module("lightning.pytorch")  # an extra, which takes longer than its trainings
    if not _gradients_take_threads():
        importlib.import_module("tests.planning.known_operations").learn()


def _gradients_take_threads() -> bool:
    """Whether a process that has computed gradients has threads for that, tried in one that ends."""
    pid = os.fork()
    if not pid:
        sys.modules["torch"].ones(1, requires_grad=True).backward()
        os._exit(len(os.listdir("/proc/self/task")) > 1)  # they give themselves their names: perhaps later
    return os.waitpid(pid, 0)[1] != 0


def _answer(connection: socket.socket) -> None:
    import pytest

    with connection, connection.makefile("rw") as lines, tempfile.TemporaryFile() as printed:
        first = json.loads(lines.readline() or "null")
        if first is None:
            return
        _become(first["environment"], printed.fileno())
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # to look for them takes longer than to collect a file
        forks = _Forks(connection, lines, printed, first)
        options = [*OPTIONS, *_IMPORTED, *(f"-p{plugin}" for plugin in _PLUGINS)]
        code = int(pytest.main([*options, first["tests"][0].partition("::")[0]], plugins=[forks]))
        if forks.is_one:
            end(code)
        forks.tell(code, 0.0)  # nothing was collected


class _Forks:
    """A plugin of pytest: what was collected is run in forks, some of it in each."""

    is_one = False

    def __init__(self, connection: socket.socket, lines: IO[str], printed: IO[bytes], asked: Any) -> None:
        self._connection, self._lines, self._printed, self._asked = connection, lines, printed, asked

    def pytest_runtestloop(self, session: Any) -> bool | None:
        """Until nothing more is asked for; in a fork pytest goes on with what was asked of it."""
        while self._asked is not None:
            wanted = set(self._asked["tests"])
            pid = os.fork()
            if not pid:
                self.is_one = True
                self._lines.close()
                self._connection.close()
                _become(self._asked["environment"], self._printed.fileno())
                session.items[:] = [item for item in session.items if item.nodeid in wanted]
                return None
            self.tell(*_wait(pid, TIMEOUT_S + 30 * len(wanted)))
            self._asked = json.loads(self._lines.readline() or "null")
        os._exit(0)

    def tell(self, code: int, cpu_s: float) -> None:
        self._printed.seek(0)
        Path(self._asked["printed"]).write_bytes(self._printed.read())
        self._printed.seek(0)  # where the next fork begins to write: they share the place
        self._printed.truncate()
        self._lines.write(f"{code} {cpu_s}\n")
        self._lines.flush()


def _become(environment: dict[str, str], printed: int) -> None:
    """A process group of its own, nothing to read, and its output in the file."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(number, target)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115


def end(code: int) -> NoReturn:
    """As the interpreter ends, but for taking every module apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(pid: int, timeout_s: float) -> tuple[int, float]:
    """The exit code and the CPU seconds."""
    deadline_s = time.monotonic() + timeout_s
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends a test too, although it has a group of its own
        while time.monotonic() < deadline_s:
            ended, status, used = os.wait4(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
            time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    _, _, used = os.wait4(pid, 0)
    return -signal.SIGALRM, used.ru_utime + used.ru_stime


if __name__ == "__main__":
    serve(_prepare, _answer)
