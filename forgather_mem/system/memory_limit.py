"""The memory limit that applies to this process, and how much of it is used.

In a container the limit of its control group applies, not the host's total. Supports cgroup v1 and v2, alone, mixed and
nested: the limit is the smallest of all ancestors. Page cache that can be dropped immediately (`inactive_file`) does
not count as used. Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the Linux kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forgather_mem.system.cgroups import memory_groups
from forgather_mem.system.procfs import KernelFile, kib_fields


@dataclass(frozen=True, slots=True)
class _Version:
    """The file names of one version of cgroups."""

    limit: str
    usage: str
    droppable: bytes


_VERSIONS = {
    1: _Version("memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file "),
    2: _Version("memory.max", "memory.current", b"inactive_file "),
}


class MemoryLimit:
    """The limit that applies, found once, and its current usage.

    Attributes:
        limit_bytes: The smallest limit of all ancestors; the host's total if none is smaller.
        kind: The source of that limit.
        pressure: The pressure (PSI) file of the same level, which may not exist.
    """

    def __init__(self, proc_root: str | Path = "/proc", cgroup_root: str | Path = "/sys/fs/cgroup") -> None:
        self._meminfo = KernelFile(Path(proc_root) / "meminfo")
        self._usage = self._stat = self._meminfo
        self._droppable = b""
        self.limit_bytes = kib_fields(self._meminfo.read(256))[b"MemTotal"]
        self.kind: Literal["cgroup", "host"] = "host"
        pressure = Path(proc_root) / "pressure" / "memory"
        for name, number in memory_groups(str(proc_root), str(cgroup_root)):
            folder, version = Path(name), _VERSIONS[number]
            limit = _number(folder / version.limit)
            # On a tie the outer level counts: its usage includes what its other members use.
            if limit is None or limit > self.limit_bytes:
                continue
            self.limit_bytes, self.kind = limit, "cgroup"
            self._usage = KernelFile(folder / version.usage)
            self._stat = KernelFile(folder / "memory.stat")
            self._droppable = version.droppable
            if (folder / "memory.pressure").exists():
                pressure = folder / "memory.pressure"
        self.pressure = KernelFile(pressure)

    def used_bytes(self) -> int:
        """What currently counts against the limit; takes 15 us."""
        if self.kind == "host":
            head = self._meminfo.read(256)  # MemTotal, MemFree, MemAvailable, ...
            return self.limit_bytes - kib_fields(head)[b"MemAvailable"]
        usage = int(self._usage.read(64))
        for line in self._stat.read(16384).splitlines():
            if line.startswith(self._droppable):
                return max(0, usage - int(line[len(self._droppable) :]))
        return usage

    def close(self) -> None:
        """Close the descriptors."""
        for file in (self._meminfo, self._usage, self._stat, self.pressure):
            file.close()


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such level, or "max"
        return None
