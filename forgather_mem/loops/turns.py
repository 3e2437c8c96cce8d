"""Whether two places in the code may take turns, as in a loop that goes through both."""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Sequence
from types import FrameType

# The calls that run, the outermost first: the id of each frame, and where in its code it is
Place = Sequence[tuple[int, int]]


def here() -> Place:
    """The place of the caller; it keeps no frame."""
    return [(id(frame), frame.f_lasti) for frame in _frames()]


def take_turns(before: Place) -> bool:
    """Whether the innermost call that was there before, too, is in a loop with both places."""
    both = itertools.takewhile(lambda pair: id(pair[0]) == pair[1][0], zip(_frames(), before, strict=False))
    for frame, (_, at) in [*both][-1:]:
        low, high = sorted((at, frame.f_lasti))
        jumps = [(one.argval, one.offset) for one in dis.get_instructions(frame.f_code) if "BACKWARD" in one.opname]
        return low == high or any(to <= low and high <= by for to, by in jumps)
    return True  # of another thread


def _frames() -> list[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]
