"""The startup of this process: what was before its first training."""

from __future__ import annotations

import sys
import weakref

from forgather_mem.system.forks import FORKS


class _Startup:
    """Knows which training of this process is the first: imports, the model and the data were before that one."""

    __slots__ = ("_first", "_forks")

    def __init__(self) -> None:
        self._first: weakref.ref[object] | None = None
        self._forks = FORKS.number

    def was_before(self, training: object) -> bool:
        """Whether this training is the first one that asks; never where somebody types: that is no startup."""
        if self._first is None or self._forks != FORKS.number:
            self._first, self._forks = weakref.ref(training), FORKS.number
        return self._first() is training and not hasattr(sys, "ps1")


# One, because there is one process
STARTUP = _Startup()
