"""How much has one render used so far, and when is it too much?

Jinja has no `while`: what a template computes is bounded by the items of its loops, its calls, and the sizes
of what operators and filters are given. All three are counted here, and what they make, so that a template
ends with an error long before it hurts. The CPU clock is looked at now and then, as the last line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Sized, ValuesView
from typing import Any, Final, TypeVar, cast

from jinja2 import Undefined
from jinja2.exceptions import TemplateRuntimeError
from jinja2.utils import Namespace

from forgather_mem.config.budgets import Budgets
from forgather_mem.config.marked import Marked

Value = TypeVar("Value")

_ATOMS: Final = frozenset((int, float, bool, type(None)))
_CALL_BYTES = 200  # what a call may keep alive besides its result: a namespace, a joiner
_PIECE_BYTES = 120  # a piece of a marked string, besides its characters
_LOOK_EVERY = 5_000
_CHARS_PER_WORK = 256


def printed_len(text: str) -> int:
    """Length of a string as it stands in the text, with tokens for values from outside."""
    return str.__len__(text)


def vars_of(namespace: Namespace) -> dict[str, object]:
    """What templates set in a namespace."""
    return cast(dict[str, object], object.__getattribute__(namespace, "_Namespace__attrs"))


class TooMuch(TemplateRuntimeError):
    """A budget is used up."""


class Meter:
    """Counts one render.

    Args:
        budgets: When to stop.
    """

    __slots__ = ("_budgets", "_calls", "_items", "_look_at", "_made_bytes", "_started_s", "_work")

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._items = self._calls = self._work = self._made_bytes = 0
        self._look_at = _LOOK_EVERY
        self._started_s = time.thread_time()

    def work(self, amount: int) -> None:
        """So many nodes are evaluated now."""
        self._work += amount
        if self._work > self._look_at:
            self._look_at = self._work + _LOOK_EVERY
            if self._work > self._budgets.work:
                raise TooMuch(f"rendering takes more than {self._budgets.work:,} evaluations")
            if time.thread_time() - self._started_s > self._budgets.render_cpu_s:
                raise TooMuch(f"rendering takes more than {self._budgets.render_cpu_s:g} s of CPU time")

    def call(self) -> None:
        """One call of a macro, function, method or filter."""
        self._calls += 1
        self._made_bytes += _CALL_BYTES
        if self._calls > self._budgets.calls:
            raise TooMuch(f"rendering takes more than {self._budgets.calls:,} calls")
        self.work(1)

    def items(self, iterable: Iterable[Value], weight: int = 1) -> Iterator[Value]:
        """The items of a loop whose body is `weight` nodes, counted as they come."""
        limit = self._budgets.loop_items
        for item in iterable:
            self._items += 1
            if self._items > limit:
                raise TooMuch(f"the loops of this render go through more than {limit:,} items")
            self.work(weight)
            yield item

    def made(self, value: Value) -> Value:
        """A value that an expression made, checked for its size."""
        if isinstance(value, str):
            if len(value) > self._budgets.string_bytes:
                raise self.long_string()
            self._made_bytes += sys.getsizeof(value)
            if isinstance(value, Marked):
                self._made_bytes += _PIECE_BYTES * len(value.pieces)
        elif isinstance(value, int):
            self.bits(value.bit_length())
        elif isinstance(value, list | tuple | dict | range):
            if len(value) > self._budgets.loop_items:
                raise TooMuch(f"a list has more than {self._budgets.loop_items:,} items")
            self._made_bytes += sys.getsizeof(value)
        self._check_made()
        return value

    def made_text(self, length: int) -> None:
        """A text of this length is made now, e.g. what a macro printed."""
        if length > self._budgets.rendered_bytes:
            raise TooMuch(f"a text has more than {self._budgets.rendered_bytes:,} characters")
        self._made_bytes += length
        self._check_made()

    def will_make(self, length: float) -> None:
        """Refuses before a string of this length is made."""
        if length > self._budgets.string_bytes:
            raise self.long_string()

    def repeat(self, value: Sized, times: int) -> None:
        """Refuses before a string or list is repeated too often."""
        if isinstance(value, str):
            self.will_make(printed_len(value) * times)
        elif len(value) * times > self._budgets.loop_items:
            raise TooMuch(f"a list has more than {self._budgets.loop_items:,} items")

    def bits(self, num_bits: int) -> None:
        """Refuses an integer of this size."""
        if num_bits > self._budgets.integer_bits:
            raise TooMuch(f"a number has more than {self._budgets.integer_bits:,} bits")

    def weigh(self, *values: object) -> None:
        """Counts what something that walks through whole values (comparing, printing, hashing) will see."""
        for value in values:
            if isinstance(value, str):
                self.work(len(value) // _CHARS_PER_WORK)
            elif type(value) not in _ATOMS:
                self._walk(value, 0)

    def _walk(self, value: object, depth: int) -> None:
        if isinstance(value, dict):
            self._walk_all(value, depth)
            self._walk_all(value.values(), depth)
        elif isinstance(value, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
            self._walk_all(value, depth)
        elif isinstance(value, Namespace):
            self._walk(vars_of(value), depth)
        elif isinstance(value, Undefined):
            str(value)  # raises its own error, which names it

    def _walk_all(self, values: Iterable[object], depth: int) -> None:
        if depth > self._budgets.depth:
            raise TooMuch(f"a value is nested deeper than {self._budgets.depth} levels")
        if isinstance(values, Sized):
            self.work(len(values))
        for value in values:
            if isinstance(value, str):
                self.work(len(value) // _CHARS_PER_WORK)
            elif type(value) not in _ATOMS:
                self._walk(value, depth + 1)

    def small(self, number: Any, limit: int = 10_000) -> Any:
        """A width, count or precision that a template gives, refused when it is absurd."""
        if isinstance(number, int | float) and not -limit <= number <= limit:
            raise TooMuch(f"{number:.3g} is too large here; the limit is {limit:,}")
        return number

    def long_string(self) -> TooMuch:
        return TooMuch(f"a string has more than {self._budgets.string_bytes:,} characters")

    def _check_made(self) -> None:
        if self._made_bytes > self._budgets.made_bytes:
            raise TooMuch(f"the expressions of this render make more than {self._budgets.made_bytes:,} bytes")
