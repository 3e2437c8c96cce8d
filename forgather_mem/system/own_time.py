"""The time that our own code takes from a training, on a busy machine, too."""

from __future__ import annotations

import time

from forgather_mem.system.procfs import KernelFile
from forgather_mem.telemetry.signal_handlers import hand_on

# A thread that loses its processor is away for longer.
SHORT_S = 0.0002

Clocks = tuple[float, float]  # the time, and how long this thread had waited for a processor by then


class OwnTime:
    """Sums of what is spent in our own code, by the thread that trains.

    Waiting for a disk or a device counts, waiting for a busy processor does not: that wait meets whatever code is
    running, and the training would have waited instead. The kernel tells how long the thread has waited (5 us a
    reading in a real step). Where that is too much, in phases, all times up to `SHORT_S` count, and of longer ones what
    the waits since the last `take` can't explain.

    Attributes:
        spent_s: All that was spent since the last `take`, without such waits.
        reading_s: Of that, in readings that can be taken less often.
        long_s: Of phases, the parts beyond `SHORT_S`, with waits.

    >>> own = OwnTime()
    >>> own.spent_s, own.reading_s = 0.003, 0.002
    >>> own.take()
    (0.003, 0.002)
    """

    __slots__ = ("_file", "_waited_s", "long_s", "reading_s", "spent_s")

    def __init__(self) -> None:
        self._file = KernelFile("/proc/thread-self/schedstat")
        self.spent_s = self.reading_s = self.long_s = 0.0
        self._waited_s = self._read_waited_s()

    def now(self) -> Clocks:
        """The clocks before something of ours, for `add`."""
        return time.perf_counter(), self._read_waited_s()

    def add(self, began: Clocks, *, reading: bool = False) -> Clocks:
        """Add what has passed since; `reading`: in what can be done less often. Returns the clocks now."""
        now = self.now()
        spent_s = max(0.0, now[0] - began[0] - max(0.0, now[1] - began[1]))
        self.spent_s += spent_s
        if reading:
            self.reading_s += spent_s
        return now

    def add_short(self, took_s: float) -> None:
        """Add what has taken so long by the performance counter: most often less than a reading of the waits takes."""
        if took_s <= SHORT_S:
            self.spent_s += took_s
        else:
            self.spent_s += SHORT_S
            self.long_s += took_s - SHORT_S

    def take(self) -> tuple[float, float]:
        """Our seconds since the last call: all of them, and those of readings that can be taken less often."""
        waited_s = self._read_waited_s()
        blocked_s = max(0.0, self.long_s - max(0.0, waited_s - self._waited_s))
        all_s, reading_s = self.spent_s + blocked_s, self.reading_s
        self.spent_s = self.reading_s = self.long_s = 0.0
        self._waited_s = waited_s
        return all_s, reading_s

    def close(self) -> None:
        """Close the kernel's file; the next call reopens it."""
        self._file.close()

    def _read_waited_s(self) -> float:
        """0 where the kernel does not tell."""
        try:
            return int(self._file.read(128).split()[1]) / 1e9
        except (OSError, ValueError, IndexError) as error:
            hand_on(error)
            return 0.0
