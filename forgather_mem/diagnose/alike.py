"""Which of the things that grow are one leak in many places: a list for each layer, a history for each parameter?"""

from __future__ import annotations

import re

from forgather_mem.diagnose.growth import Grown
from forgather_mem.diagnose.walk import Walk

_MOST = 400
_INDEX = re.compile(r"\[[^\]]*\]")


def as_one(found: list[Grown], walk: Walk) -> list[Grown]:
    """Those that differ by an index or a key only, told as one; the largest first."""
    groups: dict[tuple[str, str], list[tuple[str, Grown]]] = {}
    for one in found[:_MOST]:
        name = walk.holder(one.position)
        groups.setdefault((_INDEX.sub("[]", name), one.kind), []).append((name, one))
    merged = [group[0][1] if len(group) == 1 else _sum_of(group) for group in groups.values()]
    return sorted([*merged, *found[_MOST:]], key=lambda one: -one.bytes_per_step)


def common_name(names: list[str]) -> str:
    """What these names share.

    >>> common_name(["Norms.of['a'][0]", "Norms.of['b'][0]"])
    'Norms.of[...][0]'
    """
    indices = [_INDEX.findall(name) for name in names]
    shared = iter([same[0] if len(set(same)) == 1 else "[...]" for same in zip(*indices, strict=True)])
    return _INDEX.sub(lambda _: next(shared), names[0])


def _sum_of(group: list[tuple[str, Grown]]) -> Grown:
    ones = [one for _, one in group]
    first = ones[0]
    count_per_step = sum(one.count_per_step for one in ones)
    each_bytes = sum(one.bytes_per_step for one in ones) / count_per_step
    return Grown(
        first.position,
        first.kind,
        count_per_step,
        each_bytes,
        sum(one.count for one in ones),
        first.samples,
        None if any(one.bound is None for one in ones) else sum(one.bound or 0 for one in ones),
        common_name([name for name, _ in group]),
    )
