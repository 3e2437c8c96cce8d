"""The value built-ins of templates, with limits on what they compute.

`list`, `range`, `sorted`, `items` and the like are open to every template, so they must be harmless in any number and
combination. Parsing has limited what an argument holds with all its aliases. Here each call is charged the lengths of
its arguments.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Mapping, MappingView, Sequence, Set
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Most:
    """Items that the built-ins of one construction are given; keys of one mapping that have the same hash; and digits
    to round to: round(1, -10**9) would first build 10**10**9."""

    items: int = 500_000
    alike: int = 20
    digits: int = 400


_MOST = _Most()
_TOO_MANY = f"the built-ins of one construction handle {_MOST.items:,} items at most"


class LimitExceeded(ValueError):
    """The built-ins of one construction were given more than their limit."""


class Values:
    """The value built-ins of one construction, which share one limit: the items that all calls may be given. A string
    counts as one item per 16 characters; what is in an item does not count.

    A `!partial` that is called later is a construction of its own, with a limit of its own.
    """

    def __init__(self) -> None:
        self._left = _MOST.items

    def function(self, name: str) -> Callable[..., object] | None:
        """The function of that name, or None if it is not a value built-in.

        >>> Values().function("sorted")([3, 1, 2])
        [1, 2, 3]
        >>> Values().function("range")(10**9)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        forgather_mem...value_builtins.LimitExceeded: the built-ins of one construction handle 500,000 items at most
        """
        function = FUNCTIONS.get(name)
        return function if function is None or name == "call" else self._charging(function)

    def _charging(self, function: Callable[..., object]) -> Callable[..., object]:
        def charged(*args: object, **kwargs: object) -> object:
            self._left -= 1 + sum(map(_num_items, (*args, *kwargs.values())))
            if self._left < 0:
                raise LimitExceeded(_TOO_MANY)
            return function(*args, **kwargs)

        charged.__name__ = charged.__qualname__ = function.__name__
        return charged


def _num_items(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value) // 16
    return len(value) if isinstance(value, (Sequence, Set, Mapping, MappingView)) else 0


def _keys(keys: Iterable[object]) -> list[object]:
    """These keys, unless they were chosen to collide.

    Python hashes a number to its value modulo 2**61 - 1, and a tuple, a range or a value class by a fixed formula of
    its parts. So whoever chooses them chooses the places where they lie in a dict or a set: with 100 000 that share
    one place, building it takes hours. Text and dates are hashed with a secret of the process.
    """
    alike: dict[int, list[object]] = collections.defaultdict(list)
    taken = list(keys)
    for key in taken:
        try:
            others = [] if type(key) is str else alike[hash(key)]
        except TypeError:
            raise TypeError(f"{key!r:.80} can't be hashed: it is of type {type(key).__name__}") from None
        if key not in others:
            others.append(key)
            if len(others) > _MOST.alike:
                raise LimitExceeded(f"more than {_MOST.alike} keys are chosen so that Python hashes them alike")
    return taken


def _mapping(kind: Callable[..., Mapping[object, object]]) -> Callable[..., object]:
    def mapping(items: Mapping[object, object] | Iterable[Iterable[object]] = (), /, **kwargs: object) -> object:
        if isinstance(items, Mapping):
            return kind(items, **kwargs)
        pairs = [tuple(itertools.islice(pair, 3)) for pair in items]
        _keys(pair[0] for pair in pairs if pair)
        return kind(pairs, **kwargs)

    return mapping


def _range(*args: int) -> range:
    found = range(*args)
    if found and abs(found[-1] - found[0]) // abs(found.step) >= _MOST.items:  # len() overflows
        raise LimitExceeded(_TOO_MANY)
    return found


def _sum(items: Iterable[Any], /, start: Any = 0) -> object:
    if isinstance(start, Sequence):
        raise TypeError(f"sum adds numbers; start={start!r:.80} is of type {type(start).__name__}")
    return sum(items, start)


def _round(number: float, ndigits: int | None = None) -> object:
    if ndigits is not None and abs(ndigits) > _MOST.digits:
        raise ValueError(f"round(..., {ndigits}): {_MOST.digits} digits at most")
    return round(number, ndigits)


# None takes a function as an argument, which it would call
FUNCTIONS: dict[str, Callable[..., object]] = {
    **dict.fromkeys(("collections.OrderedDict", "collections:OrderedDict"), _mapping(collections.OrderedDict)),
    **dict.fromkeys(("dict", "named_dict"), _mapping(dict)),
    **dict.fromkeys(("list", "named_list"), list),
    **dict.fromkeys(("tuple", "named_tuple"), tuple),
    "frozenset": lambda items=(), /: frozenset(_keys(items)), "set": lambda items=(), /: set(_keys(items)),
    "range": _range, "sum": _sum,
    "max": lambda first, /, *others: max(first, *others), "min": lambda first, /, *others: min(first, *others),
    "sorted": lambda items, /, *, reverse=False: sorted(items, reverse=reverse),
    "abs": abs, "call": lambda function, /, *args, **kwargs: function(*args, **kwargs), "complex": complex,
    "bool": bool, "enumerate": enumerate, "float": float, "getitem": lambda container, key: container[key], "int": int,
    "items": lambda mapping: mapping.items(), "keys": lambda mapping: mapping.keys(), "len": len, "reversed": reversed,
    "round": _round, "slice": slice, "str": str, "values": lambda mapping: mapping.values(), "zip": zip,
}  # fmt: skip
