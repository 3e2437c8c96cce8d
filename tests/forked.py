"""A Python program as a fork of this process: torch and transformers are imported, so that it begins at once.

For tests marked `fresh`, whose process has done nothing else. Not for what a test says about how Python starts, how a
program is launched, or the size of a process.
"""

import atexit
import logging
import os
import signal
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.fresh import IN_CHILD, end
from tests.frozen_heap import freeze
from tests.programs import free_port

SCRIPTS = Path(sys.executable).parent  # of the environment: forgather-mem, torchrun


class Forked:
    """`python SCRIPT ARGUMENTS...` in that folder, with nothing to read; it begins at once.

    Its warnings are not shown; all else is as of a program that was started: its `__main__`, arguments, environment,
    exit code, output, and the traceback of an error.
    """

    def __init__(self, script: Path, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        assert os.environ.get(IN_CHILD), "a test that forks programs is marked `fresh`"
        self._files = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._pid = os.fork()
        if not self._pid:
            try:
                nothing = os.open(os.devnull, os.O_RDONLY)
                become(folder, environment, nothing, *(file.fileno() for file in self._files))
                end(run_script(script, arguments))
            finally:
                os._exit(70)

    def wait(self, timeout_s: float = 240) -> tuple[int, str, str]:
        """The exit code, as of `subprocess`, and what it wrote to stdout and stderr."""
        deadline_s = time.monotonic() + timeout_s
        ended, status = os.waitpid(self._pid, os.WNOHANG)
        while not ended:
            if time.monotonic() > deadline_s:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.02)
            ended, status = os.waitpid(self._pid, os.WNOHANG)
        out, err = (_whole(file) for file in self._files)
        return os.waitstatus_to_exitcode(status), out, err


def on_ranks(
    script: Path, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], num_ranks: int = 2
) -> list[tuple[int, str, str]]:
    """The script on so many ranks, as a launcher would have started it; what `wait` gives of each."""
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    sizes = {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    started = [
        Forked(
            script, arguments, folder, {**environment, **shared, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(num_ranks)
    ]
    return [rank.wait() for rank in started]


def _whole(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


def become(folder: Path, environment: Mapping[str, str], *streams: int) -> None:
    """What a program finds: nothing of pytest's in its streams, which are given, its warnings and its log."""
    for target, number in enumerate(streams):
        os.dup2(number, target)
    sys.stdin, sys.stdout, sys.stderr = (open(n, m, closefd=False) for n, m in ((0, "r"), (1, "w"), (2, "w")))  # noqa: SIM115
    os.environ.clear()
    os.environ.update({name: value for name, value in environment.items() if name != IN_CHILD})
    os.chdir(folder)
    atexit._clear()
    freeze()  # collections don't look through torch and transformers, of which each would copy the pages
    warnings.simplefilter("ignore")
    logging.getLogger().handlers.clear()


def run_script(script: Path, arguments: Sequence[str]) -> int:
    """The exit code of this program, which this process becomes; its traceback is printed as Python prints it."""
    code = compile(script.read_text(), str(script), "exec")
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = str(script)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    try:
        exec(code, vars(main))
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        place = error.__traceback__
        while place is not None and place.tb_frame.f_code is not code:
            place = place.tb_next
        error.__traceback__ = place
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, place
        sys.excepthook(type(error), error, place)
        return 1
    return 0
