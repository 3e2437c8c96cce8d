"""The memory control groups of this process, and the kills counted by the kernel's out-of-memory killer.

Next to nothing is imported: the waiting parent of `forgather-mem run` looks here too, and has to stay small.
Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the Linux kernel.
"""

from __future__ import annotations

import os

from forgather_mem.errors import missing
from forgather_mem.files import open_regular
from forgather_mem.system.process_start import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_MAX_COUNTERS_BYTES = 2**16
_COUNTERS = {1: "memory.oom_control", 2: "memory.events"}
_SHARED = {1: b"total_shmem", 2: b"shmem"}  # in memory.stat


def memory_groups(proc_root: str = "/proc", cgroup_root: str = "/sys/fs/cgroup") -> Iterator[tuple[str, int]]:
    """This process's memory control group and its visible ancestors, innermost first.

    Yields:
        Folders, which need not exist, and the version of cgroups, 1 or 2.
    """
    lines: list[str] = []
    with missing(OSError), open(f"{proc_root}/self/cgroup", errors="surrogateescape") as file:
        lines = [line for line in file.read().splitlines() if line.count(":") > 1]
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            mount, version = f"{cgroup_root}/memory", 1
        elif number == "0" and not controllers:
            hybrid = f"{cgroup_root}/unified"
            mount, version = hybrid if os.path.isdir(hybrid) else cgroup_root, 2
        else:
            continue
        # In a container the path may be the host's while the mount shows only our own part of the tree:
        # then no folder of that path exists, and the mount's root is the group itself.
        parts = [part for part in path.split("/") if part]
        if ".." not in parts:
            for length in range(len(parts), 0, -1):
                yield "/".join([mount, *parts[:length]]), version
        yield mount, version


def kill_counter(proc_root: str = "/proc", cgroup_root: str = "/sys/fs/cgroup") -> dict[str, Any]:
    """The number of processes in our control group that the out-of-memory killer has ended so far, and its source.

    If no group has such a counter, it is the whole machine's. JSON-able; empty if the kernel counts nothing. Keep it
    and call `kills_since` later, from any process.
    """
    groups = memory_groups(proc_root, cgroup_root)
    files = [(f"{folder}/{_COUNTERS[version]}", "cgroup") for folder, version in groups]
    for file, whose in (*files, (f"{proc_root}/vmstat", "host")):
        if (found := _read(file)) is not None:
            return {**found, "whose": whose, "boot": boot_id(proc_root)}
    return {}


def shared_bytes(proc_root: str = "/proc", cgroup_root: str = "/sys/fs/cgroup") -> int:
    """The shared memory of our control group, whoever has it mapped; 0 where nobody tells."""
    groups = memory_groups(proc_root, cgroup_root)
    told = (_read(f"{folder}/memory.stat", _SHARED[version]) for folder, version in groups)
    return next((int(found["count"]) for found in told if found is not None), 0)


def kills_since(counter: Mapping[str, Any], proc_root: str = "/proc") -> int | None:
    """How many more it has ended since; None if unknown: after a reboot, or if the group no longer exists."""
    if not counter or counter["boot"] != boot_id(proc_root):
        return None
    now = _read(counter["file"])  # whatever a stranger's header names: a regular file, and its number alone is told
    same = now is not None and (counter["whose"] == "host" or now["inode"] == counter["inode"])
    return now["count"] - counter["count"] if now is not None and same else None


def _read(path: str, wanted: bytes = b"oom_kill") -> dict[str, Any] | None:
    with missing(OSError, ValueError), open_regular(path) as file:
        for line in file.read(_MAX_COUNTERS_BYTES).splitlines():
            name, _, value = line.partition(b" ")
            if name == wanted:
                return {"file": path, "inode": os.fstat(file.fileno()).st_ino, "count": int(value)}
    return None
