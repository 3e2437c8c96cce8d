"""Detects forks without a system call, and lets a child do something before all else.

Each reading checks whether its files belong to this process.

`os.getpid()` takes 0.2 us, and more in a real step with cold caches; three open files check at each step.
"""

from __future__ import annotations

import os
from _functools import partial, reduce  # type: ignore[import-not-found]  # functools would be imported
from itertools import count, repeat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class _Forks:
    """The number of forks between the process that was started and this one.

    Counts the forks that Python knows about (`os.fork`, multiprocessing, data workers); a C library that forks and
    continues to run Python must call `PyOS_AfterFork_Child` anyway.

    >>> FORKS.number
    0
    """

    def __init__(self) -> None:
        self.number = 0
        # Of C alone: the interpreter runs a signal's handler when a function of Python begins, and drops what it raises
        os.register_at_fork(after_in_child=map(setattr, repeat(self), repeat("number"), count(1)).__next__)


# A single instance, because there is a single process.
FORKS = _Forks()
# What a forked child does before the handlers of forks that the script registers after this: they are called in order.
# Of C alone while there is nothing: what is raised in such a handler, by a signal's too, is dropped
FIRST_IN_CHILD: list[Callable[[], None]] = []
os.register_at_fork(after_in_child=partial(reduce, lambda _, act: act(), FIRST_IN_CHILD, None))
