"""What a plain value that was read from a file may be: the bounds of its numbers and texts."""

from __future__ import annotations

import math
from collections.abc import Mapping

# A size, a count or a time in seconds beyond this is none.
MOST = 10**18
_MAX_TEXT = 10_000
_NUMBERS = (int, float)


def is_number(value: object) -> bool:
    """Whether this can be a size, a count or a time.

    >>> is_number(1.5), is_number(True), is_number(float("nan")), is_number(10**400)
    (True, False, False, False)
    """
    # Not `int | float`, which would be made anew at each of a log's many numbers
    return isinstance(value, _NUMBERS) and not isinstance(value, bool) and -MOST <= value <= MOST


def bounded_text(value: str) -> str:
    """The text, or the beginning of a very long one.

    >>> len(bounded_text("." * 20_000))
    10003
    """
    return value if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]}..."


# ---- numbers as others give them: a user's probe, action or sink, or a file of ours that anybody may have written ----


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
