"""Resolves the text of a YAML scalar to its value.

The rules are those of YAML 1.1 as PyYAML's safe loader applies them (yes and on are true, 1_000 and 1:30 are
numbers, 2024-01-01 is a date), plus the numbers of YAML 1.2: 1e-4, 1e5, 1.5E3, -.5 are numbers.
"""

from __future__ import annotations

import datetime
import re

import yaml

MAX_NUMBER_CHARS = 1_000
"""Longer numbers are refused: Python can't even print integers of some thousand digits."""

STANDARD = "tag:yaml.org,2002:"
"""The prefix that `!!` stands for."""

_BOOLS = {
    spelling: value
    for value, words in ((True, ("yes", "true", "on")), (False, ("no", "false", "off")))
    for word in words
    for spelling in (word, word.capitalize(), word.upper())
}
_NULLS: dict[str, None] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_INFINITE = {
    sign + "." + word: float(sign + word)
    for word in ("inf", "Inf", "INF", "nan", "NaN", "NAN")
    for sign in (("", "+", "-") if word[0] in "iI" else ("",))
}
_WORDS: dict[str, object] = {**_BOOLS, **_NULLS, **_INFINITE}

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_BASED = re.compile(r"(?P<sign>[-+]?)(?:0b(?P<bin>[01_]+)|0x(?P<hex>[0-9a-fA-F_]+)|0(?P<oct>[0-7_]+))")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+)"
)
_SIXTIES = re.compile(r"(?P<sign>[-+]?)(?P<parts>[0-9][0-9_]*(?::[0-5]?[0-9])+)(?P<fraction>\.[0-9_]*)?")
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?"
    r"(?:[ \t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?"
)
_NUMBER_START = frozenset("+-.0123456789")


def resolve(text: str) -> object:
    """The value of a plain scalar (one without quotes or a tag).

    >>> [resolve(text) for text in ("1e-4", "off", "0x1F", "1_000", "~", "12 GiB", "torch")]
    [0.0001, False, 31, 1000, None, '12 GiB', 'torch']

    Raises:
        ValueError: for a number too long to handle, or a date that does not exist.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in _NUMBER_START:
        return _number_or_date(text)
    return text


def is_text(text: str) -> bool:
    """Whether a plain scalar stands for itself.

    >>> is_text("torch"), is_text("1e-4"), is_text("true")
    (True, False, False)
    """
    try:
        return isinstance(resolve(text), str)
    except ValueError:  # of a number that is too long, or a date that does not exist
        return False


def convert(tag: str, text: str) -> object:
    """The value of a scalar with a standard tag, for example `!!float 2`.

    >>> convert("tag:yaml.org,2002:float", "2"), convert("tag:yaml.org,2002:str", "12")
    (2.0, '12')

    Raises:
        ValueError: if the text is not such a value; LookupError for a tag that is not a plain scalar type.
    """
    kind = tag.removeprefix(STANDARD)
    if kind == "str":
        return text
    if kind == "null":
        return None
    if kind not in ("bool", "int", "float"):
        raise LookupError(kind)
    value = resolve(text)
    if kind == "float" and type(value) is int:
        return float(value)
    if type(value).__name__ != kind:
        raise ValueError(f"{text[:80]!r} is not a valid {kind}")
    return value


def _number_or_date(text: str) -> object:
    if len(text) > MAX_NUMBER_CHARS:
        if text.strip("+-.0123456789_:eExabcdfABCDF") == "":
            raise ValueError(f"a number has {MAX_NUMBER_CHARS:,} characters at most; this one has {len(text):,}")
        return text
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    if found := _BASED.fullmatch(text):
        return _based(found, text)
    if found := _SIXTIES.fullmatch(text):
        return _sixties(found, text)
    if _DATE.fullmatch(text):
        return _date(text)
    return text


def _based(found: re.Match[str], text: str) -> object:
    for group, base in (("bin", 2), ("hex", 16), ("oct", 8)):
        if found[group]:
            digits = found[group].replace("_", "")
            if not digits:  # "0_" is zero, "0x_" is text
                return 0 if base == 8 else text
            return int(found["sign"] + digits, base)
    raise AssertionError(text)


def _sixties(found: re.Match[str], text: str) -> object:
    if found["fraction"] is None and found["parts"].startswith("0"):
        return text  # 00:30 is text, 1:30 is 90
    value: int | float = 0
    for part in found["parts"].replace("_", "").split(":"):
        value = value * 60 + (int(part) if found["fraction"] is None else float(part))
    if found["fraction"] is not None:
        value += float("0" + found["fraction"].replace("_", ""))
    return -value if found["sign"] == "-" else value


def _date(text: str) -> datetime.date:
    try:
        node = yaml.ScalarNode(STANDARD + "timestamp", text)
        value = yaml.constructor.SafeConstructor().construct_yaml_timestamp(node)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} looks like a date but is not one ({error}); quote it if it is text") from error
    assert isinstance(value, datetime.date)
    return value
