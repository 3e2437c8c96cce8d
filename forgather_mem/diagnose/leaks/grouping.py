"""Merges growing things that are one leak in many places: a list per layer, a history per parameter."""

from __future__ import annotations

import re

from forgather_mem.diagnose.leaks.snapshot import GrownObject
from forgather_mem.heap.reachable import ReachableGraph

_MOST = 400
_INDEX = re.compile(r"\[[^\]]*\]")
_HOOKS = re.compile(r"^\w+(\._(?:\w+_)?hooks(?:_\w+)?)$")  # of one layer, whose class it begins with


def merge_similar(found: list[GrownObject], walk: ReachableGraph) -> list[GrownObject]:
    """Merge those that differ only by an index or a key; the largest first."""
    groups: dict[tuple[str, str], list[tuple[str, GrownObject]]] = {}
    for one in found[:_MOST]:
        name = walk.holder(one.position)
        key = _HOOKS.sub(r"Module\1", _INDEX.sub("[]", name))
        groups.setdefault((key, one.kind), []).append((name, one))
    merged = [group[0][1] if len(group) == 1 else _sum_of(group) for group in groups.values()]
    return sorted([*merged, *found[_MOST:]], key=lambda one: -one.bytes_per_step)


def common_name(names: list[str]) -> str:
    """What these names have in common.

    >>> common_name(["Norms.of['a'][0]", "Norms.of['b'][0]"])
    'Norms.of[...][0]'
    >>> common_name(["Linear._forward_hooks", "LayerNorm._forward_hooks"])
    'Module._forward_hooks'
    """
    if len(set(names)) > 1 and all(map(_HOOKS.match, names)):
        return _HOOKS.sub(r"Module\1", names[0])
    indices = [_INDEX.findall(name) for name in names]
    shared = iter([same[0] if len(set(same)) == 1 else "[...]" for same in zip(*indices, strict=True)])
    return _INDEX.sub(lambda _: next(shared), names[0])


def _sum_of(group: list[tuple[str, GrownObject]]) -> GrownObject:
    ones = [one for _, one in group]
    first = ones[0]
    count_per_step = sum(one.count_per_step for one in ones)
    each_bytes = sum(one.bytes_per_step for one in ones) / count_per_step
    return GrownObject(
        first.position,
        first.kind,
        count_per_step,
        each_bytes,
        sum(one.count for one in ones),
        first.samples,
        None if any(one.bound is None for one in ones) else sum(one.bound or 0 for one in ones),
        common_name([name for name, _ in group]),
    )
