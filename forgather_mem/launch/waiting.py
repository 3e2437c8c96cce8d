"""Starts a child process and waits for it so that both look like one process from outside.

Signals that somebody sends to the parent alone reach the child; those of the terminal, or to the whole group, reach
both by themselves. The parent ends as the child ended, with its exit code or by the same signal. Asked to stop
(Ctrl-Z), it stops when the child has.
"""

from __future__ import annotations

import os
import signal
import time

from forgather_mem.errors import missing, shown
from forgather_mem.system.process_start import stat_fields
from forgather_mem.telemetry.redaction import redacted_argv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# What can't be caught, what says who may use the terminal, and what says what a process did itself
_NOT_PASSED_ON = frozenset((
    signal.SIGKILL, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS,
    signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP, signal.SIGPIPE,
))  # fmt: skip
_PASSED_ON = signal.valid_signals() - _NOT_PASSED_ON
_WAITED_FOR = _PASSED_ON | {signal.SIGCHLD}
# Within this time whoever signals us and then the others, or our group, has done so
_SETTLE_S = 0.01
# The kernel drops either when the other comes
_UNDONE_BY: dict[int, int] = {signal.SIGTSTP: signal.SIGCONT, signal.SIGCONT: signal.SIGTSTP}
_PR_SET_PDEATHSIG = 1
_FOUND_BUT_NOT_RUN = 126
_ARG_START, _ARG_END = 45, 46  # of /proc/self/stat, counted behind the name


class Ended:
    """How a child ended.

    Attributes:
        code: Its exit code; None if a signal ended it.
        signal: That signal; None otherwise.
        wall_s: Its run time.
        time_s: When it had ended.
        peak_bytes: The highest resident size of the child, or of a process that it waited for.
    """

    __slots__ = ("code", "peak_bytes", "signal", "time_s", "wall_s")

    def __init__(self, status: int, wall_s: float, peak_bytes: int) -> None:
        self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        self.wall_s, self.time_s = wall_s, time.time()
        self.peak_bytes = peak_bytes


class Child:
    """A started process; from then on signals are blocked until `wait` forwards them.

    Args:
        argv: The command line; its first word is a file.
        environment: Its environment.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._began_s = time.monotonic()
        # Blocked before the child exists, so that none is lost and none ends the parent alone
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        # If it is ignored, as by some schedulers, the kernel reaps children before their status can be read
        inherited = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            signal.signal(signal.SIGCHLD, inherited)
            _become(argv, environment, parent, self._mask)
        self._witness = Witness(_PASSED_ON, argv)
        self._has_stopped = self._shall_stop = False  # the child; this process, as soon as the child has

    def wait(self, look: Callable[[], None], every_s: float) -> Ended:
        """Wait until it has ended, calling `look` in between. Afterwards signals have their previous meaning."""
        look()
        # An alarm instead of a timeout: for a process stopped and continued (Ctrl-Z, fg) while waiting with a timeout,
        # Python reports a signal that never came.
        signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid and not os.WIFSTOPPED(status) and not os.WIFCONTINUED(status):
                break
            if pid:
                self._has_stopped = os.WIFSTOPPED(status)
                continue
            if self._shall_stop and self._has_stopped:
                self._stop()
            told = signal.sigwaitinfo(_WAITED_FOR)
            if told.si_signo == signal.SIGALRM and told.si_code > 0:  # the kernel's, hence our own
                look()
            elif told.si_signo != signal.SIGCHLD:
                self._pass_on(told)
        self._witness.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
        while signal.sigtimedwait(_WAITED_FOR, 0) is not None:
            pass  # meant for the child, which has already ended
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        return Ended(status, time.monotonic() - self._began_s, usage.ru_maxrss * 1024)

    def _pass_on(self, told: signal.struct_siginfo) -> None:
        """Give a signal to the child, unless it has got it from the same sender already."""
        with missing(OSError):  # a sender that is gone has done so
            for _ in range(25):  # on a busy machine it may wait for a processor in between
                time.sleep(_SETTLE_S)
                if not told.si_pid or stat_fields(f"/proc/{told.si_pid}")[:1] != ["R"]:
                    break
        while signal.sigtimedwait((told.si_signo,), 0) is not None:
            pass  # `timeout` signals first the process and then its group; alone, a process sees that as one
        if _UNDONE_BY.get(told.si_signo) in signal.sigpending():
            return
        if told.si_signo in _UNDONE_BY:
            self._shall_stop = told.si_signo == signal.SIGTSTP
        # A group of its own the command, unless it is the leader of this one, could not have begun
        has_left = os.getpgrp() == os.getpid() != os.getpgid(self.pid)
        if has_left or not self._witness.has_got(told):
            os.kill(self.pid, told.si_signo)

    def _stop(self) -> None:
        """Stop as the child has, until somebody continues us; that is then passed on, too."""
        self._shall_stop = False
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])


def end_like(ended: Ended) -> int:
    """The exit code to return; if a signal ended the child, this process ends by it too and does not return."""
    if ended.signal is None:
        return ended.code or 0
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # one core is enough
    if ended.signal != signal.SIGKILL:
        signal.signal(ended.signal, signal.SIG_DFL)
    os.kill(os.getpid(), ended.signal)
    return 128 + ended.signal  # a signal that ended the child and is ignored here


def execute_or_complain(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Become this program; on failure, print why and return the exit code that shells use for it.

    What Python has changed for itself is restored first.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(argv[0], list(argv), dict(environment))
    except OSError as error:
        os.write(2, os.fsencode(shown(f"forgather-mem: can't run {argv[0]}: {error.strerror}\n")))
    return _FOUND_BUT_NOT_RUN


def _become(argv: Sequence[str], environment: Mapping[str, str], parent: int, mask: Iterable[int]) -> None:
    """In the child: become the program, and end when the parent is killed, as the script alone would have."""
    with missing(ImportError, OSError, AttributeError):  # a system without it: the child survives the parent
        import ctypes  # imported here to keep the parent small

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)
    code = _FOUND_BUT_NOT_RUN
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = execute_or_complain(argv, environment)
    finally:
        os._exit(code)


class Witness:
    """The second child: tells whether a signal was meant for the waiting parent alone or for its whole group.

    No signal says so. Beside the command there is therefore a second child, in the same process group, terminal,
    control group and tree of processes, and it is listed by the command's words: whoever signals several processes
    meets it when he meets the command. It blocks every signal and only answers which ones it has got. Where it can't be
    had, or is gone, the kernel's signals count as got and others do not.

    Args:
        signals: What is asked about; blocked in this process already.
        argv: The command's words.
    """

    def __init__(self, signals: Iterable[int], argv: Sequence[str]) -> None:
        self._got: set[tuple[int, int, int]] = set()
        self._pid = self._ask = self._answers = -1
        try:
            questions, self._ask = os.pipe()
            self._answers, answer = os.pipe()
            self._pid = os.fork()
        except OSError:  # no more processes, or files
            return
        if not self._pid:
            _answer(questions, answer, signals, argv)
        os.close(questions)
        os.close(answer)

    def has_got(self, told: signal.struct_siginfo) -> bool:
        """Whether the same signal, of the same sender, has reached the witness too."""
        if not self._question():
            return told.si_code > 0
        key = _key(told)
        found = key in self._got
        self._got.discard(key)
        return found

    def close(self) -> None:
        """Let it go."""
        for file in (self._ask, self._answers):
            if file >= 0:
                os.close(file)
        if self._pid > 0:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _question(self) -> bool:
        """Ask what has come since the last time; whether there was an answer."""
        if self._pid < 0:
            return False
        answer = b""
        with missing(OSError):
            # Together with the command; else a SIGCONT would drop a SIGTSTP that it has got
            if stat_fields(f"/proc/{self._pid}")[:1] == ["T"]:
                os.kill(self._pid, signal.SIGCONT)
            os.write(self._ask, b"?")
            answer = os.read(self._answers, 1 << 16)
        self._got.update(tuple(map(int, line.split())) for line in answer.splitlines() if line)  # type: ignore[misc]
        return bool(answer)


def _key(told: signal.struct_siginfo) -> tuple[int, int, int]:
    return told.si_signo, told.si_code, told.si_pid


def _answer(questions: int, answer: int, signals: Iterable[int], argv: Sequence[str]) -> None:
    """In the witness: hold no file of anybody's, and end when the parent has gone."""
    try:
        os.dup2(questions, 0)
        os.dup2(answer, 1)
        os.closerange(2, 1 + max(map(int, os.listdir("/proc/self/fd"))))
        _be_listed_as(argv)
        while os.read(0, 1):
            told = iter(lambda: signal.sigtimedwait(signals, 0), None)
            os.write(1, b"".join(b"%d %d %d\n" % _key(one) for one in told) or b"\n")
    finally:
        os._exit(0)


def _be_listed_as(argv: Sequence[str]) -> None:
    """In lists of processes: with these words, behind one that says what this is."""
    with missing(OSError, ValueError, IndexError):  # else with the parent's
        with open("/proc/self/comm", "w") as file:
            file.write(os.path.basename(argv[0])[:15])
        fields = stat_fields("/proc/self")
        begin, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        words = b"\0".join(map(os.fsencode, ("(signals)", *redacted_argv(tuple(argv)))))[: end - begin - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(words.ljust(end - begin, b"\0"))
