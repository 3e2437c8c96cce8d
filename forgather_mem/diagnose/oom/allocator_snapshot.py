"""Writes a snapshot of a device's allocator for PyTorch's memory viewer, limited in size and time."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from forgather_mem.errors import missing, ours
from forgather_mem.files import make_real_folder, new_file, remove_real
from forgather_mem.system.allocator import History, current_allocator
from forgather_mem.units import MIB


@dataclass
class Snapshot:
    """Records a device's allocations from `start` on; `write` gives a file for https://pytorch.org/memory_viz.

    Does nothing without a device in use whose allocations torch can record (CUDA, ROCm). A recording that is already
    running is used and left running.

    Args:
        max_entries: Number of allocations and frees to remember.
        max_mb: A larger file is deleted.
        max_s: Writing is abandoned after this time.
    """

    max_entries: int = 100_000
    max_mb: int = 200
    max_s: float = 20.0
    _started: History | None = field(default=None, init=False)

    def start(self) -> None:
        """Start recording."""
        history = _history()
        if history is not None and not history.is_recording():
            history.start(self.max_entries)
            self._started = history

    def write(self, folder: Path, rank: int) -> str | None:
        """Write `snapshot.rank{r}.pickle` and return its path; None if there is nothing, or too much, to write."""
        history = _history()
        if history is None or not history.is_recording():
            return None
        path = folder / f"snapshot.rank{rank}.pickle"
        try:
            make_real_folder(folder)
            with new_file(path, through_links=False) as file:
                pickle.Pickler(_Bounded(file, self.max_mb * MIB, self.max_s), protocol=4).dump(history.snapshot())
        except ours(OSError, MemoryError):
            with missing(OSError):
                remove_real(path)
            return None
        return str(path)

    def stop(self) -> None:
        """Stop recording, if we started it."""
        if self._started is not None:
            self._started.stop()
        self._started = None


class _Bounded:
    """A file that accepts a limited number of bytes for a limited time."""

    def __init__(self, file: IO[bytes], max_bytes: int, max_s: float) -> None:
        self._file, self._left_bytes = file, max_bytes
        self._until_s = time.perf_counter() + max_s

    def write(self, data: bytes) -> int:
        self._left_bytes -= len(data)
        if self._left_bytes < 0 or time.perf_counter() > self._until_s:
            raise OSError("the limit on size or time is reached")
        return int(self._file.write(data))


def _history() -> History | None:
    allocator = current_allocator()
    return None if allocator is None else allocator.history
