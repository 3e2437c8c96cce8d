"""The variables of a running function are cleared where they are assigned to."""

from __future__ import annotations

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
    NUMBERS.append(empty_assigned(caller, objects))
    watched = [weakref.ref(thing) for thing in objects if isinstance(thing, Thing)]
    nones = [None] * len(objects)
    del objects
    gc.collect()
    ALIVE.append(sum(ref() is not None for ref in watched))
    return nones


NUMBERS: list[int] = []
ALIVE: list[int] = []
GLOBAL: Any = None


def test_names_attributes_and_items_that_are_assigned_to_are_cleared_during_the_call() -> None:
    global GLOBAL
    NUMBERS.clear()
    ALIVE.clear()
    local, owner, table = Thing(), Thing(part=Thing()), {"key": Thing()}
    GLOBAL = Thing()
    captured = Thing()

    def look() -> object:
        return captured

    local, owner.part, table["key"], GLOBAL, captured = release(  # type: ignore[attr-defined]
        local, owner.part, table["key"], GLOBAL, captured  # type: ignore[attr-defined]
    )  # fmt: skip
    assert (NUMBERS, ALIVE) == ([5], [0])
    assert (local, owner.part, table, GLOBAL, look()) == (None, None, {"key": None}, None, None)  # type: ignore[attr-defined]


def test_what_is_assigned_to_something_else_stays_until_the_call_is_over() -> None:
    NUMBERS.clear()
    ALIVE.clear()
    thing, other = Thing(), Thing()
    other, nothing = release(thing, None)  # type: ignore[assignment]
    assert NUMBERS == [0], "`other` holds another object"
    assert (ALIVE, other, nothing) == ([1], None, None)
    release(thing)
    assert (NUMBERS, ALIVE) == ([0, 0], [1, 1]), "the result is thrown away"
