"""The value built-ins of templates, with limits on what they compute.

`list`, `range`, `sorted`, `items` and the like are open to every template, so they must be harmless in any number and
combination: each call is charged the size of its arguments, with shared parts counted each time.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

from forgather_mem.config.clock import CpuClock
from forgather_mem.config.graph.hash_flooding import MAX_COLLIDING, too_many
from forgather_mem.config.limits import DEFAULT_LIMITS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Most:
    """Items that the built-ins of one construction are given, and digits to round to: round(1, -10**9) would first
    build 10**10**9."""

    items: int = 500_000
    digits: int = 400


_MOST = _Most()


class LimitExceeded(ValueError):
    """The built-ins of one construction were given more than their limit."""


class Values:
    """The value built-ins of one construction, which share one limit.

    A `!partial` that is called later is a construction of its own, with a limit of its own.

    Args:
        limit: Total items that all calls may be given. A string counts as one item per 16 characters.
        clock: Of the construction.
    """

    def __init__(self, limit: int = _MOST.items, clock: CpuClock | None = None) -> None:
        self._limit = limit
        self._left = limit
        self._clock = clock or CpuClock(DEFAULT_LIMITS.render_cpu_s)

    def function(self, name: str) -> Callable[..., object] | None:
        """The function of that name, or None if it is not a value built-in.

        >>> Values().function("sorted")([3, 1, 2])
        [1, 2, 3]
        >>> Values().function("list")(range(10**9))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        forgather_mem...value_builtins.LimitExceeded: the built-ins of one construction handle 500,000 items at most
        """
        limited = _LIMITED.get(name)
        function = limited(self) if limited else _PLAIN.get(name)
        if function is None or name == "call":
            return function
        return self._charging(function, name)

    def _charging(self, function: Callable[..., object], name: str) -> Callable[..., object]:
        def charged(*args: object, **kwargs: object) -> object:
            if name in _SHALLOW and not (args and name in ("dict", "named_dict")):  # all keys of pairs are hashed
                self._charge_outermost((*args, *kwargs.values()))
            else:
                self._charge(args)
                self._charge(kwargs)
            with self._clock:
                made = function(*args, **kwargs)
                self._clock.look()
                return made

        charged.__name__ = charged.__qualname__ = function.__name__
        return charged

    def _charge_outermost(self, values: Sequence[object]) -> None:
        """Like `_charge`, for a function that looks at its arguments but not into their items: so a chain of 2 000
        lists costs as much as 2 000 lists."""
        self._left -= len(values) + sum(len(v) for v in values if isinstance(v, list | tuple | dict | set | frozenset))
        if self._left < 0:
            self._refuse()

    def _charge(self, value: object) -> None:
        """Subtract the size of a value, with everything it contains, from what is left."""
        left = self._left
        stack = [value]
        while stack and left >= 0:
            found = stack.pop()
            left -= 1
            if isinstance(found, str | bytes):
                left -= len(found) // 16
            elif isinstance(found, int):
                left -= found.bit_length() // 512
            elif isinstance(found, dict):
                left -= len(found)
                stack.extend(itertools.islice(itertools.chain(found.keys(), found.values()), max(left, 0) + 1))
            elif isinstance(found, list | tuple | set | frozenset):
                stack.extend(itertools.islice(found, max(left, 0) + 1))
        self._left = left
        if left < 0:
            self._refuse()

    def _refuse(self) -> None:
        raise LimitExceeded(f"the built-ins of one construction handle {self._limit:,} items at most")

    def _taken(self, items: Iterable[T]) -> Iterable[T]:
        """The items, if they are not too many; containers were charged as arguments."""
        if isinstance(items, list | tuple | dict | set | frozenset):
            return items
        if isinstance(items, Sized):
            if len(items) > self._left:
                self._refuse()
            self._left -= len(items)
            return items
        taken = list(itertools.islice(items, self._left + 1))
        self._charge(taken)
        return taken

    def _collect(self, kind: Callable[[Iterable[object]], object]) -> Callable[..., object]:
        def collect(items: Iterable[object] = (), /) -> object:
            taken = self._taken(items)
            if kind in (set, frozenset):
                _check_keys(taken)
            return kind(taken)

        collect.__name__ = kind.__name__
        return collect

    def _mapping(self, kind: Callable[..., Mapping[object, object]]) -> Callable[..., object]:
        def mapping(items: Mapping[object, object] | Iterable[Iterable[object]] = (), /, **kwargs: object) -> object:
            if isinstance(items, Mapping):
                return kind(items, **kwargs)
            pairs = [tuple(itertools.islice(pair, 3)) for pair in self._taken(items)]
            _check_keys([pair[0] for pair in pairs if pair])
            return kind(pairs, **kwargs)

        mapping.__name__ = kind.__name__
        return mapping

    def _range(self, *args: int) -> range:
        found = range(*args)
        if found and abs(found[-1] - found[0]) // abs(found.step) >= self._left:  # len() overflows
            self._refuse()
        return found

    def _sorted(self, items: Iterable[Any], /, *, reverse: bool = False) -> list[Any]:
        return sorted(self._taken(items), reverse=reverse)

    def _sum(self, items: Iterable[Any], /, start: Any = 0) -> object:
        if isinstance(start, Sequence):
            raise TypeError(f"sum adds numbers; start={start!r:.80} is of type {type(start).__name__}")
        return sum(self._taken(items), start)

    def _extreme(self, function: Callable[..., object]) -> Callable[..., object]:
        def extreme(first: Iterable[object], /, *others: object) -> object:
            return function(first, *others) if others else function(self._taken(first))

        extreme.__name__ = function.__name__
        return extreme


def _check_keys(keys: Iterable[object]) -> None:
    if too_many(keys):
        raise LimitExceeded(f"more than {MAX_COLLIDING} keys are chosen so that Python finds them in one place")


def _round(number: float, ndigits: int | None = None) -> object:
    if ndigits is not None and abs(ndigits) > _MOST.digits:
        raise ValueError(f"round(..., {ndigits}): {_MOST.digits} digits at most")
    return round(number, ndigits)


def _call(function: Callable[..., object], /, *args: object, **kwargs: object) -> object:
    return function(*args, **kwargs)


_SHALLOW = frozenset(
    ("dict", "list", "tuple", "named_dict", "named_list", "named_tuple", "items", "keys", "values", "len", "enumerate",
     "reversed", "zip", "bool", "slice")
)  # fmt: skip

_LIMITED: dict[str, Callable[[Values], Callable[..., object]]] = {
    "collections.OrderedDict": lambda values: values._mapping(collections.OrderedDict),
    "collections:OrderedDict": lambda values: values._mapping(collections.OrderedDict),
    "dict": lambda values: values._mapping(dict),
    "frozenset": lambda values: values._collect(frozenset),
    "list": lambda values: values._collect(list),
    "max": lambda values: values._extreme(max),
    "min": lambda values: values._extreme(min),
    "named_dict": lambda values: values._mapping(dict),
    "named_list": lambda values: values._collect(list),
    "named_tuple": lambda values: values._collect(tuple),
    "range": lambda values: values._range,
    "set": lambda values: values._collect(set),
    "sorted": lambda values: values._sorted,
    "sum": lambda values: values._sum,
    "tuple": lambda values: values._collect(tuple),
}
"""Those that look at the limit themselves, by name; each is made for one construction."""

_PLAIN: dict[str, Callable[..., object]] = {
    "abs": abs, "bool": bool, "call": _call, "complex": complex, "enumerate": enumerate, "float": float,
    "getitem": lambda container, key: container[key], "int": int, "items": lambda mapping: mapping.items(),
    "keys": lambda mapping: mapping.keys(), "len": len, "reversed": reversed, "round": _round, "slice": slice,
    "str": str, "values": lambda mapping: mapping.values(), "zip": zip,
}  # fmt: skip
