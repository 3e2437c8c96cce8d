"""Finds growth far from the user's variables: in a library's modules or classes, or out of reach of the walk."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

from forgather_mem.diagnose.leaks.holder_kinds import signature_of
from forgather_mem.diagnose.leaks.snapshot import GrownObject, bound_of, length_of, newest
from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.heap.object_size import CONTAINER, Sorts, deep_bytes, is_tensor
from forgather_mem.heap.owner_paths import attributes_of
from forgather_mem.heap.owners import find_owners
from forgather_mem.source.source_lines import is_our_class, user_modules

OWNERS_S = 0.15  # half a second for a million objects; an HF process has 0.4 million
_ONE_LEVEL_S = 0.04  # asking all of them once for the holders of something
_SAMPLES = 6


class LibraryContainers:
    """The containers held by libraries' modules, their classes and their objects, with their lengths.

    Visiting all modules takes 0.1 s, so it is done once, and the containers are kept for these few steps.
    """

    def __init__(self, near: set[int]) -> None:
        self._known = [
            (name, held, length)
            for name, held in _containers()
            if id(held) not in near and (length := length_of(held)) is not None
        ]

    def grown(self, near: set[int], steps: int) -> list[Suspect]:
        """Those that have grown longer."""
        found = []
        for name, held, then in self._known:
            now = length_of(held)
            if now is None or now <= then or id(held) in near:
                continue
            samples = newest(held, min(now - then, _SAMPLES))
            each = sum(deep_bytes(sample, near, set()) for sample in samples) / max(1, len(samples))
            one = GrownObject(0, "items", (now - then) / steps, each, now, samples, bound_of(held))
            kind = "tensor" if any(map(is_tensor, samples)) else "dict" if isinstance(held, dict) else "list"
            found.append(
                Suspect(
                    type=type(held).__name__,
                    bytes_per_step=one.bytes_per_step,
                    count_per_step=one.count_per_step,
                    held_by=name,
                    each=signature_of(one),
                    whose="library",
                    count=now,
                    bytes=int(now * each),
                    kind=kind,
                    where="tensors" if kind == "tensor" else "python",
                    bounded=None if one.bound is None else f"{name} holds {one.bound:,} at most",
                )
            )
        return found


def _containers() -> Iterator[tuple[str, object]]:
    """Name and container, at most two levels below a library's module."""
    sorts = Sorts()
    users = set(user_modules(len(sys.modules)))
    for name, module in list(sys.modules.items()):
        if name in users or not isinstance(module, ModuleType) or name.startswith("forgather_mem"):
            continue
        for attribute, held in list(vars(module).items()):
            kind = type(held)
            if sorts[kind] == CONTAINER:
                yield f"{name}.{attribute}", held
            elif issubclass(kind, type):
                if held.__dict__.get("__module__") == name:
                    yield from _attributes(f"{name}.{attribute}", dict(vars(held)), sorts)
            elif kind.__module__ != "builtins" and not is_our_class(kind):
                yield from _attributes(f"{name}.{attribute}", attributes_of(held) or {}, sorts)


def _attributes(name: str, attributes: dict[str, object], sorts: Sorts) -> Iterator[tuple[str, object]]:
    for attribute, held in list(attributes.items()):
        if sorts[type(held)] == CONTAINER and attribute != "__dict__":
            yield f"{name}.{attribute}", held


def far_holder(
    young: list[object], near: set[int], steps: int, least_bytes: float, owners_s: float = OWNERS_S
) -> list[Suspect]:
    """The class with the most new bytes, and the holder of one of its objects.

    Args:
        young: Recently created objects.
        near: Ids of the objects that the walk has reached.
        steps: Number of steps in which they were created.
        least_bytes: Growth per step from which the search is worthwhile.
        owners_s: Time limit of the search, in seconds.
    """
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    samples: dict[str, object] = {}
    for thing in young:
        if id(thing) not in near:
            name = type(thing).__qualname__
            counts[name] += 1
            sizes[name] += int(deep_bytes(thing, near, set())) if is_tensor(thing) else 100
            samples[name] = thing
    name, size = next(iter(sizes.most_common(1)), ("", 0))
    if owners_s < _ONE_LEVEL_S or not name or size / steps < least_bytes or counts[name] < max(2, steps / 4):
        return []
    owners = find_owners([samples[name]], max_owners=1, budget_s=owners_s, ignore=[young, samples])
    kind = "tensor" if is_tensor(samples[name]) else "list"
    return [
        Suspect(
            type=name,
            bytes_per_step=size / steps,
            count_per_step=counts[name] / steps,
            held_by=owner.holder,
            each=name,
            kind=kind,
            where="tensors" if kind == "tensor" else "python",
        )
        for owner in owners
    ]
