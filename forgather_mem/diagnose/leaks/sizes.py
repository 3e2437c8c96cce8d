"""The sizes that reveal a leak, read in a few microseconds."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import process as processes

from forgather_mem.system.allocator import current_allocator, gauge
from forgather_mem.system.procfs import PAGE_BYTES, KernelFile

# Expensive readings wait until the resident size, which takes 2 us, has grown: the C library's statistics take 20 us,
# and 200 us with cold caches; counting Python's objects takes as long. While nothing grows they are read every few
# calls, and less often the longer a run lasts.
_ASKED_EVERY, _COUNTED_EVERY, _WORKERS_EVERY = 4, 32, 2
_STRETCHED_AFTER = 60  # calls
_JUDGED_BY = 60  # calls; until then what grows is read at each call
_GROWS_BYTES = 2500.0  # per step: below any reported leak, above what logs and histories take
_SPENT_FRAC = 0.005  # of the time; above it they are read a third as often
# Small Python objects, until a look at the growing ones gives a better figure.
USUAL_BLOCK_BYTES = 80.0


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(  # required by ctypes
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    )  # fmt: skip


class LeakSizes:
    """What this process holds and might leak, in bytes by name; sizes that can't be read are absent.

    - `native`: memory allocated and not freed with the C library's allocator: host tensors, arrays, strings over 512
    bytes, C and C++ objects. Free memory that the allocator keeps is excluded, so fragmentation does not count.
    - `objects`: Python's small objects, by their number.
    - `mapped`: growth since the start of anonymous memory outside the allocator: maps, thread stacks, the arenas of
    Python's objects.
    - `device`, `pinned`: live tensors on the accelerator, and page-locked memory.
    - `workers`: anonymous memory of the data workers; pages that a worker copies only by reading them are excluded.
    """

    def __init__(self) -> None:
        self._statm = KernelFile("/proc/self/statm")
        self._mallinfo = _mallinfo2()
        self._calls = self._step = 0
        self._first: tuple[int, int] | None = None
        self._workers: tuple[int, ...] = ()
        self.workers_changed = False
        self._began_s, self._spent_s = time.perf_counter(), 0.0
        self._asked = _Last()
        self._counted = _Last()
        self._ours: dict[str, float] = {}

    def read(self, step: int) -> dict[str, float]:
        """The sizes that are due at this call, after `step` steps."""
        growth, self._step = _GROWS_BYTES * max(1, step - self._step), step
        calls = self._calls
        self._calls = calls + 1
        values: dict[str, float] = {}
        longer = 1 + calls // _STRETCHED_AFTER
        try:
            fields = self._statm.read(128).split()
        except OSError:  # no /proc
            fields = []
        if fields:
            addresses, anonymous = int(fields[0]) * PAGE_BYTES, (int(fields[1]) - int(fields[2])) * PAGE_BYTES
            began_s = time.perf_counter()
            dear = calls > _JUDGED_BY and self._spent_s > _SPENT_FRAC * (began_s - self._began_s)
            often = 3 if dear else 1
            asks = self._asked.due(calls, longer * _ASKED_EVERY, anonymous, growth, often)
            counts = self._counted.due(calls, longer * _COUNTED_EVERY, anonymous, growth, 2 * often)
            if asks:
                values = self._account(addresses, anonymous)
                self._asked.took(calls, anonymous, growth, values.get("native", 0.0))
            if counts:
                values["objects"] = objects_bytes() - self._ours.get("objects", 0.0)
                self._counted.took(calls, anonymous, growth, values["objects"])
            if asks or counts:
                self._spent_s += time.perf_counter() - began_s
        if not calls % _WORKERS_EVERY:
            values.update(self._of_workers())
        if current_allocator() is not None:
            values.update(_device())
        return values

    def leave_out(self, native: float, objects: float) -> None:
        """Exclude this much of what is counted from now on: it is our own, not the training's."""
        self._ours = {"native": native, "objects": objects}

    def close(self) -> None:
        """Close what is open."""
        self._statm.close()

    def _account(self, addresses: int, anonymous: int) -> dict[str, float]:
        native = {}
        if self._mallinfo is not None:
            found = self._mallinfo()
            native["native"] = float(found.uordblks + found.hblkhd) - self._ours.get("native", 0.0)
            addresses -= found.arena + found.hblkhd
            anonymous -= found.arena + found.hblkhd
        if self._first is None:
            self._first = (addresses, anonymous)
        # Pages touched for the first time but requested long before are not a leak
        mapped = min(addresses - self._first[0], anonymous - self._first[1])
        return {**native, "mapped": float(mapped)}

    def _of_workers(self) -> dict[str, float]:
        children = sorted(child.pid for child in list(getattr(processes, "_children", ())) if child.pid)
        pids = tuple(children)
        self.workers_changed = pids != self._workers
        self._workers = pids
        total = 0
        for pid in pids:
            try:
                with open(f"/proc/{pid}/statm", "rb") as file:
                    fields = file.read(128).split()
            except OSError:  # it has just exited
                continue
            total += (int(fields[1]) - int(fields[2])) * PAGE_BYTES
        return {"workers": float(total)} if pids else {}


class _Last:
    """When an expensive reading was last taken, and whether it grew then."""

    def __init__(self) -> None:
        self._call = -1
        self._resident = self._value = 0.0  # the highest so far: moving up and down is not growth
        self._grows = True

    def due(self, call: int, every: int, resident: float, growth: float, often: int) -> bool:
        """Whether to read: every `every` calls, or every `often` calls while it grows."""
        passed = call - self._call
        if passed < often:
            return False
        return passed >= every or self._grows or resident - self._resident > growth * passed

    def took(self, call: int, resident: float, growth: float, value: float) -> None:
        self._grows = value - self._value > growth * (call - self._call)
        self._call = call
        self._resident, self._value = max(self._resident, resident), max(self._value, value)


def _device() -> dict[str, float]:
    allocator = current_allocator()
    if allocator is None:
        return {}
    allocated = gauge(allocator.stats(), "allocated_bytes")
    values = {} if allocated is None else {"device": float(allocated)}
    module = getattr(sys.modules["torch"], allocator.kind, None)
    pinned = getattr(getattr(module, "memory", None), "host_memory_stats_as_nested_dict", None)
    if pinned is not None:
        stats = pinned()
        current = stats.get("active_bytes", stats.get("allocated_bytes"))
        if isinstance(current, Mapping) and "current" in current:
            values["pinned"] = float(current["current"])
    return values


@functools.cache
def _mallinfo2() -> Callable[[], _Mallinfo] | None:
    """glibc's malloc statistics; None on other systems and with another allocator."""
    if any(name in os.environ.get("LD_PRELOAD", "") for name in ("jemalloc", "tcmalloc", "mimalloc")):
        return None
    call = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if call is None:
        return None
    call.restype, call.argtypes = _Mallinfo, []
    return call  # type: ignore[no-any-return]


def native_bytes() -> float:
    """Bytes currently allocated by the C library; 0 if unknown."""
    account = _mallinfo2()
    found = account() if account is not None else None
    return 0.0 if found is None else float(found.uordblks + found.hblkhd)


def objects_bytes() -> float:
    """Size of Python's small objects, estimated from their number."""
    return sys.getallocatedblocks() * USUAL_BLOCK_BYTES


def allocated_bytes() -> float:
    """Everything currently allocated: by the C library, for Python's small objects, on the accelerator."""
    return native_bytes() + objects_bytes() + sum(_device().values())
