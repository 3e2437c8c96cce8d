"""Calls a function in a forked child, where it may change what it likes, and gives back its result.

Memory is the child's own by `fork()`, but for what was mapped to be shared: that is made its own. Open files are not:
their positions are shared, and what is read from a pipe is gone for the parent. So the child has files of its own, and
neither pipes nor sockets. It acts on nothing outside.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import logging
import mmap
import os
import pickle
import random
import select
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar

from forgather_mem.errors import PlanError
from forgather_mem.planning.isolation.acts import ON_NOTHING, Lines, act_on_nothing
from forgather_mem.planning.isolation.processes import proc_file
from forgather_mem.system.forks import FIRST_IN_CHILD
from forgather_mem.system.installed import installed
from forgather_mem.system.procfs import PLANNER
from forgather_mem.telemetry.run_session import DOING, FOLDER, PLAN, SWITCH
from forgather_mem.units import MIB

Result = TypeVar("Result")
_resource = installed("resource")
_TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
_ENDING = signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM
_MOST_S = 900.0  # a lock that a thread of the parent held stays locked in the child: it may wait forever
_IDLE_S = 10.0  # without any processor time: longer than any read of data that was seen; a slower disk is refused
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_LINE = "line"  # of the script that the child is at, where it was asked
_ASKS = signal.SIGURG  # it kills nobody where a library has set its own handlers back, as Lightning does
_OF_DEVICES = ("/dev/", "/proc/", "/sys/")
_OF_MEMORY = ("/dev/shm/", "/dev/zero")
_MAP_FIXED = 0x10  # as in <sys/mman.h>: in place of what is there
_MOST_COPIED_BYTES = 64 * MIB  # locks and counters have a page
GiveAnswer = Callable[..., NoReturn]  # given the result, or None and the error


class WaitsError(PlanError):
    """The child waits for something that does not exist in it."""


class GoesOn(BaseException):
    """Raised by the function of a child that does not end with it, but goes on as its parent would have.

    Args:
        given: Called with what tells the parent, once, the result or the error, and ends the child.
    """

    def __init__(self, given: Callable[[GiveAnswer], None]) -> None:
        super().__init__()
        self.given = given


def in_a_child(function: Callable[[], Result], not_done: Lines | None = None) -> Result:
    """The result of the function, which must be picklable; this process stays as it was.

    The child prints nothing and runs on one thread: threads of the parent do not exist in it.

    Args:
        function: Called there.
        not_done: Gets the lines that would have acted on something.

    Raises:
        PlanError: if the function raised anything, if the child was killed, or has not ended in time.
        GoesOn: in the child, if the function did.
    """
    return begun_in_a_child(function, not_done)()


def begun_in_a_child(function: Callable[[], Result], not_done: Lines | None = None) -> BegunChild[Result]:
    """The same, begun: several children run side by side."""
    # Of a plan's own folder: its process changes no other
    scratch = tempfile.mkdtemp(dir=os.environ.get(PLAN))
    (reader, writer), lines = os.pipe(), Lines()
    try:
        FIRST_IN_CHILD.append(partial(_take_away, threading.get_ident(), writer, scratch, lines))
        child = forked()
        if not child:
            os.close(reader)
            _answer(function, partial(_write_answer, writer, lines))
    finally:
        FIRST_IN_CHILD.clear()
    os.close(writer)
    return BegunChild(child, reader, scratch, not_done)


def forked() -> int:
    """As `os.fork`, but the child dies with its parent, and draws its numbers: Python seeds its generator anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on forks where there are threads
        state = random.getstate()
        child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        random.setstate(state)
    return child


class BegunChild(Generic[Result]):
    """A child that has begun. It must be called, which waits for its result, or ended.

    Attributes:
        pid: Its process.
    """

    def __init__(self, pid: int, reader: int, scratch: str, not_done: Lines | None) -> None:
        self.pid, self._reader, self._scratch, self._not_done = pid, reader, scratch, not_done

    def __call__(self) -> Result:
        try:
            told = self._read_answer()
        except BaseException:
            self.end()
            raise
        self._leave()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if code:
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            raise PlanError(f"the process that planned was {how}")
        if not told:
            raise PlanError("the process that planned has ended without an answer")
        result, problem, lines = pickle.loads(told)
        if problem is not None:
            raise PlanError("\n".join([problem, *notes_of(lines, problem)]))
        if self._not_done is not None:
            self._not_done.update(lines)
        return result  # type: ignore[no-any-return]

    def _read_answer(self) -> bytes:
        """All that the child writes, until it closes its end."""
        parts, until_s = list[bytes](), time.monotonic() + _MOST_S
        used, since_s = list[bytes](), time.monotonic()
        while (now_s := time.monotonic()) < until_s:
            if self.has_answered(min(1.0, until_s - now_s)):
                if not (part := os.read(self._reader, 2**20)):
                    return b"".join(parts)
                parts.append(part)
            elif used != (used := _processor_time_of(self.pid)):
                self._tell_line()
                since_s = now_s
            elif now_s - since_s > _IDLE_S:
                what = "a thread, another process or input, which a plan does not have"
                raise WaitsError(f"it waits for {what}{self._tell_line()}")
        raise PlanError(f"planning has not ended after {_MOST_S:,.0f} s{self._tell_line()}")

    def _tell_line(self) -> str:
        """Ask the child for the script's line that it is at, and tell whoever waits for the plan."""
        at = ""
        with suppress(OSError):
            os.kill(self.pid, _ASKS)
            time.sleep(0.02)  # a guess: who answers later, on a busy core, has told an earlier line
            with open(os.path.join(self._scratch, _LINE), encoding="utf-8") as file:
                at = file.readline().rstrip()
            with open(os.path.join(os.environ.get(PLAN, self._scratch), DOING), "w", encoding="utf-8") as file:
                file.write(f"planning the training{at}")
        return at

    def has_answered(self, within_s: float = 0.0) -> bool:
        """Whether it will be called without a wait."""
        waits = select.poll()
        waits.register(self._reader, select.POLLIN)
        return bool(waits.poll(1000 * within_s))

    def end(self) -> None:
        """End it without a result."""
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._leave()

    def _leave(self) -> None:
        os.close(self._reader)
        shutil.rmtree(self._scratch, ignore_errors=True)


def without_handlers(end: Callable[[int, object], object] | signal.Handlers = signal.SIG_DFL) -> Callable[[], None]:
    """From now on no handler of a signal that the script has set runs in this process, and its timers stop.

    In another thread than the main one, which runs the handlers, only the latter.

    Args:
        end: What signals do by which a process is asked to end, unless they are ignored.

    Returns:
        What sets all of them again.
    """
    timers = [(one, signal.setitimer(one, 0)) for one in _TIMERS]
    handlers: dict[int, Any] = {}
    with suppress(ValueError):  # another thread
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if number in _ENDING and handler not in (signal.SIG_IGN, None):
                handlers[number] = signal.signal(number, end)
            elif callable(handler):  # a child that is ignored can't be waited for
                default = signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN
                handlers[number] = signal.signal(number, default)

    def again() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for timer, values in timers:
            signal.setitimer(timer, *values)

    return again


def _processor_time_of(pid: int) -> list[bytes]:
    """That of the process, and of its own, as far as the kernel tells them."""
    used = proc_file(pid, "stat").rpartition(b") ")[2].split()[11:15]
    for child in proc_file(pid, f"task/{pid}/children").split():
        used += _processor_time_of(int(child))
    return used


def _answer(function: Callable[[], object], give_answer: GiveAnswer) -> None:
    try:
        _prepare()
        try:
            give_answer(function())
        except Exception as error:  # noqa: BLE001  # the training's own: the parent tells it
            give_answer(None, error)
    except GoesOn as goes_on:
        try:
            goes_on.given(give_answer)
        except Exception as error:  # noqa: BLE001  # else this process would go on as its parent
            give_answer(None, error)
        raise
    except BaseException:  # noqa: BLE001  # no exit handler of the parent's, no flush of its buffers
        os._exit(1)


def _write_answer(writer: int, not_done: Lines, result: object, error: BaseException | None = None) -> NoReturn:
    code = 1
    try:
        problem = None
        if error is not None:
            from forgather_mem.planning.refusal import problem_of  # takes long

            problem = problem_of(error)
        with os.fdopen(writer, "wb") as file:
            file.write(pickle.dumps((result, problem, not_done)))
        code = 0
    finally:
        os._exit(code)


def _take_away(thread: int, writer: int, scratch: str, not_done: Lines) -> None:
    """All by which this process could act on something; the first that it does."""
    if threading.get_ident() != thread:
        return  # another thread has forked meanwhile
    with suppress(OSError), open("/proc/self/comm", "w") as name, open("/proc/self/oom_score_adj", "w") as score:
        name.write(PLANNER)
        score.write("1000")  # where memory is short the kernel takes this process first: a training is worth more
    without_handlers()
    write_no_files([writer], has_pipes=False)  # first: what is let go may be written
    have_own_memory()
    _resource.setrlimit(_resource.RLIMIT_CORE, (0, _resource.getrlimit(_resource.RLIMIT_CORE)[1]))  # where it crashes
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    os.dup2(sys.stderr.fileno(), 2)  # for what is not Python's
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    _tell_line_when_asked(os.path.join(scratch, _LINE))
    act_on_nothing(not_done, scratch)
    FIRST_IN_CHILD.clear()


def _tell_line_when_asked(path: str) -> None:
    """By a handler of Python's, between two instructions: `faulthandler` crashed in one of 1,400 looks at a plan."""
    from forgather_mem.source.source_lines import is_user_file, line_name, with_callers

    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)

    def tell(_: int, frame: FrameType | None) -> None:
        at = next((one for one in with_callers(frame) if is_user_file(one.f_code.co_filename)), None)
        if at is not None:
            os.pwrite(file, f", at {line_name(at.f_code.co_filename, at.f_lineno)}\n".encode(), 0)

    signal.signal(_ASKS, tell)


def _prepare() -> None:
    import torch

    for take_away in FIRST_IN_CHILD[:]:  # where it has failed: then this does
        take_away()
    os.environ.update({SWITCH: "0", FOLDER: ""})  # what is planned is no training to be watched, nor told the run
    gc.freeze()  # the parent's objects: a Trainer collects garbage before it trains
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def notes_of(not_done: Lines, said: str = "") -> list[str]:
    """What to say of lines that would have acted on something, unless they stand in what is said already."""
    told = said if ON_NOTHING in said else ""
    left = f"was not done ({{}}): {ON_NOTHING}."
    return [f"What {line} would do outside {left.format(what)}" for line, what in not_done.items() if line not in told]


def write_no_files(kept: Iterable[int], has_pipes: bool = True) -> None:
    """From now on this process has files of its own, with its own position in each, and can't write to them.

    Args:
        kept: Stay as they are, by number.
        has_pipes: Whether it keeps its pipes, sockets and terminals; else each is the null device.
    """
    for number in set(map(int, os.listdir("/proc/self/fd"))).difference(kept):
        with suppress(OSError):  # the listing itself is gone
            kind = os.fstat(number).st_mode
            is_pipe = stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind) or os.isatty(number)
            if stat.S_ISREG(kind) or (is_pipe and not has_pipes):
                again = _opened_again(number, is_pipe)
                os.dup2(again, number)
                os.close(again)


def _opened_again(number: int, is_pipe: bool) -> int:
    with suppress(OSError):
        if not is_pipe and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY:
            own = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
            os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            return own
    return os.open(os.devnull, os.O_RDWR)


def have_own_memory() -> None:
    """From now on nobody else sees what this process writes into memory that it shares; it sees what stood there.

    What is small is copied. What is large can only be read: who writes there dies. What belongs to a device stays as
    it is.

    Raises:
        OSError: if there is no memory left for it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    with open("/proc/self/maps") as maps:
        rows = [row.split(None, 5) for row in maps]
    for addresses, rights, _, _, _, *named in rows:
        path = named[0] if named else ""
        of_memory = path.startswith("/") and (path.startswith(_OF_MEMORY) or not path.startswith(_OF_DEVICES))
        if rights[1] == "w" and rights[3] == "s" and of_memory:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            if not _made_private(library, begin, end - begin):
                raise OSError(ctypes.get_errno(), "memory that is shared can't be made this process's own")


def _made_private(library: ctypes.CDLL, begin: int, num_bytes: int) -> bool:
    place, size = ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes)
    if num_bytes > _MOST_COPIED_BYTES:
        return library.mprotect(place, size, mmap.PROT_READ) == 0  # type: ignore[no-any-return]
    copied, flags = ctypes.string_at(begin, num_bytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    found = library.mmap(place, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0))
    if found == begin:
        ctypes.memmove(place, copied, len(copied))
    return found == begin  # type: ignore[no-any-return]
