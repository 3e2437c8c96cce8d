"""What does `forgather-mem run` do? It starts the command, waits while it stays small, and tells what it saw.

Until the command has ended nothing but the standard library's smallest parts is imported: 12 MiB that the
training does not have. What reads and writes reports is imported after that.
"""

from __future__ import annotations

import os
import sys
import time

from forgather_mem import session
from forgather_mem.cgroups import kill_counter
from forgather_mem.formats.ring_writer import RingWriter
from forgather_mem.launch.arguments import Arguments, Command, UsageError, command_of
from forgather_mem.launch.waiting import Child, Ended, end_like, execute_or_tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = 2
LOOK_EVERY_S = 1.0
_SITE = os.path.join(os.path.dirname(__file__), "on_path")


def run(words: Sequence[str]) -> int:
    """`forgather-mem run WORDS...`: the exit code of the command, 3 for a limit of ours that it broke."""
    try:
        arguments = Arguments(words)
        command = command_of(arguments.words)
    except UsageError as error:
        _say(f"forgather-mem: {error}" + (f"\n  {error.hint}" if error.hint else ""))
        return USAGE
    if session.is_off():
        return execute_or_tell(command.argv, os.environ)
    code = _check(arguments)
    if code:
        return code
    _say(f"forgather-mem: watching {command.name}; your run is not changed. Report at the end.")
    folder = _new_folder(command)
    child = Child(command.argv, _environment(arguments, folder))
    sampler = Sampler(folder, child.pid, command)
    ended = child.wait(sampler.look, LOOK_EVERY_S)
    sampler.end(ended)
    try:
        from forgather_mem.launch.outcome import tell_outcome

        broken = tell_outcome(folder, arguments, command, ended)
    except KeyboardInterrupt:
        broken = False
    if broken and ended.code == 0:
        return 3
    return end_like(ended)


class Sampler:
    """Looks at the child once a second, from outside, for what no training tells: a script without a Trainer.

    Args:
        folder: Where its ring lies until a training has one of its own.
        pid: The process to look at.
        command: What it runs.
    """

    def __init__(self, folder: str, pid: int, command: Command) -> None:
        self._statm = f"/proc/{pid}/statm"
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._peak_bytes = 0
        header = {
            "rank": 0, "world_size": 1, "pid": pid, "host": os.uname().nodename, "script": command.script,
            "argv": command.arguments, "started_s": time.time(), "step": 0, "kills": kill_counter(),
        }  # fmt: skip
        self._ring: RingWriter | None = None
        try:
            self._ring = RingWriter(os.path.join(folder, session.WAITING_RING), header)
        except OSError:
            return  # no room: then the report has what the kernel counts

    def look(self) -> None:
        """Note how large it is."""
        try:
            with open(self._statm, "rb") as file:
                _, resident, shared, *_ = file.read().split()
        except (OSError, ValueError):
            return  # it has just ended
        rss_bytes = int(resident) * self._page_bytes
        if not rss_bytes or self._ring is None:
            return
        self._peak_bytes = max(self._peak_bytes, rss_bytes)
        values = {
            "host/rss_bytes": float(rss_bytes),
            "host/rss_peak_bytes": float(self._peak_bytes),
            "host/anon_bytes": float(rss_bytes - int(shared) * self._page_bytes),
        }
        self._ring.sample(0, values, event="other")

    def end(self, ended: Ended) -> None:
        """The highest size as the kernel counted it; and that nobody is missing, when no signal ended it."""
        if self._ring is not None:
            values = {"host/rss_peak_bytes": float(max(self._peak_bytes, ended.peak_bytes))}
            self._ring.sample(0, values, event="other")
            if ended.signal is None:
                self._ring.state(0, "other", "finished")
            self._ring.close()


def _check(arguments: Arguments) -> int:
    """Whether template and sizes are as they should be, in a process that ends before the command begins."""
    if arguments.template is None and not arguments.settings and not arguments.max_peaks:
        return 0
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        from forgather_mem.launch.checking import check

        code = check(arguments)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _environment(arguments: Arguments, folder: str) -> dict[str, str]:
    environment = dict(os.environ)
    # A folder with a sitecustomize.py: every Python below us, through whichever launcher, starts with our hook.
    # An empty entry would mean the current folder.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_SITE, environment.get("PYTHONPATH"))))
    environment[session.FOLDER] = folder
    for name, value in (
        (session.TEMPLATE, arguments.template),
        (session.SETTINGS, "\n".join(arguments.settings)),
        (session.ALLOW, "\n".join(arguments.allow)),
    ):
        environment.pop(name, None)
        if value:
            environment[name] = value
    return environment


def _new_folder(command: Command) -> str:
    """`./forgather_mem/<time>-<script>`, or below `FORGATHER_MEM_DIR`, or where temporary files go."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.path.splitext(command.name)[0]}"
    temporary = os.environ.get("TMPDIR") or "/tmp"
    for parent in (os.environ.get("FORGATHER_MEM_DIR") or "forgather_mem", os.path.join(temporary, "forgather_mem")):
        for number in range(1, 1000):
            path = os.path.abspath(os.path.join(parent, name if number == 1 else f"{name}_{number}"))
            try:
                os.makedirs(path)
                return path
            except FileExistsError:
                continue
            except OSError:
                break
    return os.path.abspath(".")


def _say(text: str) -> None:
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return  # closed: a line is not worth a run
