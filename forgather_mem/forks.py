"""Is this still the process in which something was opened? Asked at every reading, so without a call of the kernel.

`os.getpid()` takes 0.2 us, and more in a real step, where nothing is in the caches; three kept files ask at each step.
"""

from __future__ import annotations

import os


class _Forks:
    """How many forks lie between the process that was started and this one.

    Forks that Python makes or is told of are counted (`os.fork`, multiprocessing, data workers); a fork inside a
    library in C that goes on to run Python must tell it (`PyOS_AfterFork_Child`) for reasons of its own.

    >>> FORKS.number
    0
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0
        os.register_at_fork(after_in_child=self._count)

    def _count(self) -> None:
        self.number += 1


# One, because there is one process.
FORKS = _Forks()
