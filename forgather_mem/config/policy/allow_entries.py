"""Allow entries: how they are parsed, and where people may write them.

What reads and extends TOML is in `pyproject.py`, and is imported where there is some.
"""

from __future__ import annotations

import builtins
import codecs
import errno
import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path

from forgather_mem.config.policy.names import Name, parse_name
from forgather_mem.errors import ours
from forgather_mem.files import read_file, replace_file

ENVIRONMENT = "FORGATHER_MEM_ALLOW"
_TABLE = b"forgather_mem"  # as in pyproject.py, which is not loaded for a file without it
_ADDRESS = re.compile(r"(?:[\w.+-]+::)*[\w.+-]+://(?!.*::)[^\s,*\\\x00-\x1f]*")
MAX_BYTES = 256 * 2**10
"""Larger files are refused: a `pyproject.toml` may have come with somebody else's folder."""


class Address(str):
    """An address that a person opened, with all that is below it."""

    __slots__ = ()


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
        content = read_file(path, MAX_BYTES)
        return [*_entries_in(content)] if _TABLE in content else []
    except ours(OSError):  # no such file, or something that is no file
        return []
    except ValueError as error:  # from TOML, from UTF-8, or our own
        raise ValueError(f"{path}: {error}") from error


@functools.lru_cache(maxsize=1)  # each environment reads the file, which seldom changes; parsing takes 2 ms
def _entries_in(content: bytes) -> tuple[str, ...]:
    from forgather_mem.config.policy import pyproject  # loads tomllib: 3 ms of a start that finds no entries

    return tuple(pyproject.allowed_in(pyproject.parsed(content.decode("utf-8-sig"))))


def add_entries(folder: Path, entries: Sequence[str]) -> Path:
    """Add entries to `[tool.forgather_mem] allow` in the folder's `pyproject.toml`; the rest stays as it is.

    Raises:
        ValueError: when the file is a link or not TOML, or its table is written in a way that this can't extend.
        OSError: when it is not a regular file, or can't be written; it is then as it was.
    """
    from forgather_mem.config.policy import pyproject

    path = folder / "pyproject.toml"
    if path.is_symlink():
        # In somebody else's folder it may lead to any file of the person who runs this, or to itself.
        target = os.path.realpath(path)
        raise ValueError(
            f"{path} is a link to {target}; write allow = [...] in [tool.{pyproject.TABLE}] there yourself"
        )
    try:
        content = read_file(path, MAX_BYTES, follow=False) if path.exists() else b""
        text = content.decode("utf-8-sig")
        if text and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        before = pyproject.parsed(text)
        allowed = pyproject.allowed_in(before)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    new = [entry for entry in dict.fromkeys(entries) if entry not in allowed]
    if not new:
        return path
    changed = pyproject.with_new_entries(text, before, allowed, new)
    if changed is None:
        written = ", ".join(map(pyproject.quoted, [*new, *allowed]))
        raise ValueError(f"{path}: can't be extended; write allow = [{written}] in [tool.{pyproject.TABLE}]")
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""  # as editors on Windows write it
    replace_file(path, mark + changed.encode(), sync=True)
    return path
