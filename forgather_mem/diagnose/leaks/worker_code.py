"""Finds what the data workers keep or copy: they are other processes, but their code and the data set can be read."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from forgather_mem.diagnose.leaks.copied_pages import Copied
from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.heap.holder_names import slot_names
from forgather_mem.heap.owner_paths import attributes_of
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.source.container_code import adding_lines
from forgather_mem.source.source_lines import Line, is_user_class
from forgather_mem.source.syntax import Named, local_names, regions_of_module

_FEWEST_OBJECTS = 1_000  # of a data set's container: below, few pages are copied
_MOST = 3


def loader_of(known: object) -> object:
    """The training's loader, or the one with the most workers near the user's code; None without any."""
    if known is not None:
        return getattr(known, "base_dataloader", known)  # Accelerate's
    walk = ReachableGraph.walk()
    loaders = [node for node in walk.nodes if any(c.__name__ == "DataLoader" for c in type(node).__mro__)]
    walk.forget()
    return max(loaders, key=lambda loader: getattr(loader, "num_workers", 0), default=None)


def worker_suspects(loader: object, bytes_per_step: float) -> list[Suspect]:
    """Lines of the dataset and the collator that add to an attribute or to a module's variable."""
    found: dict[tuple[str, Line], Suspect] = {}
    for part in _parts(loader):
        for owner, named, is_list in _held_by_code(part):
            for line in adding_lines(named, is_list)[:1]:
                held_by = f"{owner}.{named.name}"
                one = found[held_by, line] = Suspect(
                    type="attribute" if named.attribute else "variable",
                    bytes_per_step=bytes_per_step,
                    held_by=held_by,
                    each="in each data worker",
                    kind="workers",
                    where="workers",
                )
                one.set_line(line)
                if getattr(loader, "persistent_workers", False):
                    one.cure = f"{one.cure}; until then, start new workers each epoch: persistent_workers=False"
    return list(found.values())[:_MOST]


def copied_suspect(loader: object, copied: Copied) -> Suspect:
    """The data set's container with the most Python objects, whose pages the workers copy."""
    found = [
        (len(value), part, name)
        for part in _parts(loader)
        for name, value in list((attributes_of(part) or {}).items())
        if isinstance(value, list | dict | tuple) and len(value) >= _FEWEST_OBJECTS
    ]
    count, part, name = max(found, key=lambda one: one[0], default=(0, None, ""))
    named = [] if part is None else slot_names(part, name)
    lines = [line for one in named for line in adding_lines(one, is_list=True, assigned=True)]
    suspect = Suspect(
        type=type((attributes_of(part) or {}).get(name)).__name__ if part is not None else "object",
        bytes_per_step=copied.per_step,
        held_by=f"{type(part).__name__}.{name}" if part is not None else None,
        count=count or None,
        kind="copied pages",
        where="workers",
        bounded=copied.why,
    )
    if lines:
        suspect.set_line(lines[0])
    return suspect


def _parts(loader: object) -> list[object]:
    """The data set and the collator; of what only wraps a data set (`Subset`), the inner one, too."""
    parts = [getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)]
    for part in parts:
        inner = getattr(part, "dataset", None)
        if inner is not None and not any(inner is known for known in parts):
            parts.append(inner)
    return [part for part in parts if part is not None]


def _held_by_code(part: object) -> Iterator[tuple[str, Named, bool]]:
    """The attributes of a part and the variables of its module: the owner's name, and whether each is a list."""
    if inspect.isfunction(part):
        yield from _variables(part.__module__, part.__code__.co_name)
        return
    cls = type(part)
    if not is_user_class(cls):
        return
    for name, value in list((attributes_of(part) or {}).items()):
        for named in slot_names(part, name):
            yield cls.__name__, named, isinstance(value, list)
    yield from _variables(cls.__module__, cls.__name__)


def _variables(module: str, within: str) -> Iterator[tuple[str, Named, bool]]:
    """The module's variables that a function or the methods of a class name."""
    regions = [
        region
        for region in regions_of_module(module)
        if within in (region.class_name, getattr(region.node, "name", None))
    ]
    names = {
        part.id
        for region in regions
        for part in ast.walk(region.node)
        if isinstance(part, ast.Name) and part.id not in local_names(region.node)
    }
    for name in sorted(names):
        yield module, Named(name=name, attribute=False, item=False, regions=tuple(regions), of_module=True), False
