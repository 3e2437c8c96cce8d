"""The CPU clock of one load: what it has taken, and the limit.

Counts stop what a template does before it is done. The clock stops what no count foresaw: it is looked at where the
counts are. Reading the YAML of a load has one; each construction has one, which stands while it imports a module or
calls what the template names. A stranger's template is rendered in a process with a clock of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from forgather_mem.units import MIB

_T = TypeVar("_T")
_PER_MIB = 3.0  # a template of 10 000 callbacks has 1.1 MiB and takes 0.5 s; its limit is six times that


class OutOfTime(Exception):
    """A load has taken more CPU time than its budget."""


class CpuClock:
    """Runs inside `with`, and adds up.

    Args:
        limit_s: CPU time of the thread.
        num_chars: Of text; for each MiB the limit is three times as high again.
    """

    __slots__ = ("_depth", "_limit_s", "_spent_s", "_started_s")

    def __init__(self, limit_s: float, num_chars: int = 0) -> None:
        self._limit_s = limit_s * (1 + num_chars * _PER_MIB / MIB)
        self._spent_s = self._started_s = 0.0
        self._depth = 0

    def __enter__(self) -> None:
        if not self._depth:
            self._started_s = time.thread_time()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._spent_s += time.thread_time() - self._started_s

    def outside(self, function: Callable[..., _T], args: Sequence[object], kwargs: Mapping[str, object]) -> _T:
        """Call something whose time is not ours, and does not count."""
        began_s = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            self._started_s += time.thread_time() - began_s

    def look(self) -> None:
        """Stop when the time is up.

        Raises:
            OutOfTime: when it is; the message is one for people.
        """
        if self._depth and self._spent_s + time.thread_time() - self._started_s > self._limit_s:
            raise OutOfTime(f"this template takes more than {self._limit_s:.2g} s of CPU time")
