"""A process that has imported torch and transformers and done nothing else; tests marked `fresh` run in forks of it.

Started as a program by `conftest.py`, which asks in lines of JSON: the tests, the environment, the file for what they
print. The answer is a line with the exit code and the CPU seconds of the tests and their children.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

TIMEOUT_S = 300
OPTIONS = ["-q", "--no-header", "-p", "no:xdist"]
# A plugin of pytest that transformers has imported is not rewritten: it has no asserts that matter here
_IMPORTED = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
IN_CHILD = "FORGATHER_MEM_TEST_CHILD"


class FreshProcesses:
    """Begins with the first test that asks for one, and ends with `close`."""

    def __init__(self) -> None:
        self._origin: subprocess.Popen[str] | None = None
        self.cpu_s = 0.0  # of all tests so far

    def run(self, tests: Sequence[str], folder: Path, **environment: str) -> tuple[int, str]:
        """The exit code of pytest for these tests, all in one process, and what it printed."""
        if self._origin is None:
            # Not by tests/quick_start: what that leaves uncollected would be in the heap that tests look at
            path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            kept = os.pathsep.join(entry for entry in path if not entry.endswith("quick_start"))
            self._origin = subprocess.Popen(
                [sys.executable, "-P", __file__], cwd=folder, env={**os.environ, "PYTHONPATH": kept},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            self._origin.wait()  # what it leaves behind is nobody's child: tests count the children of their process
        origin = self._origin
        assert origin.stdin is not None
        assert origin.stdout is not None
        with tempfile.NamedTemporaryFile("r", errors="replace") as printed:
            variables = {**os.environ, IN_CHILD: "1", **environment}
            asked = {"tests": tests, "environment": variables, "printed": printed.name}
            origin.stdin.write(json.dumps(asked) + "\n")
            origin.stdin.flush()
            code, _, cpu_s = origin.stdout.readline().partition(" ")
            if not code:
                self.close()
            self.cpu_s += float(cpu_s or 0)
            return int(code or -1), printed.read()

    def close(self) -> None:
        if self._origin is not None:
            self._origin.communicate()  # ends it, and waits until it has let go of the pipes
            self._origin = None


def _serve() -> None:
    if os.fork():
        os._exit(0)
    import hypothesis  # noqa: F401
    import pytest
    import torch  # noqa: F401
    import transformers.trainer  # noqa: F401

    gc.collect()
    gc.freeze()  # for pytest's beginning in a child; the test itself has a whole heap

    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(asked["environment"], asked["printed"])
            end(int(pytest.main([*OPTIONS, *_IMPORTED, *asked["tests"]])))
        os.write(answers, "{} {}\n".format(*_wait(pid)).encode())


def _become(environment: dict[str, str], printed: str) -> None:
    """A process group of its own, nothing to read, and its output in the file."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(printed, os.O_WRONLY)
    for number, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(number, target)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115


def end(code: int) -> NoReturn:
    """As the interpreter ends, but for taking every module apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(pid: int) -> tuple[int, float]:
    """The exit code and the CPU seconds."""
    deadline_s = time.monotonic() + TIMEOUT_S
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
    _serve()
