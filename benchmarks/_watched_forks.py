"""Scripts as forks of this process, each watched by what `forgather-mem run` puts into a command of its own.

To import torch and transformers takes longer than most of the scripts. Here they are imported once, behind the same
hook, and each fork gets a session folder of its own. There is no waiting parent: of a training that is killed
nothing is reported.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forgather_mem.launch import import_hook
from forgather_mem.launch.at_exit import watch_process
from forgather_mem.launch.session_folder import SessionFolder
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_schema import read_report

_LONGEST_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of one script.

    Attributes:
        code: Its exit code; negative for a signal.
        output: What it has written to both streams.
        foretold: What its reports say of failures to come.
        num_reports: Of trainings; 0 means that nothing was watched.
        reports: Of these trainings, in their order.
    """

    code: int
    output: str
    foretold: tuple[str, ...]
    num_reports: int
    reports: tuple[RunReport, ...]


def prepare(modules: Sequence[str]) -> None:
    """Import these, watched as in a command of `forgather-mem run`. Call it before anything imports torch."""
    assert "torch" not in sys.modules, "the hook waits for its import"
    os.environ[run_session.FOLDER] = ""  # as in a run that has found no place: each fork has its own
    import_hook.install()
    for name in modules:
        importlib.import_module(name)


class Fork:
    """`python SCRIPT ARGUMENTS...` in an empty folder."""

    def __init__(self, script: Path, arguments: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # read in `wait`
        os.environ["FORGATHER_MEM_DIR"] = f"{self._folder.name}/session"
        self._session = SessionFolder(script.stem).path or ""
        sys.stdout.flush()
        self._pid = os.fork()
        if not self._pid:
            code = 70
            try:
                self._become()
                code = _run(script, arguments)
                threading._shutdown()  # type: ignore[attr-defined]
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)

    def wait(self) -> Ran:
        until_s = time.monotonic() + _LONGEST_S
        while not (ended := os.waitpid(self._pid, os.WNOHANG))[0]:
            if time.monotonic() > until_s:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.05)
        reports = [read_report(f"{place}/report.json")[0] for place in run_session.registered(self._session)]
        there = [report for report in reports if report is not None]
        with self._printed, self._folder:
            self._printed.seek(0)
            return Ran(
                code=os.waitstatus_to_exitcode(ended[1]),
                output=self._printed.read().decode(errors="replace"),
                foretold=tuple(" ".join(said.split()) for report in there for said in report.foretold),
                num_reports=len(there),
                reports=tuple(there),
            )

    def _become(self) -> None:
        """What a program finds that `forgather-mem run` has started."""
        for stream in (1, 2):
            os.dup2(self._printed.fileno(), stream)
        sys.stdout, sys.stderr = (open(stream, "w", closefd=False) for stream in (1, 2))  # noqa: SIM115
        os.environ[run_session.FOLDER] = self._session
        os.chdir(self._folder.name)
        atexit._clear()
        watch_process()


def in_turn(starts: Iterable[Callable[[], Fork]], at_once: int) -> Iterator[Ran]:
    """The outcome of each, in this order, with so many of them at once."""
    waiting: list[Fork] = []
    for start in starts:
        if len(waiting) == at_once:
            yield waiting.pop(0).wait()
        waiting.append(start())
    yield from (fork.wait() for fork in waiting)


def _run(script: Path, arguments: Sequence[str]) -> int:
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = str(script)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    try:
        exec(compile(script.read_text(), str(script), "exec"), vars(main))
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001  # the end of a program
        with contextlib.suppress(AttributeError):
            sys.last_value = error
        traceback.print_exception(error)
        return 1
    return 0
