"""Values beside the objects of others; no function of Python runs when such an object dies."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Beside(Generic[V]):
    """A value for each of some objects while they live, by their ids: they need no hash, and a copy has no value.

    `weakref.WeakSet` and `WeakKeyDictionary` forget a dead object in a function of Python. When one begins, the
    interpreter runs the pending handlers of signals, and what they raise is dropped. Here a callable of C forgets it.

    >>> class Model: pass
    >>> model, sizes = Model(), Beside[int]()
    >>> sizes[model] = 3
    >>> sizes.get(model), model in sizes, len(sizes)
    (3, True, 1)
    >>> del model
    >>> len(sizes)
    0
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[V, weakref.ref[Any]]] = {}

    def __setitem__(self, one: object, value: V) -> None:
        key = id(one)
        self._known[key] = value, weakref.ref(one, functools.partial(self._known.pop, key))

    def get(self, one: object) -> V | None:
        """Its value, if it has one."""
        return self._known.get(id(one), (None, None))[0]

    def discard(self, one: object) -> None:
        """It has no value from now on."""
        self._known.pop(id(one), None)

    def clear(self) -> None:
        """None has a value from now on."""
        self._known.clear()

    def __contains__(self, one: object) -> bool:
        return id(one) in self._known

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Any]:
        """The objects that have a value by now."""
        return iter([one for _, reference in tuple(self._known.values()) if (one := reference()) is not None])


def marked(objects: Iterable[object] = ()) -> Beside[bool]:
    """A set of these objects that keeps none of them alive."""
    found = Beside[bool]()
    for one in objects:
        found[one] = True
    return found
