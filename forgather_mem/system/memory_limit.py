"""The limits on memory: those of this process's control groups, the machine's memory, and those of this process alone.

Each level of the tree of control groups has its own limits, and all of them hold at once. What is left is the least
that any of them leaves; that need not be the smallest limit, since each level counts what all its members use.
Supports cgroup v1 and v2, alone, mixed and nested. Page cache that can be dropped immediately (`inactive_file`) does
not count as used. Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the Linux kernel.

A swap limit of v2 (`memory.swap.max`) bounds no memory: where swap is full or forbidden, pages stay in memory and count
there. v1's `memory.memsw` bounds the sum of both.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from forgather_mem.errors import missing
from forgather_mem.system.cgroups import memory_groups
from forgather_mem.system.installed import installed
from forgather_mem.system.procfs import kib_fields, read_once

# ---- the limits of this process alone, RLIMIT_AS and RLIMIT_DATA, and what we may set aside below them ----
# They count addresses, whether written or not: what is set aside is taken from the training.

resource = installed("resource")
_OWN = Path("/proc/self")
# What the training will take is not known when it begins: of what is left then, watching sets little aside.
_SPARE_FRAC = 1 / 16
# Telling a failure takes 1 to 2 MiB where the heap has free pages, and up to 8 where it has none: less is of little use
_LEAST_RESERVE_FRAC = 1 / 2


class Room(NamedTuple):
    """One limit on one kind of memory, and what counts against it now.

    Attributes:
        limit: Its source: "host"; "container" for the innermost group's limit; any other by its file, and its group if
            that is an outer one: "container (memory.high)", "container (memory.max of /pod)"; "data (RLIMIT_DATA)";
            "GPU 0".
        limit_bytes: The limit; of a device what this process could have.
        used_bytes: What counts against it; of a group or the machine, of all processes; of a device what is in tensors.
        where: Which memory: the host's or a device's.
        passing_bytes: What a step takes on top of `used_bytes` and gives back; known for devices only.
        num_ranks: How many processes of this training share what is left, as far as their launcher tells.
    """

    limit: str
    limit_bytes: int
    used_bytes: int
    where: Literal["host", "device"] = "host"
    passing_bytes: int = 0
    num_ranks: int = 1

    @property
    def free_bytes(self) -> int:
        """What is left below the limit."""
        return max(0, self.limit_bytes - self.used_bytes)

    @property
    def lasting_bytes(self) -> int:
        """How much more can be kept from step to step: what is left at the peak of a step."""
        return max(0, self.free_bytes - self.passing_bytes)


def own_limits(own: Path = _OWN) -> list[Room]:
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
    return [Room(name, limit_bytes, used[field]) for name, field, limit_bytes in are_set]


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
        if size_bytes >= _LEAST_RESERVE_FRAC * self._most_bytes:
            with missing(OSError):  # another limit, as on the number of mappings
                self._addresses = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                self.size_bytes = size_bytes

    def release(self) -> None:
        """Give it back. Idempotent."""
        addresses, self._addresses, self.size_bytes = self._addresses, None, 0
        if addresses is not None:
            addresses.close()


class _Kind(NamedTuple):
    """A limit of one version of cgroups: its file, what counts against it, and whether the kernel kills there."""

    file: str
    usage: str
    kills: bool


_KINDS = {
    1: (
        _Kind("memory.limit_in_bytes", "memory.usage_in_bytes", True),
        _Kind("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", False),
    ),
    2: (
        _Kind("memory.max", "memory.current", True),
        _Kind("memory.high", "memory.current", False),  # above it, processes are slowed down until they stand still
    ),
}
# What the kernel drops before it kills, and first what it drops at once; of v1 slabs are counted elsewhere
_CACHE = {
    1: (b"total_inactive_file ", b"total_active_file "),
    2: (b"inactive_file ", b"active_file ", b"slab_reclaimable "),
}
# A container's v1 shows no outer group, but the smallest limit of all of them.
_OF_ALL_GROUPS = b"hierarchical_memory_limit "
_NEAR_BYTES = 6 * 2**20  # looking into a failure was seen to take 4 MiB, half of it for what is loaded then
_UNLIMITED = 2**62  # v1 writes "no limit" as the largest number of whole pages


class _Limit(NamedTuple):
    """A limit of a control group, with the files that tell its use."""

    name: str
    limit_bytes: int
    kills: bool
    usage: Path
    stat: Path
    version: int

    def room(self, num_dropped: int | None) -> Room:
        """Without so many of the `_CACHE`; None for all. Raises OSError if the group no longer exists."""
        used = int(read_once(self.usage))
        used -= sum(_field(self.stat, name) or 0 for name in _CACHE[self.version][:num_dropped])
        return Room(self.name, self.limit_bytes, max(0, used))


class MemoryLimit:
    """All limits that apply, found once, and what counts against them.

    Attributes:
        limit_bytes: The smallest limit at which the kernel kills: of all groups, or the host's total.
        kind: The source of that limit.
        proc: Where the kernel's files are.
        pressure: The pressure (PSI) file of the same level, which may not exist.
    """

    def __init__(self, proc_root: str | Path = "/proc", cgroup_root: str | Path = "/sys/fs/cgroup") -> None:
        self.proc = Path(proc_root)
        self._meminfo = self.proc / "meminfo"
        self.limit_bytes = kib_fields(read_once(self._meminfo, 256))[b"MemTotal"]
        self.kind: Literal["cgroup", "host"] = "host"
        self._strict = _number(self.proc / "sys" / "vm" / "overcommit_memory") == 2
        self._limits = _limits(str(proc_root), str(cgroup_root))
        self.pressure = self.proc / "pressure" / "memory"
        for limit in self._limits:
            # Of two equal limits the outer one counts: its members wait for each other.
            if limit.kills and limit.limit_bytes <= self.limit_bytes:
                self.limit_bytes, self.kind = limit.limit_bytes, "cgroup"
                beside = limit.usage.with_name("memory.pressure")
                self.pressure = beside if beside.exists() else self.pressure

    def rooms(self) -> list[Room]:
        """Every limit with its current use, the one that leaves the least first; takes 30 us for each limit."""
        found = list(_known(self._limits, num_dropped=1))
        # MemTotal, MemFree and MemAvailable come first
        fields = kib_fields(read_once(self._meminfo, 4096 if self._strict else 256))
        if b"MemAvailable" in fields:
            found.append(Room("host", fields[b"MemTotal"], fields[b"MemTotal"] - fields[b"MemAvailable"]))
        if self._strict and b"Committed_AS" in fields:  # the machine promises no more memory than it can back
            found.append(Room("host (overcommit_memory=2)", fields[b"CommitLimit"], fields[b"Committed_AS"]))
        return sorted(found, key=lambda room: room.free_bytes)

    def deadliest(self) -> Room | None:
        """The limit nearest to the kernel's killing, before which it drops its caches; None without groups."""
        found = _known((limit for limit in self._limits if limit.kills), num_dropped=None)
        return min(found, key=lambda room: room.free_bytes, default=None)


def near_a_kill(soon_bytes: int = 0) -> Room | None:
    """The group's limit at which the kernel may kill if much is loaded and read now; None if there is room.

    Args:
        soon_bytes: What will be taken beside it.
    """
    with missing(OSError, KeyError):
        limit = MemoryLimit().deadliest()
        return limit if limit is not None and limit.free_bytes - soon_bytes < _NEAR_BYTES else None
    return None


class LimitFacts(NamedTuple):
    """The limit that applies, in bytes, and its source: "cgroup", "host", or a process's own, as "RLIMIT_DATA"."""

    limit_bytes: int = 0
    limit_kind: str = "host"


def limit_facts(*, shared: bool = False) -> LimitFacts:
    """The smallest limit, or one of this process alone if that leaves less now; 0 without /proc.

    Args:
        shared: Only what other processes count against, too.
    """
    with missing(OSError, KeyError):
        limit = MemoryLimit()
        own = min(() if shared else own_limits(), key=lambda room: room.free_bytes, default=None)
        if own is not None and own.free_bytes < limit.rooms()[0].free_bytes:
            return LimitFacts(own.limit_bytes, own.limit.partition("(")[2].rstrip(")"))
        return LimitFacts(limit.limit_bytes, limit.kind)
    return LimitFacts()


def _known(limits: Iterable[_Limit], num_dropped: int | None) -> Iterator[Room]:
    """Of groups that still exist."""
    for limit in limits:
        with missing(OSError):
            yield limit.room(num_dropped)


def _limits(proc_root: str, cgroup_root: str) -> list[_Limit]:
    """The limits of all groups, innermost first."""
    found: list[_Limit] = []
    outer: list[_Limit] = []  # shown or not; only this one's use of it is known
    for name, version in memory_groups(proc_root, cgroup_root):
        folder = Path(name)
        of = f" of {name.removeprefix(cgroup_root)}" if found else ""
        for kind in _KINDS[version]:
            limit = _number(folder / kind.file)
            if limit is not None and limit < _UNLIMITED:
                label = f"container ({kind.file}{of})" if of or not kind.kills else "container"
                found.append(_Limit(label, limit, kind.kills, folder / kind.usage, folder / "memory.stat", version))
        stat, usage = folder / "memory.stat", folder / "memory.usage_in_bytes"
        limit = _field(stat, _OF_ALL_GROUPS) if version == 1 and not outer else None
        if limit is not None:
            outer.append(_Limit("container (of an outer group)", limit, True, usage, stat, 1))
    shown = min((limit.limit_bytes for limit in found if limit.kills), default=_UNLIMITED)
    return found + [limit for limit in outer if limit.limit_bytes < shown]


def _field(file: Path, name: bytes) -> int | None:
    """The number behind this name at the beginning of a line; None if there is no such line or file."""
    with missing(OSError):
        for line in read_once(file, 16384).splitlines():
            if line.startswith(name):
                return int(line[len(name) :])
    return None


def _number(file: Path) -> int | None:
    with missing(OSError, ValueError):  # no such level, or "max"
        return int(file.read_text())
    return None
