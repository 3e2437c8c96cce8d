"""All live objects of some classes, also those that `gc.freeze` hides from the collector."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from forgather_mem.source.frame_variables import all_frames, frame_variables, is_our_frame, running_namespaces

T = TypeVar("T")
# References: a variable's object, its attributes, an object there, its own, a container, what is in it; and objects.
_NEAR, _MOST_NEAR = 6, 20_000
_LEAD_FAR = ModuleType, FunctionType, type
Classes = type[T] | tuple[type[T], ...]


class _Mark:
    """Made unfrozen: once it is frozen, so is all that was made before."""


# What of some classes was frozen when this mark was made; nothing has been added to it since.
_frozen: dict[object, list[weakref.ref[Any]]] = {}
_mark = _Mark()


def live_objects(wanted: Classes[T]) -> list[T]:
    """All live objects of these classes that the collector tracks, also frozen ones.

    Frozen ones are found by walking the heap from modules, frames and unfrozen objects, once after each freeze: about
    a second for a million objects. Their classes must allow weak references.
    """
    global _mark
    classes = wanted if isinstance(wanted, tuple) else (wanted,)
    found = _of_classes(gc.get_objects(), (*classes, _Mark))
    if not any(one is _mark for one in found):
        _frozen.clear()
        _mark = _Mark()
    unfrozen = {id(one): one for one in found if not isinstance(one, _Mark)}
    if wanted not in _frozen:
        _frozen[wanted] = [weakref.ref(one) for one in _reachable_if_frozen(classes) if id(one) not in unfrozen]
    hidden = (reference() for reference in _frozen[wanted])
    return list(unfrozen.values()) + [one for one in hidden if one is not None and id(one) not in unfrozen]


def near_objects(wanted: tuple[type[T], ...]) -> list[T] | None:
    """Those to which a few references lead from what runs; None where these lead to very much.

    In a plain loop it takes 0.5 ms, and no list of all objects, which would be 2 MiB.
    """
    found, seen = list[T](), set[int]()
    level: list[Any] = [*_variables(), *running_namespaces()]
    for _ in range(_NEAR):
        reached = {id(one): one for one in gc.get_referents(*level) if id(one) not in seen and gc.is_tracked(one)}
        level = [one for one in reached.values() if not issubclass(type(one), _LEAD_FAR)]
        seen.update(map(id, level))
        if len(seen) > _MOST_NEAR:
            return None
        found += [one for one in level if issubclass(type(one), wanted)]
    return found


def live_unless_frozen(wanted: Classes[T]) -> list[T] | None:
    """As `live_objects`, but None where the heap has been frozen: that walk is not taken."""
    objects = gc.get_objects()
    if not any(one is sys.modules for one in objects):  # `gc.get_freeze_count()` would count them all
        return None
    return _of_classes(objects, wanted if isinstance(wanted, tuple) else (wanted,))


def _of_classes(objects: list[T], wanted: tuple[type, ...]) -> list[T]:
    """Those of these classes; empties the list of objects."""
    ids = _ids_of_classes(wanted)
    # type(), not isinstance(): a proxy's __class__ runs code of its own
    found = list(itertools.compress(objects, map(ids.__contains__, map(id, map(type, objects)))))
    while objects:  # at once it would free 2 MiB: the C library keeps twice its largest freed block above the heap
        del objects[-8192:]  # 64 KiB: below what glibc takes and gives back by itself
    return found


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


def _reachable_if_frozen(wanted: tuple[type[T], ...]) -> list[T]:
    if not gc.get_freeze_count():
        return []
    # The objects first and unnamed: they must not include the list or a frame that holds them.
    return _reachable(wanted, gc.get_objects(), [sys.modules], _variables())


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
