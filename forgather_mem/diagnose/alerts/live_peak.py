"""The most that was allocated on the host at once within a step, sampled by a thread during that step."""

from __future__ import annotations

import _thread
import time

from forgather_mem.system.native_heap import allocated_natively_bytes

_PAUSE_S = 0.0001
_EXPENSIVE_S = 0.0005  # where the C library's account takes longer it would hold up the step
_MOST_S = 60.0


class LivePeak:
    """Samples until it is stopped. No mark of the kernel is reset for it, and what was freed does not count.

    The thread is none of `threading.enumerate()`: a script that joins all of those waits for its own.
    """

    def __init__(self) -> None:
        self._is_stopped = False
        self._peak = 0
        self._sampling: _thread.LockType | None = None  # held by the thread, as long as it runs

    def start(self) -> bool:
        """Begin, and say whether it can: not where asking takes long or nobody answers."""
        if allocated_natively_bytes() is None:  # the first call looks for the function
            return False
        began_s = time.thread_time()  # on a busy machine other processes run meanwhile
        allocated_natively_bytes()
        if time.thread_time() - began_s > _EXPENSIVE_S:
            return False
        self._sampling = _thread.allocate_lock()
        self._sampling.acquire()
        _thread.start_new_thread(self._sample, (self._sampling,))
        return True

    def stop(self) -> int | None:
        """The highest sample in bytes, which may have missed the peak; None if there was none. Idempotent."""
        sampling, self._sampling = self._sampling, None
        self._is_stopped = True
        if sampling is not None:
            sampling.acquire()
        return self._peak or None

    def _sample(self, sampling: _thread.LockType) -> None:
        try:
            until_s = time.monotonic() + _MOST_S
            while not self._is_stopped and time.monotonic() < until_s:
                self._peak = max(self._peak, allocated_natively_bytes() or 0)
                time.sleep(_PAUSE_S)
        finally:
            sampling.release()
