"""Keys chosen to collide, which would make a mapping slow.

Python hashes a number to its value modulo 2**61 - 1, and a tuple, a range or a value class by a fixed formula of its
parts. So whoever chooses them chooses the places where they lie in a dict or a set: with 100 000 that share one place,
building it takes hours. Text and dates are hashed with a secret of the process. The hashes are looked at themselves,
whatever the keys are: of those that share one, only some may be keys.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_COLLIDING = 100
"""So many keys may have the hash of another one; a thousand mappings of a hundred take some tens of milliseconds."""


class Hashes:
    """The hashes of the keys that were seen."""

    __slots__ = ("_first", "_left", "_others")

    def __init__(self) -> None:
        self._first: dict[int, object] = {}
        self._others: dict[int, list[object]] = {}
        self._left = MAX_COLLIDING

    def are_too_many_with(self, key: object) -> bool:
        """Whether with one key more too many share their hash with a different one.

        Raises:
            TypeError: for a key that has none.
        """
        first = self._first.setdefault(hash(key), key)
        if first is not key and first != key:
            others = self._others.setdefault(hash(key), [])
            if key not in others:
                others.append(key)
                self._left -= 1
        return self._left < 0


def too_many(keys: Iterable[object]) -> bool:
    """Whether more of the keys collide than may. Those without a hash are left to whoever uses them.

    >>> too_many(range(10**5)), too_many(range(0, 200 * (2**61 - 1), 2**61 - 1)), too_many([-1, -2] * 200)
    (False, True, False)
    """
    hashes = Hashes()
    try:
        return any(hashes.are_too_many_with(key) for key in keys if type(key) is not str)
    except TypeError:
        return False
