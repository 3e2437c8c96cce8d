"""The sizes that reveal a leak, read in a few microseconds."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import process as processes
from pathlib import Path

from forgather_mem.errors import missing, ours
from forgather_mem.growth.trend import GROWTH, Series
from forgather_mem.probes.workers import Children, inherited_bytes, is_data_worker
from forgather_mem.system.allocator import current_allocator, gauge
from forgather_mem.system.native_heap import allocated_natively_bytes, beyond_heap_bytes, mallinfo2
from forgather_mem.system.procfs import PAGE_BYTES, KernelFile, anonymous_bytes, child_pids, kib_fields, read_once
from forgather_mem.system.time_budget import BUDGET_FRAC, PREPARATION, TimeBudget
from forgather_mem.units import MIB, format_bytes


class ReadingPace:
    """How often expensive sizes are read. Set on the scripts of `tests/leaks/zoo`, at what a reading costs.

    The C library's statistics take 20 us, and 200 us with cold caches; shared memory and counting Python's objects take
    as long. They are read together, as often as a fraction of the time allows, and at each of the first calls.

    Attributes:
        spent_frac: Of the time. With so much all 28 leaks of the zoo are found, as they are with 0.005.
        seen_frac: Of the calls so far: after so many more they are read whatever they cost, so that a run of short
            steps is judged from its first ones: 42 readings in 240 steps, with which the zoo's 28 leaks are found.
        workers_every, found_every: Calls between readings of workers, and between looks for new children.
    """

    spent_frac = 0.002
    seen_frac = 1 / 16
    workers_every = 2
    found_every = 32


# Small Python objects, until a look at the growing ones gives a better figure.
USUAL_BLOCK_BYTES = 80.0


class LeakSizes:
    """What this process holds and might leak, in bytes by name; sizes that can't be read are absent.

    - `native`: memory allocated and not freed with the C library's allocator: host tensors, arrays, strings over 512
    bytes, C and C++ objects. Free memory that the allocator keeps is excluded, so fragmentation does not count.
    - `objects`: Python's small objects, by their number.
    - `mapped`: growth since the start of anonymous memory outside the allocator: maps, thread stacks, the arenas of
    Python's objects.
    - `shared`: growth since the start of shared memory that this process maps and has touched: batches of data workers.
    Pages of files mapped long before (a data set in /dev/shm) are excluded.
    - `device`, `pinned`: live tensors on the accelerator, and page-locked memory.
    - `workers`: anonymous memory of the data workers; pages that a worker copies only by reading them are excluded
    (`CopiedPages`). Children that run no loop of a torch DataLoader are none.

    Attributes:
        totals: What was read last of the sums in which these sizes are contained, by the names in `verdict.TOTALS`, and
            `kept`: free memory that the C library's allocator keeps. Each is read once.
        copied: What data workers copy of the pages that they share with this process.
    """

    def __init__(self) -> None:
        self._statm, self._mallinfo = KernelFile("/proc/self/statm"), mallinfo2()
        self._calls = self._asked_at = 0
        self._first: tuple[int, ...] | None = None
        self._of_files, self._shmem = -1, 0
        self.totals: dict[str, float] = {}
        self._workers: tuple[int, ...] = ()
        self._shared_bytes: dict[int, int] = {}  # with each worker: more workers are growth, what they share is none
        self.copied = CopiedPages()
        self._others: tuple[str, ...] = ()
        self._found_at, self.others_changed = -ReadingPace.found_every, False
        self.workers_changed = False
        self._budget = TimeBudget(0.0, budget_frac=ReadingPace.spent_frac)
        self._ours = [0.0] * 4  # native and Python's bytes, the process's, and of these the mapped ones

    def read(self, step: int) -> dict[str, float]:
        """The sizes that are due at this call, after `step` steps."""
        calls = self._calls
        self._calls = calls + 1
        values: dict[str, float] = {}
        self.totals, self.workers_changed, self.others_changed = {}, False, False
        if calls - self._asked_at >= int(calls * ReadingPace.seen_frac) or self._budget.due():
            self._asked_at = calls
            began_s = time.perf_counter()
            with missing(OSError):  # no /proc
                values = self._account()
            self._read_other_children(calls)
            self._budget.ran(time.perf_counter() - began_s)
        if not calls % ReadingPace.workers_every:
            values.update(self._of_workers())
            if self._workers:
                self.copied.read(step)
        on_device, reserved = _device()
        self.totals |= {} if reserved is None else {"reserved": reserved}
        return values | on_device

    def leave_out(self, before: tuple[float, float, float, float]) -> None:
        """Exclude from now on what `counted_bytes` has gained since `before`: it is ours, not the training's."""
        more = [now - then for now, then in zip(counted_bytes(), before, strict=True)]
        self._ours = [ours + own for ours, own in zip(self._ours, more, strict=True)]
        PREPARATION.resident_bytes += round(more[2])

    def close(self) -> None:
        """Close what is open."""
        self._statm.close()

    def _account(self) -> dict[str, float]:
        """What this process has allocated itself."""
        addresses, resident, of_files = (int(pages) * PAGE_BYTES for pages in self._statm.read(128).split()[:3])
        if of_files != self._of_files:  # shared memory is part of it; to ask for that alone takes 40 us
            self._of_files = of_files
            self._shmem = kib_fields(read_once("/proc/self/status")).get(b"RssShmem", 0)
        anonymous, shmem = resident - of_files, self._shmem
        values = {"objects": objects_bytes() - self._ours[1]}
        whole = (addresses, anonymous + shmem)
        if self._mallinfo is not None:
            found = self._mallinfo()
            values["native"] = float(found.uordblks + found.hblkhd) - self._ours[0]
            self.totals["kept"] = float(found.fordblks)
            addresses -= found.arena + found.hblkhd
            anonymous -= found.arena + found.hblkhd
        now = (addresses, anonymous, shmem, *whole)
        if self._first is None:
            self._first = now
        # Pages touched for the first time but requested long before are not a leak
        requested, touched, shared, *grown = (size - first for size, first in zip(now, self._first, strict=True))
        self.totals["process"] = min(grown) - self._ours[2]
        with missing(OSError):  # a system without /dev/shm
            self.totals["/dev/shm"] = float(shutil.disk_usage("/dev/shm").used)
        return {**values, "mapped": min(requested, touched) - self._ours[3], "shared": float(min(requested, shared))}

    def _of_workers(self) -> dict[str, float]:
        children = sorted(child.pid for child in list(getattr(processes, "_children", ())) if child.pid)
        pids = tuple(pid for pid in children if pid in self._workers or is_data_worker(Path(f"/proc/{pid}")))
        self.workers_changed = not set(self._workers) <= set(pids)  # more of them are growth
        more = bool(self._workers) and len(pids) > len(self._workers)
        self._workers = pids
        self._shared_bytes = {pid: size for pid, size in self._shared_bytes.items() if pid in pids}
        total = 0
        for pid in pids:
            process = Path(f"/proc/{pid}")
            with missing(OSError):  # it has just exited
                anonymous = anonymous_bytes(process)
                if pid not in self._shared_bytes:  # it will copy as much as those before it; to ask takes 20 ms a GiB
                    copied = self.copied.each_bytes if more else 0
                    self._shared_bytes[pid] = inherited_bytes(process, Path("/proc/self")) - copied
                total += max(0, anonymous - self._shared_bytes[pid])
        return {"workers": float(total)} if pids else {}

    def _read_other_children(self, calls: int) -> None:
        """Read the anonymous memory of the children that are no data workers, and now and then look for new ones."""
        if calls >= self._found_at + ReadingPace.found_every:
            others = tuple(pid for pid in child_pids() if int(pid) not in self._workers)
            self.others_changed, self._others, self._found_at = others != self._others, others, calls
        try:
            if self._others:
                self.totals["children"] = float(sum(anonymous_bytes(Path("/proc") / pid) for pid in self._others))
        except ours(OSError):  # one has just exited: the others are found anew
            self._found_at = -ReadingPace.found_every


def _device() -> tuple[dict[str, float], float | None]:
    """The sizes on the device, and what its allocator holds with what it keeps free."""
    allocator = current_allocator()
    if allocator is None:
        return {}, None
    statistics = allocator.stats()
    allocated, reserved = gauge(statistics, "allocated_bytes"), gauge(statistics, "reserved_bytes")
    values = {} if allocated is None else {"device": float(allocated)}
    module = getattr(sys.modules["torch"], allocator.kind, None)
    pinned = getattr(getattr(module, "memory", None), "host_memory_stats_as_nested_dict", None)
    if pinned is not None:
        stats = pinned()
        current = stats.get("active_bytes", stats.get("allocated_bytes"))
        if isinstance(current, Mapping) and "current" in current:
            values["pinned"] = float(current["current"])
    return values, reserved


def objects_bytes() -> float:
    """Size of Python's small objects, estimated from their number."""
    return sys.getallocatedblocks() * USUAL_BLOCK_BYTES


def counted_bytes() -> tuple[float, float, float, float]:
    """What the C library has allocated, and for Python's small objects; what the process has, and beyond the heap."""
    own = anonymous_bytes(Path("/proc/self"))
    return allocated_natively_bytes() or 0.0, objects_bytes(), own, beyond_heap_bytes(own)


def large_bytes() -> float:
    """What is allocated by the C library and on the accelerator: all but Python's small objects."""
    return (allocated_natively_bytes() or 0.0) + sum(_device()[0].values())


class CopyLimits:
    """When copied pages are told.

    Attributes:
        early: So many readings come soon, in `early_frac` of the time.
        fewest_points: Of fewer nothing is said.
        least_bytes: In the later half: what is imported and called for the first time copies pages, too.
    """

    early = 10
    fewest_points = 5
    least_bytes = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What the data workers have copied of the pages they inherited.

    Attributes:
        per_step: Growth in the later half of what was seen, in bytes a step of all workers together.
        bytes: So much is copied now.
        most_bytes: So much is still shared and can be copied, all workers together.
        num_workers: Number of workers.
        since_step: The step at which they were first seen.
    """

    per_step: float
    bytes: int
    most_bytes: int
    num_workers: int
    since_step: int

    def why(self, by_reading: bool) -> str:
        """What happens, in words: only `by_reading`, or perhaps as new objects get memory that was free at the fork.

        >>> Copied(per_step=4e5, bytes=9 * MIB, most_bytes=90 * MIB, num_workers=2, since_step=8).why(True)[-61:]
        'written: 390.6 KiB a step, at most 90.0 MiB more in 2 workers'
        """
        many = f"{self.num_workers} worker{'s' * (self.num_workers != 1)}"
        why = "data workers copy pages they share with the main process as reference counts are written"
        why += "" if by_reading else ", or as what they keep is put where memory was free"
        return f"{why}: {format_bytes(self.per_step)} a step, at most {format_bytes(self.most_bytes)} more in {many}"


class CopiedPages:
    """Reads what one data worker has copied, for all of them: 0.2 ms, plus 10 to 30 ms a GiB, within a time budget.

    Attributes:
        each_bytes: What the worker that was read last had copied.
    """

    def __init__(self, every_s: float = 0.25, early_frac: float = 0.05) -> None:
        # The first readings come soon, in this fraction of the time, so that a run of a minute is judged, too
        self._pace = TimeBudget(every_s, budget_frac=early_frac)
        self._readings = 0
        self._children = Children()
        self._workers: tuple[str, ...] = ()
        self._series, self._shared_bytes = Series(), 0
        self.each_bytes = 0
        self._ended: Copied | None = None

    def read(self, step: int) -> None:
        """Read, if it is due and there are workers."""
        self._pace.take(self._read, step)
        if self._readings == CopyLimits.early:
            self._pace.budget_frac = BUDGET_FRAC

    def read_last(self, step: int) -> None:
        """Read once more at the end, whatever it costs: on a busy machine the budget has left out the later part."""
        if self._series.points and self._series.points[-1][0] < step:
            self._read(step)

    def found(self) -> Copied | None:
        """What the workers copy step by step; of workers that have ended, if that is what was seen longest."""
        return self._judged() or self._ended

    def _read(self, step: int) -> dict[str, float]:
        self._readings += 1
        worker, pids = self._children.one_worker()
        if pids != self._workers:  # a new pass: new workers have copied nothing yet
            self._ended = self._judged() or self._ended
            self._workers, self._series = pids, Series()
        if worker is not None:
            self._series.add(step, len(pids) * worker.copied_bytes)
            self._shared_bytes = len(pids) * worker.shared_bytes
            self.each_bytes = worker.copied_bytes
        return {}

    def _judged(self) -> Copied | None:
        points = self._series.points
        if len(points) < CopyLimits.fewest_points:
            return None
        step, half = points[-1][0], points[len(points) // 2]
        grown = points[-1][1] - half[1]
        if step <= half[0] or grown < max(CopyLimits.least_bytes, 4 * GROWTH.floor_bytes * (step - half[0])):
            return None
        return Copied(
            per_step=grown / (step - half[0]), bytes=int(points[-1][1]), most_bytes=self._shared_bytes,
            num_workers=len(self._workers), since_step=points[0][0],
        )  # fmt: skip
