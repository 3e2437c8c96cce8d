"""Values from outside, as a template sees them.

Values of `load(**variables)`, of `--set` and of global variables are data. Numbers, booleans, null and dates are
printed as they are; strings, alone or in lists and dicts, are marked (see taint.py), and so is how a time of day
or a timedelta prints. Of every kind it is Python's own class that a template sees: a subclass could print anything.
"""

from __future__ import annotations

import datetime
import numbers
import os
import traceback
from collections.abc import Callable, Mapping

from forgather_mem.config.limits import Limits
from forgather_mem.config.source.rendered import RESERVED
from forgather_mem.errors import TemplateError, ours


class OutsideList(list[object]):
    """A list from outside: prints as YAML, which for plain values is also Python's notation."""

    def __str__(self) -> str:
        return f"[{', '.join(map(_flow, self))}]"


class OutsideDict(dict[object, object]):
    """A mapping from outside: prints as YAML."""

    def __str__(self) -> str:
        return f"{{{', '.join(f'{_flow(key)}: {_flow(value)}' for key, value in self.items())}}}"


def _flow(value: object) -> str:
    if isinstance(value, str | datetime.time | datetime.timedelta):
        return f"'{value}'"  # YAML would read a time as a number, or as two items
    if isinstance(value, OutsideList | OutsideDict | bool | datetime.date):
        return str(value)
    from forgather_mem.config.rendering.taint import write  # imports Jinja

    return write(value)


def wrap(variables: Mapping[str, object], mark: Callable[[str], str], budgets: Limits) -> dict[str, object]:
    """The template's view of each variable.

    Args:
        variables: By name.
        mark: Taints a string; `str` keeps it plain, for a process that will wrap the values again.
        budgets: How large they may be.

    Raises:
        TemplateError: if a value is not plain data, or is too large.
    """
    return {name: _Wrapper(name, mark, budgets).wrapped(value) for name, value in variables.items()}


def _exact_time(value: datetime.date | datetime.time | datetime.timedelta) -> object:
    """The date or time as an object of Python's own class: another class could print anything, and so could the name
    of a time zone."""
    if isinstance(value, datetime.timedelta):
        return datetime.timedelta.__pos__(value)
    kind = next(kind for kind in (datetime.datetime, datetime.date, datetime.time) if isinstance(value, kind))
    return kind.fromisoformat(kind.isoformat(value))  # type: ignore[arg-type]


class _Wrapper:
    def __init__(self, name: str, mark: Callable[[str], str], budgets: Limits) -> None:
        self._name = name
        self._mark = mark
        self._budgets = budgets
        self._items = 0

    def wrapped(self, value: object) -> object:
        """What a template sees for this value, whatever its methods do."""
        try:
            return self.wrap(value, 0)
        except TemplateError:
            raise
        except ours(Exception) as error:
            said = "".join(traceback.format_exception_only(error)).strip()  # also when its __str__ raises
            raise self._refuse(f"can't be read: {said[:300]}") from error

    def wrap(self, value: object, depth: int) -> object:
        if isinstance(value, str):
            return self._string(str.__str__(value))
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
            return _exact_time(value)
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            return float(value)
        if isinstance(value, os.PathLike):
            return self._string(os.fsdecode(value))
        self._items += 1
        if depth >= self._budgets.depth:
            raise self._refuse(f"is nested deeper than {self._budgets.depth} levels")
        if isinstance(value, Mapping):
            self._count(len(value))
            return OutsideDict((self._key(k, depth + 1), self.wrap(v, depth + 1)) for k, v in value.items())
        if isinstance(value, list | tuple | set | frozenset):
            self._count(len(value))
            return OutsideList(self.wrap(item, depth + 1) for item in value)
        raise self._refuse(
            f"is of type {type(value).__name__}: templates are given plain data only (strings, numbers, booleans, "
            "None, dates, paths, and lists and dicts of these)"
        )

    def _key(self, key: object, depth: int) -> object:
        wrapped = self.wrap(key, depth)
        if isinstance(wrapped, list | dict):
            raise self._refuse(f"has a key of type {type(key).__name__}: a key is a string, a number or a date")
        return wrapped

    def _string(self, text: str) -> str:
        if len(text) > self._budgets.string_bytes:
            raise self._refuse(f"has {len(text):,} characters; the limit is {self._budgets.string_bytes:,}")
        if not RESERVED.isdisjoint(text):
            raise self._refuse("has a character of the private range U+F4C1 to U+F4C4, which is used inside")
        return self._mark(text)

    def _count(self, length: int) -> None:
        self._items += length
        if self._items > self._budgets.nodes:
            raise self._refuse(f"has more than {self._budgets.nodes:,} items")

    def _refuse(self, what: str) -> TemplateError:
        return TemplateError(f"variable {self._name!r} {what}")
