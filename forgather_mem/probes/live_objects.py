"""All live objects of some classes, also those that `gc.freeze` hides from the collector."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from forgather_mem.source.frame_variables import all_frames, frame_variables, is_our_frame

T = TypeVar("T")
# References: a variable's object, its attributes, an object there, its own, a container, what is in it; and objects.
_NEAR, _MOST_NEAR = 6, 20_000
_LEAD_FAR = ModuleType, FunctionType, type


def live_objects(*classes: type[T]) -> list[T]:
    """All live objects of these classes that the collector tracks, also frozen ones.

    The collector does not show those: while there are any, the heap is walked from modules, frames and unfrozen
    objects, which takes about a second for a million of them.
    """
    if gc.get_freeze_count():
        # The objects first and unnamed: they must not include the list or a frame that holds them.
        return _reachable(classes, gc.get_objects(), [sys.modules], _variables())
    objects, ids = gc.get_objects(), _ids_of_classes(classes)
    # type(), not isinstance(): a proxy's __class__ runs code of its own
    found = list(itertools.compress(objects, map(ids.__contains__, map(id, map(type, objects)))))
    emptied(objects)
    return found


def near_objects(wanted: tuple[type[T], ...]) -> list[T] | None:
    """Those to which a few references lead from what runs; None where these lead to very much.

    In a plain loop it takes 0.5 ms, and no list of all objects, which would be 2 MiB.
    """
    found, seen = list[T](), set[int]()
    level: list[Any] = [*_variables(), *(frame.f_globals for frame in all_frames())]
    for _ in range(_NEAR):
        reached = {id(one): one for one in gc.get_referents(*level) if id(one) not in seen and gc.is_tracked(one)}
        level = [one for one in reached.values() if not issubclass(type(one), _LEAD_FAR)]
        seen.update(map(id, level))
        if len(seen) > _MOST_NEAR:
            return None
        found += [one for one in level if issubclass(type(one), wanted)]
    return found


def emptied(objects: list[T]) -> int:
    """Empty a list of all objects; returns how many they were.

    At once it would free 2 MiB: the C library keeps twice its largest freed block above the heap.
    """
    number = len(objects)
    while objects:
        del objects[-8192:]  # 64 KiB: below what glibc takes and gives back by itself
    return number


def _ids_of_classes(wanted: tuple[type, ...]) -> set[int]:
    """Of these classes and of all below them: five times as fast as a question to each object's class."""
    ids: set[int] = set()
    todo = list(wanted)
    while todo:
        one = todo.pop()
        if id(one) not in ids:
            ids.add(id(one))
            todo += type.__subclasses__(one)
    return ids


def _reachable(wanted: tuple[type[T], ...], *roots: Iterable[object]) -> list[T]:
    found: list[T] = []
    todo: list[object] = []
    seen: set[int] = set()
    classes = _ids_of_classes(wanted)
    batch: Iterable[Any] = itertools.chain(*roots)
    while True:
        for reached in batch:
            if id(reached) not in seen and gc.is_tracked(reached):
                seen.add(id(reached))
                todo.append(reached)
                if id(type(reached)) in classes:
                    found.append(reached)
        if not todo:
            return found
        batch = gc.get_referents(*todo[-1000:])
        del todo[-1000:]


def _variables() -> list[dict[str, object]]:
    """Those of what runs: the collector does not see them inside a running frame."""
    return [frame_variables(frame) for frame in all_frames() if not is_our_frame(frame)]
