"""What may a person write to open names, and where do they write it?"""

from __future__ import annotations

import builtins
import json
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forgather_mem.config.names import Name, parse_name

ENVIRONMENT = "FORGATHER_MEM_ALLOW"
TABLE = "forgather_mem"


def parse_entry(entry: str) -> Name | str:
    """A name that is opened exactly, or a namespace.

    >>> parse_entry("my_module.callbacks"), str(parse_entry("json:JSONDecoder")), str(parse_entry("getattr"))
    ('my_module.callbacks', 'json:JSONDecoder', 'getattr')

    Raises:
        ValueError: for something else; a star is answered with what opens everything.
    """
    if "*" in entry:
        raise ValueError(f"allow={entry!r}: there are no wild cards; name a module, or use --unsafe-any for all")
    try:
        name = parse_name(entry)
    except ValueError as error:
        raise ValueError(f"allow={entry!r} is no namespace, name or file: {error}") from None
    if ":" in entry:
        return name
    is_built_in = name.kind == "built-in" and (not name.module or _is_function(entry))
    return name if is_built_in else entry


def _is_function(entry: str) -> bool:
    return hasattr(builtins, entry.partition(".")[0])


def entries_of_environment() -> list[str]:
    """Entries in `FORGATHER_MEM_ALLOW`, separated by commas."""
    return [entry.strip() for entry in os.environ.get(ENVIRONMENT, "").split(",") if entry.strip()]


def entries_of_folder(folder: Path) -> list[str]:
    """Entries in `[tool.forgather_mem] allow` of the folder's own `pyproject.toml`.

    Raises:
        ValueError: when the file is not TOML, or the entry no list of strings.
    """
    path = folder / "pyproject.toml"
    try:
        content = path.read_bytes()
    except OSError:  # there is none
        return []
    if TABLE.encode() not in content:
        return []
    try:
        return _allowed(tomllib.loads(content.decode()))
    except ValueError as error:  # of TOML, of UTF-8, of ours
        raise ValueError(f"{path}: {error}") from error


def add_entries(folder: Path, entries: Sequence[str]) -> Path:
    """Write further entries into `[tool.forgather_mem] allow` of the folder's `pyproject.toml`, and nothing else.

    Raises:
        ValueError: when the file is no TOML, or its table is written in a way that this can't extend.
        OSError: when it can't be written.
    """
    path = folder / "pyproject.toml"
    text = path.read_bytes().decode() if path.exists() else ""
    try:
        before = tomllib.loads(text)
        allowed = _allowed(before)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    new = [entry for entry in dict.fromkeys(entries) if entry not in allowed]
    if not new:
        return path
    changed = _with_entries(text, allowed, new)
    table = before.setdefault("tool", {}).setdefault(TABLE, {})
    table["allow"] = [*allowed, *new]
    if changed is None or not _means(changed, before):
        written = ", ".join(map(_quoted, table["allow"]))
        raise ValueError(f"{path}: can't be extended; write allow = [{written}] in [tool.{TABLE}]")
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(changed.encode())
    if path.exists():
        temporary.chmod(path.stat().st_mode)
    temporary.replace(path)
    return path


def _means(text: str, document: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == document
    except tomllib.TOMLDecodeError:
        return False


def _quoted(entry: str) -> str:
    return json.dumps(entry, ensure_ascii=False).replace("\x7f", "\\u007f")


def _allowed(document: dict[str, Any]) -> list[str]:
    tool = document.get("tool", {})
    table = tool.get(TABLE, {}) if isinstance(tool, dict) else {}
    allow = table.get("allow", []) if isinstance(table, dict) else []
    if not isinstance(allow, list) or not all(isinstance(entry, str) for entry in allow):
        raise ValueError(f'[tool.{TABLE}] allow is a list of names, as in allow = ["my_module"]')
    return list(allow)


def _with_entries(text: str, allowed: Sequence[str], new: Sequence[str]) -> str | None:
    """The text with a longer list; None where the list can't be found in it."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"    {_quoted(entry)}," for entry in new]
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
    for end in (found.start() for found in re.finditer(r"\]", text)):
        if end < start.end():
            continue
        try:
            listed = tomllib.loads("allow = " + text[start.end() - 1 : end + 1])["allow"]
        except tomllib.TOMLDecodeError:  # a bracket inside a string or a comment
            continue
        if listed == list(allowed):
            return _inserted(text, start.end(), end, lines, newline)
    return None


def _inserted(text: str, start: int, end: int, lines: Sequence[str], newline: str) -> str:
    """The text with lines before a list's closing bracket at `end`, after a comma."""
    inside = text[start:end].rstrip()
    needs_comma = bool(tomllib.loads(f"x = [{inside}\n]")["x"])
    if needs_comma:
        try:
            tomllib.loads(f"x = [{inside}\n, 1]")
        except tomllib.TOMLDecodeError:  # it has its comma
            needs_comma = False
    comma = newline + "," if needs_comma and "#" in inside.rpartition("\n")[2] else "," if needs_comma else ""
    return text[:start] + inside + comma + newline + newline.join([*lines, ""]) + text[end:]
