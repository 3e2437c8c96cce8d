"""The most that was allocated on the host at once within a step, sampled by a thread during that step."""

from __future__ import annotations

import threading
import time

from forgather_mem.system.native_heap import allocated_natively_bytes

_PAUSE_S = 0.0001
_EXPENSIVE_S = 0.0005  # where the C library's account takes longer it would hold up the step
_MOST_S = 60.0


class LivePeak:
    """Samples until it is stopped. No mark of the kernel is reset for it, and what was freed does not count."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._peak = 0
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Begin, and say whether it can: not where asking takes long or nobody answers."""
        if allocated_natively_bytes() is None:  # the first call looks for the function
            return False
        began_s = time.thread_time()  # on a busy machine other processes run meanwhile
        allocated_natively_bytes()
        if time.thread_time() - began_s > _EXPENSIVE_S:
            return False
        self._thread = threading.Thread(target=self._sample, name="forgather-mem: peak of a step", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> int | None:
        """The highest sample in bytes, which may have missed the peak; None if there was none. Idempotent."""
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None:
            thread.join()
        return self._peak or None

    def _sample(self) -> None:
        until_s = time.monotonic() + _MOST_S
        while not self._stop.is_set() and time.monotonic() < until_s:
            self._peak = max(self._peak, allocated_natively_bytes() or 0)
            time.sleep(_PAUSE_S)
