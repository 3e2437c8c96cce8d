"""The limits of this process alone, RLIMIT_AS and RLIMIT_DATA: they count addresses, whether written or not."""

from __future__ import annotations

import math
import resource
from pathlib import Path
from typing import NamedTuple

from forgather_mem.system.procfs import PAGE_BYTES, kib_fields

_OWN = Path("/proc/self")
# What the training will take is not known when it begins: of what is left then, watching sets little aside.
_SPARE_FRAC = 1 / 16
_USUAL_STACK_BYTES, _ARENA_BYTES = 8 * 2**20, 64 * 2**20  # of a thread, with glibc


class OwnLimit(NamedTuple):
    """One of them, and what counts against it now."""

    name: str
    limit_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """What is left below the limit."""
        return max(0, self.limit_bytes - self.used_bytes)


def own_limits(own: Path = _OWN) -> list[OwnLimit]:
    """Those that are set.

    Args:
        own: Where the kernel tells of this process; for tests.

    Raises:
        OSError: if a limit is set and there is no /proc.
    """
    found = []
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes != resource.RLIM_INFINITY:
        used_bytes = int((own / "statm").read_bytes().split()[0]) * PAGE_BYTES
        found.append(OwnLimit("address space (RLIMIT_AS)", limit_bytes, used_bytes))
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes != resource.RLIM_INFINITY:
        used_bytes = kib_fields((own / "status").read_bytes())[b"VmData"]
        found.append(OwnLimit("data (RLIMIT_DATA)", limit_bytes, used_bytes))
    return found


def spare_bytes() -> float:
    """What may be set aside at the beginning: little of what the tightest limit leaves; infinite without a limit."""
    try:
        return min((_SPARE_FRAC * limit.free_bytes for limit in own_limits()), default=math.inf)
    except OSError:
        return 0.0


def may_start_a_thread() -> bool:
    """Whether the addresses of one more thread are little of what these limits leave.

    glibc reserves some for what the thread will allocate; they become data only when they are used.
    """
    try:
        limits = own_limits()
    except OSError:
        return False
    return all(_thread_bytes(limit) <= _SPARE_FRAC * limit.free_bytes for limit in limits)


def _thread_bytes(limit: OwnLimit) -> int:
    stack_bytes, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if stack_bytes == resource.RLIM_INFINITY:
        stack_bytes = _USUAL_STACK_BYTES
    return stack_bytes + (_ARENA_BYTES if "RLIMIT_AS" in limit.name else 0)
