"""Counts what one render has used, and stops it at its limits.

Jinja has no `while`: the work of a template is bounded by its loop items, its calls, and the sizes of the operands of
operators and filters. All three are counted here, and so are their results, so that a template ends with an error long
before it does harm. The CPU clock is checked now and then, as the last line of defence.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, KeysView, Sized, ValuesView
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from jinja2 import Undefined
from jinja2.exceptions import TemplateRuntimeError
from jinja2.utils import Namespace

from forgather_mem.config.clock import CpuClock
from forgather_mem.config.graph.hash_flooding import MAX_COLLIDING, too_many
from forgather_mem.config.limits import Limits
from forgather_mem.config.rendering.taint import TaintedStr

Value = TypeVar("Value")

_CONTAINERS = (dict, list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
_ATOMS: Final = frozenset((int, float, bool, type(None)))
_CALL_BYTES = 200  # memory a call may keep alive besides its result: a namespace, a joiner
PART_BYTES = 64  # a short text or a list of two
MARKED_BYTES = 900  # one with its token
_PIECE_BYTES = 120  # a piece of a tainted string, without its characters
_LOOK_EVERY = 1_000
_CHARS_PER_WORK = 256


@dataclass(slots=True)
class Weight:
    """How much a walk through values sees: items, characters, levels, and the longest text."""

    items: int = 0
    chars: int = 0
    depth: int = 0
    longest: int = 0


def _repr_len(text: str) -> int:
    return len(text) if text.isalnum() else len(repr(text))


def printed_len(text: str) -> int:
    """Length of a string as it appears in the text, with tokens for values from outside."""
    return str.__len__(text)


def vars_of(namespace: Namespace) -> dict[str, object]:
    """The variables that templates set in a namespace."""
    return cast(dict[str, object], object.__getattribute__(namespace, "_Namespace__attrs"))


class BudgetExceeded(TemplateRuntimeError):
    """A limit is exceeded."""


class RenderBudget:
    """Counts one render.

    Args:
        budgets: The limits.
        clock: Of the load.
    """

    __slots__ = ("_budgets", "_calls", "_clock", "_items", "_look_at", "_made_bytes", "_work")

    def __init__(self, budgets: Limits, clock: CpuClock) -> None:
        self._budgets = budgets
        self._items = self._calls = self._work = self._made_bytes = 0
        self._look_at = _LOOK_EVERY
        self._clock = clock

    def work(self, amount: int) -> None:
        """Count nodes about to be evaluated."""
        self._work += amount
        if self._work > self._look_at:
            self._look_at = self._work + _LOOK_EVERY
            if self._work > self._budgets.work:
                raise BudgetExceeded(f"rendering takes more than {self._budgets.work:,} evaluations")
            self._clock.look()

    def call(self) -> None:
        """Count one call of a macro, function, method or filter."""
        self._calls += 1
        self._made_bytes += _CALL_BYTES
        if self._calls > self._budgets.calls:
            raise BudgetExceeded(f"rendering takes more than {self._budgets.calls:,} calls")
        self.work(1)

    def items(self, iterable: Iterable[Value], weight: int = 1) -> Iterator[Value]:
        """The items of a loop whose body has `weight` nodes, counted as they are consumed."""
        limit = self._budgets.loop_items
        if isinstance(iterable, TaintedStr):
            self.hold(MARKED_BYTES * len(iterable))
            weight += len(iterable.pieces) >> 3
        for item in iterable:
            self._items += 1
            if self._items > limit:
                raise BudgetExceeded(f"the loops of this render go through more than {limit:,} items")
            self.work(weight)
            yield item

    def made(self, value: Value) -> Value:
        """Check the size of a value that an expression made."""
        if isinstance(value, str):
            if len(value) > self._budgets.string_bytes:
                raise self.long_string()
            self._made_bytes += sys.getsizeof(value)
            if isinstance(value, TaintedStr):
                self._made_bytes += _PIECE_BYTES * len(value.pieces)
        elif isinstance(value, int):
            self.bits(value.bit_length())
        elif isinstance(value, list | tuple | dict | range):
            if len(value) > self._budgets.loop_items:
                raise BudgetExceeded(f"a list has more than {self._budgets.loop_items:,} items")
            self._made_bytes += sys.getsizeof(value)
        self._check_made()
        return value

    def made_text(self, length: int) -> None:
        """Count a text of this length that was just made, e.g. the output of a macro."""
        if length > self._budgets.rendered_bytes:
            raise BudgetExceeded(f"a text has more than {self._budgets.rendered_bytes:,} characters")
        self._made_bytes += length
        self._check_made()

    def will_make(self, length: float) -> None:
        """Refuse a string of this length before it is made."""
        if length > self._budgets.string_bytes:
            raise self.long_string()

    def repeat(self, value: Sized, times: int) -> None:
        """Refuse to repeat a string or list too often, before it happens."""
        if isinstance(value, str):
            self.will_make(printed_len(value) * times)
        elif len(value) * times > self._budgets.loop_items:
            raise BudgetExceeded(f"a list has more than {self._budgets.loop_items:,} items")

    def bits(self, num_bits: int) -> None:
        """Refuse an integer of this size."""
        if num_bits > self._budgets.integer_bits:
            raise BudgetExceeded(f"a number has more than {self._budgets.integer_bits:,} bits")

    def hold(self, num_bytes: int) -> None:
        """So much memory is taken now that no result shows: the items of a list, copies that a sort makes."""
        self._made_bytes += num_bytes
        self._check_made()

    def holds_items(self, value: Sized, item_bytes: int = PART_BYTES) -> None:
        """A list was made, and what is in it too."""
        self.hold(item_bytes * len(value))

    def weigh(self, *values: object) -> Weight:
        """Counts what something that walks through whole values (comparing, printing, hashing) will see: what stands
        in several places counts in each."""
        weight = Weight()
        for value in values:
            if isinstance(value, str):
                self._text(value, weight)
            elif type(value) not in _ATOMS:
                self._walk(value, 0, weight)
        return weight

    def _text(self, text: str, weight: Weight) -> None:
        length = len(text)
        weight.chars += length
        weight.longest = max(weight.longest, length)
        self.work(length // _CHARS_PER_WORK + (len(text.pieces) if isinstance(text, TaintedStr) else 0))

    def _walk(self, value: object, depth: int, weight: Weight) -> None:
        if isinstance(value, dict):
            self._walk_all(value, depth, weight)
            self._walk_all(value.values(), depth, weight)
        elif isinstance(value, _CONTAINERS):
            self._walk_all(value, depth, weight)
        elif isinstance(value, range):
            weight.items += len(value)
            self.work(len(value))
        elif isinstance(value, Namespace):
            self._walk(vars_of(value), depth, weight)
        elif isinstance(value, Undefined):
            str(value)  # raises an error of its own, which names it

    def _walk_all(self, values: Collection[object], depth: int, weight: Weight) -> None:
        if depth > self._budgets.depth:
            raise BudgetExceeded(f"a value is nested deeper than {self._budgets.depth} levels")
        weight.depth = max(weight.depth, depth + 1)
        weight.items += len(values)
        self.work(len(values))
        for value in values:
            if isinstance(value, str):
                self._text(value, weight)
            elif type(value) not in _ATOMS:
                self._walk(value, depth + 1, weight)

    def will_print(self, *values: object, length_of: Callable[[str], int] = _repr_len) -> None:
        """Refuses before lists or mappings are printed as a text that is too long."""
        for value in values:
            if not isinstance(value, str):
                self.printed_length(value, length_of)

    def printed_length(self, value: object, length_of: Callable[[str], int] = _repr_len) -> int:
        """How many characters a value prints as, those in lists with quotes and escapes; a little more at times.

        Raises:
            TooMuch: for more than a string may have.
        """
        if isinstance(value, str):
            return printed_len(value)
        limit = self._budgets.string_bytes
        length = 0
        stack: list[Iterator[object]] = [iter((value,))]
        while stack:
            for part in stack[-1]:
                if isinstance(part, str):
                    length += 4 + (length_of(part) if len(part) + length <= limit else len(part))
                elif isinstance(part, _CONTAINERS):
                    stack.append(itertools.chain(part, part.values()) if isinstance(part, dict) else iter(part))
                    length += 4
                    break
                else:
                    length += 2 if type(part) in _ATOMS else 40
                if length > limit:
                    raise self.long_string()
            else:
                stack.pop()
        return length

    def check_keys(self, keys: Iterable[object]) -> None:
        """Refuses keys that a template chose so that a mapping of them is slow."""
        if too_many(keys):
            raise BudgetExceeded(f"more than {MAX_COLLIDING} keys are chosen so that Python finds them in one place")

    def small(self, number: Value, limit: int = 10_000) -> Value:
        """A width, count or precision given by a template, refused if it is absurd."""
        if isinstance(number, int | float) and not -limit <= number <= limit:
            raise BudgetExceeded(f"{number:.3g} is too large here; the limit is {limit:,}")
        return number

    def long_string(self) -> BudgetExceeded:
        return BudgetExceeded(f"a string has more than {self._budgets.string_bytes:,} characters")

    def _check_made(self) -> None:
        if self._made_bytes > self._budgets.made_bytes:
            raise BudgetExceeded(f"the expressions of this render make more than {self._budgets.made_bytes:,} bytes")
