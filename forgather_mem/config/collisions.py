"""Which numbers could make a mapping slow?

Python hashes a number to its value modulo 2**61 - 1, so whoever chooses the numbers chooses the places where they
lie in a dict or a set: with 100 000 that share one place, building it takes hours. Text and dates are hashed with
a secret of the process. So of the numbers that can be chosen like that only some may be keys.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_NUMBERS = 100
"""So many such numbers may be keys. A thousand mappings of a hundred take some tens of milliseconds more."""

_SMALL = 2**31


def is_choosable(key: object) -> bool:
    """Whether a key's place can be chosen: a fraction, or an integer beyond 2**31.

    >>> is_choosable(7), is_choosable(2**61), is_choosable(0.5), is_choosable("text")
    (False, True, True, False)
    """
    if isinstance(key, int):
        return not -_SMALL < key < _SMALL
    return isinstance(key, float | complex)


def too_many(keys: Iterable[object]) -> bool:
    """Whether more of the keys can be chosen than may be, tuples and frozen sets looked into.

    >>> too_many(range(10**6)), too_many(range(0, 200 * 2**61, 2**61)), too_many([(2**61 * i,) for i in range(200)])
    (False, True, True)
    """
    if isinstance(keys, range) and not (keys and (is_choosable(keys[0]) or is_choosable(keys[-1]))):
        return False
    left = MAX_NUMBERS
    stack = [iter(keys)]
    while stack:
        for key in stack[-1]:
            if isinstance(key, tuple | frozenset):
                stack.append(iter(key))
                break
            left -= is_choosable(key)
            if left < 0:
                return True
        else:
            stack.pop()
    return False
