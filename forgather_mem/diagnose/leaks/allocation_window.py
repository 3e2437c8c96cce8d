"""What Python's allocators hand out during some steps and is still alive, by the user's line: a window of tracemalloc.

Everything that Python or numpy allocates is in it: texts, arrays, dictionaries, what a StringIO holds. What torch
allocates is not, but the Python object of each tensor is, so that a tensor has a line, too.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from forgather_mem.errors import ours
from forgather_mem.heap.object_size import is_tensor
from forgather_mem.probes.tensors import storages_of
from forgather_mem.source.source_lines import OURS, is_user_file
from forgather_mem.system.allocator import current_allocator
from forgather_mem.system.installed import installed
from forgather_mem.units import MIB

tracemalloc = installed("tracemalloc")

Line = tuple[str, int]
_MOST_BYTES = 16 * MIB  # of memory of its own
# https://github.com/python/cpython/issues/128679: until then `tracemalloc.stop()` frees what a thread without the GIL
# may be using, such as a thread of C++ that calls into Python.
_FIXED = ((3, 12, 9), (3, 13, 2))


class AllocationWindow:
    """Records until `close`; nothing where somebody else traces already, nor where stopping could crash.

    Attributes:
        made: By how many bytes what each line made has grown between the last two readings, as the user's innermost.
        alive: What of each was alive at the last.
        ran: Bytes by each line of the user's that led to them.
        total: The same of all that was made, whoever has called for it.
        saw_all: Whether that is all that was handed out: it was open at the last reading, too.
    """

    def __init__(self, *, opens: bool = True) -> None:
        self.is_open = opens and not tracemalloc.is_tracing() and _can_be_stopped()
        self.made: Counter[Line] = Counter()
        self.ran: Counter[Line] = Counter()
        self.alive: Counter[Line] = Counter()
        self.total = self._total = 0
        self.saw_all = False
        if self.is_open:
            tracemalloc.start(8)  # frames of each allocation, a guess; each takes a microsecond and more

    def own_bytes(self) -> int:
        """What it takes now, from the C library; closes it if that is too much."""
        taken = int(tracemalloc.get_tracemalloc_memory()) if self.is_open else 0
        if taken <= _MOST_BYTES:
            return taken
        self.close()
        return 0

    def read(self, young: Iterable[object]) -> None:
        """Add up what is alive by line, with the storages of the tensors among these."""
        self.saw_all = self.is_open
        if not self.is_open:
            return
        before, self.alive, self.ran = self.alive, Counter(), Counter()
        total, self._total = self._total, 0
        # Its tuples: of many small objects few places are left, and `statistics` makes three objects of each block
        sizes: Counter[object] = Counter()
        for _, size, place, *_ in tracemalloc.take_snapshot().traces._traces:
            sizes[place] += size
        for place, size in sizes.items():
            self._add(tracemalloc.Traceback(place), size)
        counted: set[object] = set()
        for tensor in filter(is_tensor, young):
            storages = {key: size for key, size in storages_of(tensor) if key not in counted}
            counted |= storages.keys()
            self._add(_trace_of(tensor), sum(storages.values()))
        self.made = Counter({line: size - before[line] for line, size in self.alive.items()})
        self.total = self._total - total

    def close(self) -> None:
        """Stop; what was read remains."""
        if self.is_open:
            self.is_open = False
            tracemalloc.stop()

    def line_of(self, num_bytes: float, in_all: float = 0.0, within: float = 0.4) -> Line | None:
        """The line that made about so much between the readings; or a block of about `in_all`, moved as it grew.

        `within` this fraction: what is alive of the last step counts as well.
        """
        for sizes, wanted in ((self.made, num_bytes), (self.alive, in_all)):
            line = min(sizes, key=lambda line: abs(sizes[line] - wanted), default=None)
            if line is not None and abs(sizes[line] - wanted) <= within * wanted:
                return line
        return None

    def likeliest(self, lines: Sequence[Line]) -> Line | None:
        """Of these lines the one that ran, or that comes next after one that did; None if that is not known."""
        found = max(lines, key=lambda line: (self.ran[line], -self._distance(line)))
        return found if self._distance(found) < math.inf else None

    def _distance(self, line: Line) -> float:
        return min((line[1] - at for file, at in self.ran if file == line[0] and at <= line[1]), default=math.inf)

    def _add(self, trace: Sequence[Any], size: int) -> None:
        lines = list(dict.fromkeys(_users(trace)))
        self._total += size if not any(frame.filename.startswith(OURS) for frame in trace[-2:]) else 0
        self.ran.update(dict.fromkeys(lines, size))
        for line in lines[:1]:
            self.alive[line] += size


def _users(trace: Sequence[Any]) -> Iterator[Line]:
    """The user's lines that led to it, innermost first; none for what this library has made."""
    for frame in reversed(trace):
        if frame.filename.startswith(OURS):
            return
        if is_user_file(frame.filename):
            yield frame.filename, frame.lineno


def _trace_of(tensor: object) -> Sequence[Any]:
    """Where this object was made.

    Python 3.11 looks for it two words behind its beginning if its class has a dictionary for each object (flag 4).
    """
    if sys.version_info >= (3, 12) or not type(tensor).__flags__ & 1 << 4:
        trace: Sequence[Any] | None = tracemalloc.get_object_traceback(tensor)
        return trace or ()
    look_up = ctypes.pythonapi._PyTraceMalloc_GetTraceback
    look_up.argtypes, look_up.restype = [ctypes.c_uint, ctypes.c_size_t], ctypes.py_object
    found: Sequence[Any] = tracemalloc.Traceback(look_up(0, id(tensor) - 32) or ())
    return found


def _can_be_stopped(version: tuple[int, ...] = sys.version_info[:3]) -> bool:
    """Whether stopping can't crash: by Python's version, or without threads that may call into Python.

    >>> _can_be_stopped((3, 12, 9)), _can_be_stopped((3, 13, 2)), _can_be_stopped((3, 14, 0))
    (True, True, True)
    """
    if any(version >= fixed and version[:2] == fixed[:2] for fixed in _FIXED) or version >= (3, 14):
        return True
    try:
        others = len(os.listdir("/proc/self/task")) - threading.active_count()
    except ours(OSError):  # no /proc
        return False
    # Those of torch's OpenMP and of numpy's OpenBLAS only compute; with a device, autograd has some that call Python
    torch = sys.modules.get("torch") if current_allocator() is None else None
    return others <= (2 * (torch.get_num_threads() - 1) if torch is not None else 0)
