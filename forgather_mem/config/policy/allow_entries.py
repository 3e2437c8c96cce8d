"""Allow entries: how they are parsed, and where people may write them.

The list in a `pyproject.toml` is extended without touching anything else in it.
"""

from __future__ import annotations

import builtins
import errno
import functools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from forgather_mem.config.policy.names import Name, parse_name
from forgather_mem.errors import missing, ours
from forgather_mem.files import read_regular, replace_file

ENVIRONMENT = "FORGATHER_MEM_ALLOW"
TABLE = "forgather_mem"
"""Of `[tool]`, that which the list is in."""
_ADDRESS = re.compile(r"(?:[\w.+-]+::)*[\w.+-]+://(?!.*::)[^\s,*\\\x00-\x1f]*")
MAX_BYTES = 256 * 2**10
"""Larger files are refused: a `pyproject.toml` may have come with somebody else's folder."""


class Address(str):
    """An address that a person opened, with all that is below it."""


def parse_entry(entry: str) -> Name | Address | str:
    """A name that is opened exactly, an address, or a namespace.

    >>> parse_entry("my_module.callbacks"), str(parse_entry("json:JSONDecoder")), str(parse_entry("getattr"))
    ('my_module.callbacks', 'json:JSONDecoder', 'getattr')

    Raises:
        ValueError: for anything else; for a star, the message says what opens everything.
    """
    if "://" in entry:
        if _ADDRESS.fullmatch(entry):
            return Address(entry)
        raise ValueError(f"allow={entry!r}: an address has the form scheme://host/folder/")
    if "*" in entry:
        raise ValueError(f"allow={entry!r}: there are no wild cards; name a module, or use --unsafe-any for all")
    try:
        name = parse_name(entry)
    except ValueError as error:
        raise ValueError(f"allow={entry!r} is no namespace, name or file: {error}") from None
    if ":" in entry:
        return name
    is_built_in = name.kind == "built-in" and (not name.module or hasattr(builtins, entry.partition(".")[0]))
    return name if is_built_in else entry


def entries_of_environment() -> list[str]:
    """Entries from `FORGATHER_MEM_ALLOW`, separated by commas."""
    return [entry.strip() for entry in os.environ.get(ENVIRONMENT, "").split(",") if entry.strip()]


def entries_of_folder(folder: Path) -> list[str]:
    """Entries from `[tool.forgather_mem] allow` in the `pyproject.toml` of the folder itself.

    Raises:
        ValueError: when the file is too large or not TOML, or the entry is not a list of strings.
    """
    path = folder / "pyproject.toml"
    try:
        content = _content(path, follow=True)
        return [*_entries_in(content)] if TABLE.encode() in content else []
    except ours(OSError):  # no such file, or something that is no file
        return []
    except ValueError as error:  # from TOML, from UTF-8, or our own
        raise ValueError(f"{path}: {error}") from error


def _content(path: Path, *, follow: bool) -> bytes:
    try:
        return read_regular(path, MAX_BYTES, follow=follow)
    except ours(OSError) as error:
        if error.errno == errno.EFBIG:
            raise ValueError(error.strerror) from error
        raise


@functools.lru_cache(maxsize=1)  # each environment reads the file, which seldom changes; parsing takes 2 ms
def _entries_in(content: bytes) -> tuple[str, ...]:

    return tuple(allowed_in(parsed(content.decode("utf-8-sig"))))


def add_entries(folder: Path, entries: Sequence[str]) -> Path:
    """Add entries to `[tool.forgather_mem] allow` in the folder's `pyproject.toml`; the rest stays as it is.

    Raises:
        ValueError: when the file is a link or not TOML, or its table is written in a way that this can't extend.
        OSError: when it is not a regular file, or can't be written; it is then as it was.
    """
    path = folder / "pyproject.toml"
    if path.is_symlink():
        # In somebody else's folder it may lead to any file of the person who runs this, or to itself.
        target = os.path.realpath(path)
        raise ValueError(f"{path} is a link to {target}; write allow = [...] in [tool.{TABLE}] there yourself")
    try:
        content = _content(path, follow=False) if path.exists() else b""
        text = content.decode("utf-8-sig")
        if text and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        before = parsed(text)
        allowed = allowed_in(before)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    new = [entry for entry in dict.fromkeys(entries) if entry not in allowed]
    if not new:
        return path
    changed = _with_entries(text, allowed, new)
    before.setdefault("tool", {}).setdefault(TABLE, {})["allow"] = [*new, *allowed]
    is_meant = False
    with missing(ValueError, RecursionError):
        is_meant = parsed(changed) == before
    if not is_meant:  # the table is written in another way
        written = ", ".join(map(quoted, [*new, *allowed]))
        raise ValueError(f"{path}: can't be extended; write allow = [{written}] in [tool.{TABLE}]")
    replace_file(path, changed.encode(), sync=True)
    return path


Document: TypeAlias = dict[str, Any]

_MAX_PARTS = 1_000_000  # the sum over all lines of the square of their number; each takes tomllib 50 ns
_PARTS, _STRINGS = re.compile(r"\.[ \t]*[\w\"'-]"), re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")


def parsed(text: str) -> Document:
    """The document.

    Raises:
        ValueError: when the text is not TOML, or takes too long to parse.
    """
    import tomllib  # 3 ms of a start that finds no entries

    # tomllib takes time quadratic in the parts of a key: 40 KB of `a.a.a` take it 10 s.
    if sum(len(_PARTS.findall(line)) ** 2 for line in _STRINGS.sub('""', text).splitlines()) > _MAX_PARTS:
        raise ValueError("its keys have too many parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None


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


def _with_entries(text: str, allowed: Sequence[str], new: Sequence[str]) -> str:
    """The text with the extended list, where that is found."""
    entries = ", ".join(map(quoted, new))
    header = re.search(rf"(?m)^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*{TABLE}[ \t]*\][^\n]*", text)
    if header is None:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[tool.{TABLE}]\nallow = [{entries}]\n"
    begins = re.compile(r"(?m)^[ \t]*(allow[ \t]*=[ \t]*)?\[").search(text, header.end())  # the list, or the next table
    if begins is None or not begins[1]:
        return f"{text[: header.end()]}\nallow = [{entries}]{text[header.end() :]}"
    return text[: begins.end()] + entries + (", " if allowed else "") + text[begins.end() :]
