"""`forgather-mem run` and `plan` as forks, and the script they start, too: Python and imports need not begin again.

Parent and hook are the real ones; only the kernel's part of starting a program is ours. For tests marked `fresh` about
what is told of a training, not about how commands are started; of each kind of training some tests start real ones.
"""

import atexit
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from tests.forked import Forked, run_script
from tests.fresh import end
from tests.launch.commands import JUDGED, Result, Watched, environment, taken_apart

_COMMAND = [sys.executable, "-m", "forgather_mem"]


def run_forked(words: Sequence[str], folder: Path, **more: str) -> Result:
    """What `commands.run` gives of `python -m forgather_mem ...`, if the command is a script."""
    assert list(words[:3]) == _COMMAND
    return Result(*Forked(Path(__file__), words[3:], folder, environment(**more)).wait())


def watched_forked(words: Sequence[str], folder: Path, **more: str) -> Watched:
    """What `commands.watched` gives, if the command is a script."""
    return taken_apart(run_forked([*JUDGED, *words], folder, **more))


def _become_the_command() -> NoReturn:
    """In the fork: what `python -m forgather_mem` does."""
    from forgather_mem.__main__ import main
    from forgather_mem.cli import plan

    sys.path.remove(str(Path(__file__).parent))
    sys.orig_argv[:] = [*_COMMAND, *sys.argv[1:]]
    os.execve = _execute  # `run` starts its command so
    plan.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": _Program})  # type: ignore[assignment]  # `plan` so
    raise SystemExit(main())


def _execute(path: str, argv: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """What Python does with this script when it begins, in this process."""
    assert path == sys.executable
    assert argv[1].endswith(".py")
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    atexit._clear()
    os.environ.clear()
    os.environ.update(variables)
    sys.orig_argv[:] = argv
    sys.path[:0] = [entry for entry in variables["PYTHONPATH"].split(os.pathsep) if not entry.endswith("on_path")]
    _install_the_hook()
    end(run_script(Path(argv[1]), argv[2:]))


def _install_the_hook() -> None:
    """What sitecustomize does; all that it waits for has been imported."""
    from forgather_mem.launch.import_hook import TrainingFinder, install

    # A launcher's own are left out
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, TrainingFinder)]
    install()
    for finder in list(sys.meta_path):
        if isinstance(finder, TrainingFinder):
            for name in list(sys.modules):
                finder.is_there(name)


class _Program:
    """What `subprocess.Popen` is, to `plan`: its script is a fork of this process."""

    returncode: int | None = None

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], start_new_session: bool = False, **files: Any):
        self._argv, self.pid = argv, os.fork()
        if not self.pid:
            try:
                if start_new_session:
                    os.setsid()
                for number, name in enumerate(("stdin", "stdout", "stderr")):
                    file = files.get(name)
                    if file is not None:
                        os.dup2(os.open(os.devnull, os.O_RDWR) if file == subprocess.DEVNULL else file.fileno(), number)
                _execute(argv[0], argv, env)
            finally:
                os._exit(70)

    def wait(self, timeout: float | None = None) -> int:
        deadline_s = time.monotonic() + (math.inf if timeout is None else timeout)
        while self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired([*self._argv], timeout or 0)
            else:
                time.sleep(0.01)
        return self.returncode


if __name__ == "__main__":
    _become_the_command()
