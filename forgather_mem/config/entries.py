"""What may a person write to open names, and where do they write it?"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

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
    import builtins

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
        table = tomllib.loads(content.decode()).get("tool", {}).get(TABLE, {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    allow = table.get("allow", []) if isinstance(table, dict) else []
    if not isinstance(allow, list) or not all(isinstance(entry, str) for entry in allow):
        raise ValueError(f'{path}: [tool.{TABLE}] allow is a list of names, as in allow = ["my_module"]')
    return allow
