"""Recognises templates that are plain YAML and therefore need no rendering.

Importing Jinja takes longer than the rest of a small load. A template without Jinja syntax, line statements, `##`
comments and `[blocks]` needs none of it.
"""

from __future__ import annotations

import re

from forgather_mem.config.source.rendered import Rendered

_LANGUAGE = (
    r"\{[{%#]"  # Jinja
    r"|##"  # comments
    r"|^[^\S\n]*(?:--|<<|>>|==|=>)(?=\s|$)"  # line statements
    r"|^[^\S\n]*\[\w+!*\][^\S\n]*$"  # blocks
    r"|^#[^\S\n]*-{3}"  # sub-templates
    "|[\r\f\v\x1c-\x1e\x85\u2028\u2029\ufeff\uf4c1-\uf4c4]"  # other line ends; characters of Jinja or of tokens
)


def as_plain(text: str, name: str) -> Rendered | None:
    """The rendered text of a template, or None if it needs rendering.

    >>> as_plain("a: 1\\n", "t.yaml").text, as_plain("a: {{ b }}", "t.yaml"), as_plain("<<: *a", "t.yaml") is None
    ('a: 1', None, False)
    """
    if re.search(_LANGUAGE, text, re.MULTILINE):
        return None
    return Rendered.as_is(text.removesuffix("\n"), name)
