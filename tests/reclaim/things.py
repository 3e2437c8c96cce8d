"""Objects that can be watched."""

import weakref


class Thing:
    """Something with a name, that can be watched."""


def a_cycle() -> weakref.ref[Thing]:
    thing = Thing()
    thing.itself = thing  # type: ignore[attr-defined]
    return weakref.ref(thing)
