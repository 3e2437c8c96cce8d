"""Numbers as others give them: a user's probe, action or sink, or a file of ours that anybody may have written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from forgather_mem.errors import missing


def plain_numbers(values: Mapping[str, float] | None) -> dict[str, float]:
    """These values as plain numbers by name. What is not finite is left out.

    Raises:
        TypeError, ValueError, AttributeError, OverflowError: when they are not numbers by name.

    >>> plain_numbers({"a": 1, "b": float("nan"), "c": True})
    {'a': 1, 'c': 1.0}
    """
    numbers: dict[str, float] = {}
    for name, value in values.items() if values else ():
        if not isinstance(name, str):
            raise TypeError(f"a value's name is a string, not {name!r:.100}")
        number = float(value)
        if math.isfinite(number):
            numbers[name] = value if type(value) in (int, float) else number
    return numbers


def as_number(value: Any) -> float | None:
    """The value as a number, including NaN and infinity; None for what is none, as a list or a tensor of several.

    >>> as_number(3), as_number("3"), as_number(None)
    (3.0, None, None)
    """
    if value is None or isinstance(value, bool | str | bytes):
        return None
    with missing(TypeError, ValueError, RuntimeError):
        return float(value.item() if hasattr(value, "item") else value)  # of a tensor with a graph float() warns
    return None
