"""Which sizes tell of a leak, and how are they read in a few microseconds?"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import process as processes

from forgather_mem.probes.allocator import current_allocator, gauge
from forgather_mem.probes.procfs import PAGE_BYTES, KernelFile

# What is dear waits until the resident size, which takes 2 us, has grown: the C library's account takes 20 us and,
# from memory that is in no cache, 200; counting Python's objects as much. While nothing grows they are asked at every
# so many calls, and the longer a run the more rarely.
_ASKED_EVERY, _COUNTED_EVERY, _WORKERS_EVERY = 4, 16, 2
_STRETCHED_AFTER = 100  # calls
_GROWS_BYTES = 4096.0  # a call
_DEAR_S = 2e-3
# Small Python objects, until a look at the growing ones tells better.
USUAL_BLOCK_BYTES = 80.0


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(  # ctypes wants it so
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    )  # fmt: skip


class LeakSizes:
    """What this process holds and might leak, in bytes by name; what can't be read is absent.

    - `native`: what is allocated and not freed with the C library's allocator: tensors on the host, arrays, texts of
      over 512 bytes, what C and C++ keep. Not what it keeps for later use, so a heap in pieces does not count.
    - `objects`: Python's small objects, by their number.
    - `mapped`: how much more than at first there is of anonymous memory that the allocator does not know of: maps,
      stacks of threads, the arenas of Python's objects.
    - `device`, `pinned`: live tensors on the accelerator, and page-locked memory.
    - `workers`: anonymous memory of the data workers; pages that a worker copies because it reads them do not count.
    """

    def __init__(self) -> None:
        self._statm = KernelFile("/proc/self/statm")
        self._mallinfo = _mallinfo2()
        self._calls = 0
        self._first: tuple[int, int] | None = None
        self._workers: tuple[int, ...] = ()
        self.workers_changed = False
        self._dear = 0  # times that the account took long
        self._asked = _Last()
        self._counted = _Last()

    def read(self) -> dict[str, float]:
        """The sizes that are due at this call."""
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
            every = longer * _ASKED_EVERY * (8 if self._dear >= 3 else 1)
            if self._asked.due(calls, every, anonymous):
                values = self._account(addresses, anonymous)
                self._asked.took(calls, anonymous, values.get("native", 0.0))
            if self._counted.due(calls, longer * _COUNTED_EVERY, anonymous):
                values["objects"] = sys.getallocatedblocks() * USUAL_BLOCK_BYTES
                self._counted.took(calls, anonymous, values["objects"])
        if not calls % _WORKERS_EVERY:
            values.update(self._of_workers())
        if current_allocator() is not None:
            values.update(_device())
        return values

    def close(self) -> None:
        """Give back what is open."""
        self._statm.close()

    def _account(self, addresses: int, anonymous: int) -> dict[str, float]:
        native = {}
        if self._mallinfo is not None:
            began_s = time.perf_counter()
            found = self._mallinfo()
            # once may be a busy processor
            self._dear = self._dear + 1 if time.perf_counter() - began_s > _DEAR_S else 0
            native["native"] = float(found.uordblks + found.hblkhd)
            addresses -= found.arena + found.hblkhd
            anonymous -= found.arena + found.hblkhd
        if self._first is None:
            self._first = (addresses, anonymous)
        # Pages that are touched for the first time, of what had been asked for long before, are no leak
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
            except OSError:  # it has just ended
                continue
            total += (int(fields[1]) - int(fields[2])) * PAGE_BYTES
        return {"workers": float(total)} if pids else {}


class _Last:
    """When a dear reading was taken last, and whether it grew then."""

    def __init__(self) -> None:
        self._call = -1
        self._resident = self._value = 0.0
        self._grows = True

    def due(self, call: int, every: int, resident: float) -> bool:
        passed = call - self._call
        if self._grows or resident - self._resident > _GROWS_BYTES * passed:
            return passed >= 1 if every < _COUNTED_EVERY else passed >= 2
        return passed >= every

    def took(self, call: int, resident: float, value: float) -> None:
        self._grows = value - self._value > _GROWS_BYTES * (call - self._call)
        self._call, self._resident, self._value = call, resident, value


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
    """glibc's account of itself; None elsewhere, and where another allocator has taken its place."""
    if any(name in os.environ.get("LD_PRELOAD", "") for name in ("jemalloc", "tcmalloc", "mimalloc")):
        return None
    call = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if call is None:
        return None
    call.restype, call.argtypes = _Mallinfo, []
    return call  # type: ignore[no-any-return]


def native_bytes() -> float:
    """What the C library has given out now; 0 where it does not tell."""
    account = _mallinfo2()
    found = account() if account is not None else None
    return 0.0 if found is None else float(found.uordblks + found.hblkhd)


def allocated_bytes() -> float:
    """All that is given out now: by the C library, to Python's small objects, on the accelerator."""
    return native_bytes() + sys.getallocatedblocks() * USUAL_BLOCK_BYTES + sum(_device().values())
