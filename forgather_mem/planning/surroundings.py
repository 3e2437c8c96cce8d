"""What is alive beside a training before it begins: other models, such as a teacher, and other tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch import nn

from forgather_mem.heap.owners import find_owners
from forgather_mem.units import MIB, format_bytes


def alive_things() -> tuple[list[nn.Module], list[torch.Tensor]]:
    """All modules and tensors of this process but garbage, also what was frozen, of which nothing is left."""
    gc.unfreeze()
    gc.collect()
    things = gc.get_objects()
    kinds = set(map(type, things))
    modules, tensors = ({one for one in kinds if issubclass(one, kind)} for kind in (nn.Module, torch.Tensor))
    return [one for one in things if type(one) in modules], [one for one in things if type(one) in tensors]


def note_of(part: str, sizes: Iterable[tuple[object, int]], most_named: int = 3) -> list[str]:
    """What the largest of these things are, by the names that hold them."""
    largest = sorted(((thing, size) for thing, size in sizes if size >= MIB), key=lambda row: -row[1])[:most_named]
    if not largest:
        return []
    holders = {one.target: one.holder for one in find_owners([thing for thing, _ in largest], budget_s=0.5)[::-1]}
    names = [
        f"{holders.get(number, type(thing).__name__)} {format_bytes(size)}"
        for number, (thing, size) in enumerate(largest)
    ]
    return [f"{part.capitalize()}: {', '.join(names)}."]
