"""Objects that can be watched."""

import weakref


class Thing:
    """Something with a name, that can be watched."""


class Cycle(Thing):
    """Something that only a collection can free, once it is dropped."""

    def __init__(self) -> None:
        self.itself = self


def a_cycle() -> weakref.ref[Thing]:
    """One that was dropped."""
    return weakref.ref(Cycle())
