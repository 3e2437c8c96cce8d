"""Keeps our open files out of the way of the user's.

A program may close all descriptors that it does not know (`os.closerange`, a daemon's first lines) and then open files
of its own. These get the lowest free numbers, which had been ours: our next write would land in them.
"""

from __future__ import annotations

import fcntl
import os

_LOWEST = 900  # below the usual limit of 1024; a program rarely has as many files open


def out_of_the_way(file: int) -> int:
    """The same open file under a high number, or under its own where the limit is lower. Costs 2 us."""
    try:
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
    except OSError:
        return file
    os.close(file)
    return high
