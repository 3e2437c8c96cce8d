"""How does a process start another and wait for it, so that to everybody else the two are one?

Signals that somebody sends to the parent reach the child; those of the terminal reach both by themselves. The
parent ends as the child ended: with its exit code, or by the same signal.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# Stop and continue are left as they are: the terminal and the shell deal with both processes.
_FORWARDED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
)  # fmt: skip
_WAITED_FOR = (*_FORWARDED, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1
_FOUND_BUT_NOT_RUN = 126


class Ended:
    """How a child ended.

    Attributes:
        code: Its exit code; None when a signal ended it.
        signal: That signal; None when there was none.
        wall_s: How long it ran.
        peak_bytes: The highest resident size of itself, or of one of the processes that it waited for.
    """

    __slots__ = ("code", "peak_bytes", "signal", "wall_s")

    def __init__(self, status: int, wall_s: float, peak_bytes: int) -> None:
        self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        self.wall_s = wall_s
        self.peak_bytes = peak_bytes


class Child:
    """A process that was started; from then on signals wait until `wait` passes them on.

    Args:
        argv: What to execute, the first word a file.
        environment: Its environment.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._began_s = time.monotonic()
        # Blocked from before the child exists, so that none is lost and none ends us alone
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        # Who ignores it, as some schedulers do, has its children taken away before it can ask how they ended
        inherited = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            signal.signal(signal.SIGCHLD, inherited)
            _become(argv, environment, parent, self._mask)

    def wait(self, look: Callable[[], None], every_s: float) -> Ended:
        """Until it has ended; `look` is called in between. Then signals mean to us what they meant before."""
        look()
        # An alarm instead of a time limit for the waiting: who is stopped and continued (Ctrl-Z, fg) while he waits
        # with a limit is told by Python of a signal that never came.
        signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                break
            told = signal.sigwaitinfo(_WAITED_FOR)
            if told.si_code <= 0 and told.si_signo != signal.SIGCHLD:
                os.kill(self.pid, told.si_signo)
            # A positive code is the kernel's: our alarm, or Ctrl-C, which the terminal sends to the child as well
            elif told.si_signo == signal.SIGALRM:
                look()
        signal.setitimer(signal.ITIMER_REAL, 0)
        while signal.sigtimedwait(_WAITED_FOR, 0) is not None:
            pass  # meant for the child, which has gone
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        return Ended(status, time.monotonic() - self._began_s, usage.ru_maxrss * 1024)


def end_like(ended: Ended) -> int:
    """The exit code to return; where a signal ended the child, this process ends by it too and does not return."""
    if ended.signal is None:
        return ended.code or 0
    import resource

    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # one core is enough
    if ended.signal != signal.SIGKILL:
        signal.signal(ended.signal, signal.SIG_DFL)
    os.kill(os.getpid(), ended.signal)
    return 128 + ended.signal  # a signal that ended the child and is ignored here


def execute(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become this program. What Python has changed for itself is put back first.

    Raises:
        OSError: when it can't be executed.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(argv[0], list(argv), dict(environment))


def execute_or_tell(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Become this program; where that can't be, say why, and give the exit code that shells have for it."""
    try:
        execute(argv, environment)
    except OSError as error:
        os.write(2, os.fsencode(f"forgather-mem: can't run {argv[0]}: {error.strerror}\n"))
    return _FOUND_BUT_NOT_RUN


def _become(argv: Sequence[str], environment: Mapping[str, str], parent: int, mask: Iterable[int]) -> None:
    """In the child: end when the parent is killed, as the script alone would have been, and become the program."""
    try:
        import ctypes  # here, so that the parent stays small

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        pass  # a system without it: then it lives on
    code = _FOUND_BUT_NOT_RUN
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = execute_or_tell(argv, environment)
    finally:
        os._exit(code)
