"""Addresses kept back so that a failure can be told when no memory is left."""

from __future__ import annotations

import mmap

from forgather_mem.system.own_limits import spare_bytes
from forgather_mem.units import MIB

RESERVE_BYTES = 8 * MIB
# Less is of little use: telling a failure takes 1 to 2 MiB where pages of the heap are free, and up to 8 where none is
_LEAST_BYTES = 4 * MIB


class Reserve:
    """Address space that is released when memory has run out; nothing is stored in it, so it takes no memory.

    Below a limit of this process on addresses it is taken from the training. So it is a small part of what such a
    limit leaves, or nothing.

    Attributes:
        size_bytes: How much is held.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._addresses: mmap.mmap | None = None

    def take(self, most_bytes: float | None = None) -> None:
        """Hold 8 MiB instead of what was held, or what may be taken of it, if that is not too little.

        Args:
            most_bytes: What may be taken; None for what is little of the room that is left now.
        """
        self.release()
        size_bytes = int(min(RESERVE_BYTES, spare_bytes() if most_bytes is None else most_bytes))
        if size_bytes < _LEAST_BYTES:
            return
        try:
            self._addresses = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:  # another limit, as on the number of mappings
            return
        self.size_bytes = size_bytes

    def release(self) -> None:
        """Give it back. Idempotent."""
        addresses, self._addresses, self.size_bytes = self._addresses, None, 0
        if addresses is not None:
            addresses.close()
