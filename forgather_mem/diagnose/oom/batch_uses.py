"""The batches of a run, and what its first steps took of the memory that is scarce."""

from __future__ import annotations

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.system.allocator import gauge_now
from forgather_mem.system.headroom import host_rooms
from forgather_mem.system.memory_limit import own_limits
from forgather_mem.system.procfs import own_memory

# What `own_memory` has in each measure.
_FIELDS = {"address space": "address_bytes", "data": "data_bytes", "anonymous": "anonymous_bytes"}


class HostMeasure:
    """Host memory of this process, in the measure of its tightest limit.

    Attributes:
        name: The measure: what a limit of this process counts, else anonymous memory.
    """

    def __init__(self) -> None:
        rooms = host_rooms()
        tightest = rooms[0].limit if rooms else ""
        self.name = next(filter(tightest.startswith, _FIELDS), "anonymous")

    def read(self) -> int:
        """Bytes in use now; takes 10 us."""
        return int(getattr(own_memory(), _FIELDS[self.name]))


class BatchUses:
    """The batches of one run's steps, and what the first of these took, by readings at the ends of phases.

    Attributes:
        batch: The current or last micro-batch.
        largest: The largest batch of the finished steps; None before the first has finished.
        ended: The phases that have ended in this run; those of a step are told while it is read.
        between_bytes: Bytes in use at the end of the last step read.
        peak_bytes: The highest use that was read.
        reading: Whether steps are read.
    """

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.largest: Batch | None = None
        self.ended: set[str] = set()
        self.between_bytes: int | None = None
        self.reading = True
        self._step_batch: Batch | None = None  # the largest of the steps that are not over, or were not told of
        self.peak_bytes, self._on_device = 0, False
        self._host = HostMeasure()

    @property
    def is_urgent(self) -> bool:
        """Whether the end of this step has to be told: it is read, or its batch is the largest."""
        return self.reading or (self._step_batch is not None and _size(self._step_batch) > _size(self.largest))

    def see(self, batch: Batch | None) -> None:
        """Note that a micro-batch begins."""
        self.batch = batch
        self._step_batch = max(self._step_batch, batch, key=_size)

    def phase_ended(self, phase: str) -> None:
        """Note that a phase has ended."""
        self.ended.add(phase)
        if self.reading:
            self.peak_bytes = max(self.peak_bytes, self._read())

    def step_ended(self) -> None:
        """Note that a step has ended."""
        self.largest, self._step_batch = max(self.largest, self._step_batch, key=_size), None
        if self.reading:
            self.between_bytes = self._read()

    def left_at_peak_bytes(self) -> int | None:
        """Bytes left below this process's own limit at the peak so far; None if either is unknown."""
        limit_bytes = min((limit.limit_bytes for limit in own_limits() if self._host.name in limit.limit), default=None)
        return None if limit_bytes is None or self._on_device or not self.peak_bytes else limit_bytes - self.peak_bytes

    def _read(self) -> int:
        """Bytes in use of the scarce memory: the device's, if there is one."""
        size = gauge_now("allocated_bytes")
        self._on_device = size is not None
        return self._host.read() if size is None else size


def _size(batch: Batch | None) -> int:
    return -1 if batch is None else batch.size
