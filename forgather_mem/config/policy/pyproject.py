"""The allow list in the text of a `pyproject.toml`: read, and extended without touching anything else.

Example:
    >>> allowed_in(parsed("[tool.forgather_mem]\\nallow = ['my_module']"))
    ['my_module']
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Sequence
from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]

TABLE = "forgather_mem"
"""Of `[tool]`, that which the list is in."""

_MAX_PARTS = 1_000_000  # the sum over all lines of the square of their number; each takes tomllib 50 ns
_PARTS, _STRINGS = re.compile(r"\.[ \t]*[\w\"'-]"), re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")


def parsed(text: str) -> Document:
    """The document.

    Raises:
        ValueError: when the text is not TOML, or takes too long to parse.
    """
    # tomllib takes time quadratic in the parts of a key: 40 KB of `a.a.a` take it 10 s.
    if sum(len(_PARTS.findall(line)) ** 2 for line in _STRINGS.sub('""', text).splitlines()) > _MAX_PARTS:
        raise ValueError("its keys have too many parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None


def with_new_entries(text: str, document: Document, allowed: Sequence[str], new: Sequence[str]) -> str | None:
    """The text with new entries before the allowed ones; None if it is written in a way that this can't extend.

    Args:
        text: As it is.
        document: What it means.
        allowed: The list in it.
        new: More entries.
    """
    changed = _with_entries(text, allowed, new)
    wanted = copy.deepcopy(document)
    wanted.setdefault("tool", {}).setdefault(TABLE, {})["allow"] = [*new, *allowed]
    return changed if changed is not None and _means(changed, wanted) else None


def _means(text: str, document: Document) -> bool:
    try:
        return parsed(text) == document
    except (ValueError, RecursionError):
        return False


def quoted(entry: str) -> str:
    """An entry as TOML."""
    return json.dumps(entry, ensure_ascii=False).replace("\x7f", "\\u007f")


def allowed_in(document: Document) -> list[str]:
    """The allow list of a document.

    Raises:
        ValueError: when it is not a list of strings.
    """
    tool = document.get("tool", {})
    table = tool.get(TABLE, {}) if isinstance(tool, dict) else None
    if not isinstance(table, dict):
        raise ValueError(f"[tool.{TABLE}] is not a table")
    allow = table.get("allow", [])
    if not isinstance(allow, list) or not all(isinstance(entry, str) for entry in allow):
        raise ValueError(f'[tool.{TABLE}] allow is a list of names, as in allow = ["my_module"]')
    return list(allow)


def _with_entries(text: str, allowed: Sequence[str], new: Sequence[str]) -> str | None:
    """The text with the extended list; None if the list can't be found in it."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"    {quoted(entry)}," for entry in new]
    header = re.search(rf"(?m)^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*{TABLE}[ \t]*\][^\n]*(?:\n|\Z)", text)
    if header is None:
        gap = "" if not text else newline if text.endswith("\n") else newline * 2
        return text + gap + newline.join([f"[tool.{TABLE}]", "allow = [", *lines, "]", ""])
    next_table = re.compile(r"(?m)^[ \t]*\[").search(text, header.end())
    table_end = next_table.start() if next_table else len(text)
    start = re.compile(r"(?m)^[ \t]*allow[ \t]*=[ \t]*\[").search(text, header.end(), table_end)
    if start is None:
        head = text[: header.end()]
        head += "" if head.endswith("\n") else newline
        return head + newline.join(["allow = [", *lines, "]", ""]) + text[header.end() :]
    behind = text[start.end() :]
    if not allowed or behind.lstrip(" \t")[:1] not in ("\r", "\n", "#"):  # the list begins on the same line
        entries = ", ".join(map(quoted, new))
        return text[: start.end()] + entries + (", " if allowed else "") + behind.lstrip(" \t")
    return text[: start.end()] + newline + newline.join(lines) + behind
