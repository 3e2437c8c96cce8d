"""Resolves the text of a YAML scalar to its value.

The rules are those of YAML 1.1, and PyYAML's safe loader applies them (yes and on are true, 1_000 and 1:30 are
numbers, 2024-01-01 is a date); the numbers of YAML 1.2 are added: 1e-4, 1e5, 1.5E3, -.5 are numbers.
"""

from __future__ import annotations

import re

from yaml import ScalarNode
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

MAX_NUMBER_CHARS = 1_000
"""Longer numbers are refused: Python can't even print integers of some thousand digits."""

STANDARD = "tag:yaml.org,2002:"
"""The prefix that `!!` stands for."""

_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+)"
)
_NUMBER_START = frozenset("+-.0123456789")
# By a text's first character; "<<" is the composer's, and "=" has lost its meaning
_RULES = {
    first: [(tag, rule) for tag, rule in rules if not tag.endswith((":merge", ":value"))]
    for first, rules in Resolver.yaml_implicit_resolvers.items()
}


def resolve(text: str) -> object:
    """The value of a plain scalar (one without quotes or a tag).

    >>> [resolve(text) for text in ("1e-4", "off", "0x1F", "1_000", "~", "12 GiB", "torch")]
    [0.0001, False, 31, 1000, None, '12 GiB', 'torch']

    Raises:
        ValueError: for a number too long to handle, or a date that does not exist.
    """
    if text[:1] in _NUMBER_START:
        if len(text) > MAX_NUMBER_CHARS:
            if text.strip("+-.0123456789_:eExXabcdfABCDF") == "":
                raise ValueError(f"a number has {MAX_NUMBER_CHARS:,} characters at most; this one has {len(text):,}")
            return text
        if _FLOAT.fullmatch(text):
            return float(text.replace("_", ""))
    for tag, rule in _RULES.get(text[:1], ()):
        if rule.match(text):
            return _made(tag, text)
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


def _made(tag: str, text: str) -> object:
    try:
        return SafeConstructor.yaml_constructors[tag](SafeConstructor(), ScalarNode(tag, text))
    except (ValueError, OverflowError) as error:
        if tag == f"{STANDARD}timestamp":
            raise ValueError(f"{text!r} looks like a date but is not one ({error}); quote it if it is text") from error
        return text  # as "0x_", which has no digit


PLAIN_SPACE = "write a plain space, or put the text in quotes"
_ODD_BLANK = re.compile(r"(?:^|:)[\xa0\u2000-\u200a\u202f\u205f\u3000]|[\u200b\u2060\ufeff]")


def odd_blank(text: str) -> str | None:
    """What is wrong with an unquoted text that begins with a blank of another alphabet, or has an invisible one."""
    found = None if text.isascii() else _ODD_BLANK.search(text)
    return f"the character U+{ord(found[0][-1]):04X} here is a blank that is none to YAML" if found else None
