"""The templates that a template uses, as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from forgather_mem.config.rendering.compiler import Load


class Reference(NamedTuple):
    """A template in use.

    Attributes:
        level: 0 for the requested template, 1 for those that it uses, and so on.
        name: What templates call it.
        file: Its file, "" for a string.
    """

    level: int
    name: str
    file: str


def referenced(loads: Sequence[Load]) -> list[Reference]:
    """The templates of a render as a tree in preorder, each once, at its first use; sorted by name within a level."""
    users: dict[str, list[Load]] = {}
    seen = {loads[0].source.key} if loads else set()
    for load in loads[1:]:
        assert load.by is not None
        if load.source.key not in seen:
            seen.add(load.source.key)
            users.setdefault(load.by.key, []).append(load)
    return list(_tree(loads[0], 0, users)) if loads else []


def _tree(load: Load, level: int, users: Mapping[str, Sequence[Load]]) -> Iterator[Reference]:
    source = load.source
    yield Reference(level, source.name, str(source.file or ""))
    for child in sorted(users.get(source.key, ()), key=lambda used: used.source.name):
        yield from _tree(child, level + 1, users)
