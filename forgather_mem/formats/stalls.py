"""Saying so when a file does not answer: a hard network mount holds a write, and with it the training, for ever.

Nothing can end such a write from inside. What can be done is to name the file. A daemon thread looks once a second at
the files that are open; a write costs two stores into an attribute.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

from forgather_mem.system.forks import FORKS
from forgather_mem.system.own_limits import may_start_a_thread

logger = logging.getLogger(__name__)

AFTER_S, _LOOK_EVERY_S = 5.0, 1.0


class Watched(Protocol):
    """A file that may not answer."""

    @property
    def path(self) -> object:
        """Its name."""

    @property
    def since_s(self) -> float:
        """When the call that is running now was begun, by the monotonic clock; 0.0 while none is."""


class _Stalls:
    """The open files of this process, and the thread that looks at them while there are any."""

    def __init__(self) -> None:
        self._told = False  # that there is no thread
        self._begin()

    def _begin(self) -> None:
        self._forks = FORKS.number
        self._lock = threading.Lock()
        self._files: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def watch(self, file: Watched) -> None:
        """Look at this file until `forget`, or until nobody holds it."""
        if self._forks != FORKS.number:  # the thread stayed in the parent
            self._begin()
        with self._lock:
            self._files.add(file)
            if self._thread is None and self._may_start():
                self._stop = threading.Event()
                arguments = self._stop, self._lock, self._files
                thread = threading.Thread(target=_look, args=arguments, name="forgather-mem: files", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter ends, or the process may have no more threads
                    thread.start()
                    self._thread = thread

    def _may_start(self) -> bool:
        """Whether the addresses of a thread can be spared; said once where they can't."""
        may_start = may_start_a_thread()
        if not may_start and not self._told:
            self._told = True
            logger.warning("too little is left below this process's limits for a thread that names files that stall")
        return may_start

    def forget(self, file: Watched) -> None:
        """This file is closed; with the last of them the thread ends."""
        if self._forks != FORKS.number:
            return
        with self._lock:
            self._files.discard(file)
            if self._files or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._stop.set()
        thread.join(_LOOK_EVERY_S)


def _look(stop: threading.Event, lock: threading.Lock, files: weakref.WeakSet[Watched]) -> None:
    told: weakref.WeakSet[Watched] = weakref.WeakSet()
    while not stop.wait(_LOOK_EVERY_S):
        with lock:
            found = list(files)
        while found:
            file = found.pop()
            since_s = file.since_s
            if since_s and time.monotonic() - since_s >= AFTER_S and file not in told:
                told.add(file)
                _tell(file)
            del file  # nobody is to be held until the next look


def _tell(file: Watched) -> None:
    logger.warning(
        "writing %s has taken %.0f s so far, and the training waits for it: does its disk, a network's perhaps, still "
        "answer? FORGATHER_MEM_DIR (of TensorBoard's files: TENSORBOARD_LOGGING_DIR) puts it into a local folder",
        file.path,
        time.monotonic() - file.since_s,
    )


# One, because there is one process.
STALLS = _Stalls()


class _Call:
    """One call that may not return."""

    def __init__(self, path: object) -> None:
        self.path, self.since_s = path, time.monotonic()


@contextlib.contextmanager
def may_stall(path: object) -> Iterator[None]:
    """While this runs it is looked at, too: for what is done once in a run."""
    call = _Call(path)
    STALLS.watch(call)
    try:
        yield
    finally:
        STALLS.forget(call)
