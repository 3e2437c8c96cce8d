"""Recognises templates that are plain YAML and therefore need no rendering.

Importing Jinja takes longer than the rest of a small load. A template without Jinja syntax, line statements, `##`
comments and `[blocks]` needs none of it.
"""

from __future__ import annotations

import re

from forgather_mem.config.source.tokens import RESERVED

# Each begins with a literal character, which `re` finds much faster than a line's beginning or one of several patterns.
_JINJA = re.compile(r"\{[{%#]")
_LINES = re.compile(
    r"\n(?:[^\S\n]*+"
    r"(?:(?:--|<<|>>|==|=>)(?=\s|\Z)"  # line statements
    r"|\[\w+!*\][^\S\n]*(?=\n|\Z))"  # blocks
    r"|#[^\S\n]*-{3})"  # sub-templates
)
_OTHER = (*"\r\f\v\x1c\x1d\x1e\x85\u2028\u2029\ufeff", *RESERVED)  # other line ends; characters of Jinja or of tokens


def is_plain(text: str) -> bool:
    """Whether a text has nothing of the template language.

    >>> is_plain("a: 1\\n"), is_plain("a: {{ b }}"), is_plain("<<: *a"), is_plain("-- if b")
    (True, False, True, False)
    """
    if "##" in text or _JINJA.search(text) or any(char in text for char in _OTHER):
        return False
    return not _LINES.search(f"\n{text}")
