"""What a plain value that was read from a file may be: the bounds of its numbers and texts."""

from __future__ import annotations

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
