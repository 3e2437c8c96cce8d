"""The witness: tells whether a signal was meant for the waiting parent alone or for its whole group.

No signal says so. Beside the command there is therefore a second child, in the same process group, terminal,
control group and tree of processes, and it is listed by the command's words: whoever signals several processes
meets it when he meets the command. It blocks every signal and only answers which ones it has got.
"""

from __future__ import annotations

import os
import signal

from forgather_mem.telemetry.redaction import redacted_argv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ARG_START, _ARG_END = 45, 46  # of /proc/self/stat, counted behind the name


class Witness:
    """The second child. Where it can't be had, or is gone, the kernel's signals count as got and others do not.

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
        try:
            if _is_stopped(self._pid):  # together with the command; else a SIGCONT would drop a SIGTSTP that it has got
                os.kill(self._pid, signal.SIGCONT)
            os.write(self._ask, b"?")
            answer = os.read(self._answers, 1 << 16)
        except OSError:
            return False
        self._got.update(tuple(map(int, line.split())) for line in answer.splitlines() if line)  # type: ignore[misc]
        return bool(answer)


def _key(told: signal.struct_siginfo) -> tuple[int, int, int]:
    return told.si_signo, told.si_code, told.si_pid


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


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
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(os.path.basename(argv[0])[:15])
        with open("/proc/self/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        begin, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        words = b"\0".join(map(os.fsencode, ("(signals)", *redacted_argv(tuple(argv)))))[: end - begin - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(words.ljust(end - begin, b"\0"))
    except (OSError, ValueError, IndexError):
        return  # then with the parent's
