"""The variables of a running function are cleared where they are assigned to."""

import gc
import sys
import weakref
from types import FrameType
from typing import Any

from forgather_mem.heap.variables import empty_assigned


class Thing:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


def release(*objects: object) -> list[None]:
    """As `release_memory`: it clears what it is assigned to, and returns as many Nones."""
    caller: FrameType = sys._getframe(1)
    LEFT.append(empty_assigned(caller, objects))
    watched = [weakref.ref(thing) for thing in objects if isinstance(thing, Thing)]
    nones = [None] * len(objects)
    del objects
    gc.collect()
    ALIVE.append(sum(ref() is not None for ref in watched))
    return nones


LEFT: list[list[str]] = []
ALIVE: list[int] = []
GLOBAL: Any = None


def test_names_attributes_and_items_that_are_assigned_to_are_cleared_during_the_call() -> None:
    global GLOBAL
    LEFT.clear()
    ALIVE.clear()
    local, owner, table = Thing(), Thing(part=Thing()), {"key": Thing()}
    GLOBAL, captured = Thing(), Thing()

    def look() -> object:
        return captured

    local, owner.part, table["key"], GLOBAL, captured = release(  # type: ignore[attr-defined]
        local, owner.part, table["key"], GLOBAL, captured  # type: ignore[attr-defined]
    )  # fmt: skip
    # Python 3.14 can't empty a function's own variable from outside
    assert (([["local"]], [1]) if sys.version_info >= (3, 14) else ([[]], [0])) == (LEFT, ALIVE)
    assert (local, owner.part, table, GLOBAL, look()) == (None, None, {"key": None}, None, None)  # type: ignore[attr-defined]


def test_what_is_assigned_to_something_else_stays_until_the_call_is_over() -> None:
    LEFT.clear()
    ALIVE.clear()
    thing, other = Thing(), Thing()
    other, nothing = release(thing, None)  # type: ignore[assignment]
    assert (ALIVE, other, nothing) == ([1], None, None), "`other` holds another object"
    release(thing)
    assert (LEFT, ALIVE) == ([[], []], [1, 1]), "the result is thrown away"
