"""Which templates does a template use, and on which level?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from forgather_mem.config.compiler import Load


class Reference(NamedTuple):
    """A template that is used.

    Attributes:
        level: 0 for the template that was asked for, 1 for what it uses, and so on.
        name: What templates call it.
        file: Its file, "" for a string.
    """

    level: int
    name: str
    file: str


def referenced(loads: Sequence[Load]) -> list[Reference]:
    """The templates of a render as a tree in preorder, each once, where it was used first; by name on a level."""
    users: dict[str, list[Load]] = {}
    for load in loads[1:]:
        assert load.by is not None
        if all(load.source.key != other.source.key for others in users.values() for other in others):
            users.setdefault(load.by.key, []).append(load)
    return list(_tree(loads[0], 0, users)) if loads else []


def _tree(load: Load, level: int, users: Mapping[str, Sequence[Load]]) -> Iterator[Reference]:
    source = load.source
    yield Reference(level, source.name, str(source.file or ""))
    for child in sorted(users.get(source.key, ()), key=lambda used: used.source.name):
        yield from _tree(child, level + 1, users)
