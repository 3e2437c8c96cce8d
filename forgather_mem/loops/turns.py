"""Whether two places in the code may take turns, as in a loop that goes through both."""

from __future__ import annotations

import dis
import sys
from collections.abc import Sequence
from types import CodeType

from forgather_mem.source.source_lines import OURS, with_callers

# The calls that run, the outermost first: the code of each, and where in it that is
Place = Sequence[tuple[CodeType, int]]


def here() -> Place:
    """The place of the caller, without code of ours."""
    places = [(frame.f_code, frame.f_lasti) for frame in with_callers(sys._getframe(1))]
    return [place for place in reversed(places) if not place[0].co_filename.startswith(OURS)]


def take_turns(before: Place, now: Place) -> bool:
    """Whether a loop goes through both places, in the innermost module that runs or in what it calls."""
    calls = [(code, (at, to), code is other) for (code, at), (other, to) in zip(before, now, strict=False)]
    modules = [number for number, (code, _, is_same) in enumerate(calls) if is_same and code.co_name == "<module>"]
    for code, both, is_same in calls[modules[-1] if modules else 0 :]:
        jumps = [(one.argval, one.offset) for one in dis.get_instructions(code) if "BACKWARD" in one.opname]
        if not is_same or any(first <= min(both) and max(both) <= last for first, last in jumps):
            return True
        if both[0] != both[1]:
            return False
    return True
