"""Doctests in docstrings become code blocks of the site; mkdocstrings would read `>>>` as a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*\n?(?:^\1\S.*\n?|^\1 +\S.*\n?)*", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    """Puts a fence around each doctest, up to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    indent = match[1]
    return f"{indent}```pycon\n{match[0].rstrip()}\n{indent}```\n"
