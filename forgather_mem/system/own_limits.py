"""The limits of this process alone, RLIMIT_AS and RLIMIT_DATA, and what we may set aside below them.

They count addresses, whether written or not: what is set aside is taken from the training.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import NamedTuple

from forgather_mem.errors import missing, ours
from forgather_mem.system.installed import installed
from forgather_mem.system.procfs import kib_fields

resource = installed("resource")
_OWN = Path("/proc/self")
# What the training will take is not known when it begins: of what is left then, watching sets little aside.
_SPARE_FRAC = 1 / 16
# Telling a failure takes 1 to 2 MiB where the heap has free pages, and up to 8 where it has none: less is of little use
_LEAST_RESERVE_FRAC = 1 / 2


class Bound(NamedTuple):
    """One limit, and what counts against it now.

    Attributes:
        name: "host"; "container" for the innermost group's limit; any other by its file, and its group if that is an
            outer one: "container (memory.high)", "container (memory.max of /pod)"; "data (RLIMIT_DATA)".
        limit_bytes: The limit.
        used_bytes: What counts against it; of a group or the machine, of all processes.
    """

    name: str
    limit_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """What is left below the limit."""
        return max(0, self.limit_bytes - self.used_bytes)


def own_limits(own: Path = _OWN) -> list[Bound]:
    """Those that are set.

    Args:
        own: Where the kernel tells of this process; for tests.

    Raises:
        OSError: if a limit is set and there is no /proc.
    """
    limits = (
        ("address space (RLIMIT_AS)", b"VmSize", resource.getrlimit(resource.RLIMIT_AS)[0]),
        ("data (RLIMIT_DATA)", b"VmData", resource.getrlimit(resource.RLIMIT_DATA)[0]),
    )
    are_set = [limit for limit in limits if limit[-1] != resource.RLIM_INFINITY]
    used = kib_fields((own / "status").read_bytes()) if are_set else {}
    return [Bound(name, limit_bytes, used[field]) for name, field, limit_bytes in are_set]


def raise_own_limits() -> None:
    """Raise them as far as this process may, as to plan a training, which needs none of what it plans."""
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        resource.setrlimit(limit, (resource.getrlimit(limit)[1],) * 2)


def spare_bytes() -> float:
    """What may be set aside at the beginning: little of what the tightest limit leaves; infinite without a limit."""
    with missing(OSError):
        return min((_SPARE_FRAC * limit.free_bytes for limit in own_limits()), default=math.inf)
    return 0.0


class Reserve:
    """Address space that is released when memory has run out, so that the failure can be told.

    Nothing is stored in it, so it takes no memory. Below a limit of this process it is a small part of what is left, or
    nothing.

    Args:
        most_bytes: How much is held where no limit is near.

    Attributes:
        size_bytes: How much is held.
    """

    def __init__(self, most_bytes: int) -> None:
        self.size_bytes = 0
        self._most_bytes = most_bytes
        self._addresses: mmap.mmap | None = None

    def take(self, allowed_bytes: float | None = None) -> None:
        """Hold as much as may be taken, if that is not too little, instead of what was held.

        Args:
            allowed_bytes: What may be taken; None for what can be spared of the room that is left now.
        """
        self.release()
        size_bytes = int(min(self._most_bytes, spare_bytes() if allowed_bytes is None else allowed_bytes))
        if size_bytes < _LEAST_RESERVE_FRAC * self._most_bytes:
            return
        try:
            self._addresses = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except ours(OSError):  # another limit, as on the number of mappings
            return
        self.size_bytes = size_bytes

    def release(self) -> None:
        """Give it back. Idempotent."""
        addresses, self._addresses, self.size_bytes = self._addresses, None, 0
        if addresses is not None:
            addresses.close()
