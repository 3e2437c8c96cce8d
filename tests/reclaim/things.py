"""Objects that can be watched."""

import weakref

from tests.memory import touched


class Thing:
    """Something with a name, that can be watched."""


class Cycle(Thing):
    """Something that only a collection can free, once it is dropped, maybe with memory of the system behind it."""

    def __init__(self, mib: float = 0) -> None:
        self.itself = self
        self.block = touched(mib) if mib else None


def a_cycle() -> weakref.ref[Thing]:
    """One that was dropped."""
    return weakref.ref(Cycle())
