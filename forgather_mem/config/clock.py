"""The CPU clock of one load: what it has taken, and the limit.

Counts stop what a template does before it is done. The clock stops what no count foresaw: it is looked at where the
counts are. Reading the YAML of a load has one, which begins with what rendering a stranger's template has taken in its
own process; each construction has one, which stands while it imports a module or calls what the template names.
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
        limit_s: CPU time of the thread; for each MiB of text `per_mib` times as much again.
        per_mib: That factor.
        spent_s: What another process has taken of it.
    """

    __slots__ = ("_depth", "_more_s", "_started_s", "limit_s", "spent_s")

    def __init__(self, limit_s: float, *, per_mib: float = _PER_MIB, spent_s: float = 0.0) -> None:
        self.limit_s = limit_s
        self.spent_s = spent_s
        self._started_s, self._more_s = 0.0, limit_s * per_mib / MIB
        self._depth = 0

    def __enter__(self) -> None:
        if not self._depth:
            self._started_s = time.thread_time()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.spent_s += time.thread_time() - self._started_s

    def read(self, num_chars: int) -> None:
        """So much text of templates was read: it may take longer."""
        self.limit_s += self._more_s * num_chars

    def outside(self, function: Callable[..., _T], args: Sequence[object], kwargs: Mapping[str, object]) -> _T:
        """Call something whose time is not ours, and does not count."""
        began_s = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            self._started_s += time.thread_time() - began_s

    def taken_s(self) -> float:
        """What has been taken until now."""
        return self.spent_s + (time.thread_time() - self._started_s if self._depth else 0.0)

    def is_over(self) -> bool:
        """Whether more than the limit has been taken."""
        return self.taken_s() > self.limit_s

    def look(self) -> None:
        """Stop when the time is up.

        Raises:
            OutOfTime: when it is; the message is one for people.
        """
        if self._depth and self.is_over():
            raise OutOfTime(f"this template takes more than {self.limit_s:.2g} s of CPU time")
