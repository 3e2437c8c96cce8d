"""Which values may come from outside, and what do templates see of them?

Values of `load(**variables)`, of `--set` and of global variables are data. Numbers, booleans and null are
printed as they are; strings, alone or in lists and dicts, are marked (see marked.py).
"""

from __future__ import annotations

import datetime
import enum
import numbers
import os
from collections.abc import Mapping
from typing import Any

from forgather_mem.config.budgets import Budgets
from forgather_mem.config.marks import Marks
from forgather_mem.config.tokens import RESERVED
from forgather_mem.config.yaml_text import YamlWriter
from forgather_mem.errors import TemplateError


class OutsideList(list[Any]):
    """A list from outside: prints as YAML, which for plain values is also what Python would print."""

    def __str__(self) -> str:
        return f"[{', '.join(map(_flow, self))}]"


class OutsideDict(dict[Any, Any]):
    """A mapping from outside: prints as YAML."""

    def __str__(self) -> str:
        return f"{{{', '.join(f'{_flow(key)}: {_flow(value)}' for key, value in self.items())}}}"


def _flow(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, OutsideList | OutsideDict | bool | datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    return YamlWriter().write(value)


def wrap(variables: Mapping[str, Any], marks: Marks, budgets: Budgets) -> dict[str, Any]:
    """What a template sees for each variable.

    Raises:
        TemplateError: for a value that is not plain data, or too large.
    """
    return {name: _Wrapper(name, marks, budgets).wrap(value, 0) for name, value in variables.items()}


class _Wrapper:
    def __init__(self, name: str, marks: Marks, budgets: Budgets) -> None:
        self._name = name
        self._marks = marks
        self._budgets = budgets
        self._items = 0

    def wrap(self, value: Any, depth: int) -> Any:
        if isinstance(value, enum.Enum) and not isinstance(value, str | int):
            value = value.value
        if isinstance(value, str):
            return self._string(str.__str__(value))
        if value is None or isinstance(value, bool | datetime.date | datetime.time | datetime.timedelta):
            return value
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            return float(value)
        if isinstance(value, os.PathLike):
            return self._string(os.fsdecode(value))
        self._items += 1
        if depth >= self._budgets.depth:
            raise self._refuse(f"is nested deeper than {self._budgets.depth} levels")
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            value = value._asdict()
        if isinstance(value, Mapping):
            self._count(len(value))
            return OutsideDict((self.wrap(k, depth + 1), self.wrap(v, depth + 1)) for k, v in value.items())
        if isinstance(value, list | tuple | set | frozenset):
            self._count(len(value))
            return OutsideList(self.wrap(item, depth + 1) for item in value)
        raise self._refuse(
            f"is of type {type(value).__name__}: templates are given plain data only (strings, numbers, booleans, "
            "None, dates, paths, and lists and dicts of these)"
        )

    def _string(self, text: str) -> str:
        if len(text) > self._budgets.string_bytes:
            raise self._refuse(f"has {len(text):,} characters; the limit is {self._budgets.string_bytes:,}")
        if not RESERVED.isdisjoint(text):
            raise self._refuse("has a character of the private range U+F4C1 to U+F4C4, which is used inside")
        return self._marks.mark(text)

    def _count(self, length: int) -> None:
        self._items += length
        if self._items > self._budgets.loop_items:
            raise self._refuse(f"has more than {self._budgets.loop_items:,} items")

    def _refuse(self, what: str) -> TemplateError:
        return TemplateError(f"variable {self._name!r} {what}")
