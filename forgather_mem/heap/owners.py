"""Finds who holds objects: follows references from all names that a person can find down to them.

The search goes breadth first from modules and running functions through the whole heap, the user's first. It does not
use the collector's lists, so that a `gc.freeze()` hides nothing.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType

from forgather_mem.heap.owner_paths import frame_name, holder_path, write_path
from forgather_mem.source.frame_variables import all_frames, frame_variables, is_our_frame, running_frames

_CHUNK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One path to an object.

    Attributes:
        path: The whole path, e.g. "__main__.trainer.kept[3]" or "local 'kept' of main (train.py)[3]".
        holder: The last named object on the path, as people refer to it: "Trainer.kept[3]".
        target: Index of the requested object.
        way: The paths of all that leads to it, down to its own.
    """

    path: str
    holder: str
    target: int
    way: tuple[str, ...]


class Owners(list[Owner]):
    """What a search has found; `complete` unless it ended before all that leads to the objects was followed."""

    complete = True


def find_owners(
    objects: Sequence[object], *, max_owners: int = 5, budget_s: float = 2.0, ignore: Iterable[object] = ()
) -> Owners:
    """The paths by which these objects are still held, shortest first, one for each that holds one directly.

    Functions of this library are skipped, whoever calls. No references are kept.

    Args:
        objects: The objects to look for.
        max_owners: Maximum number of paths.
        budget_s: Processor seconds of this thread; the search then returns what it has.
        ignore: Holders that don't count: these objects themselves, not what holds them.
    """
    search = _Search(objects, ignore)
    try:
        return search.owners(max_owners, complete=search.run(budget_s))
    finally:
        search.forget()


class _Search:
    """Goes breadth first from all that has a name down to the objects, which are not entered themselves.

    `heap` keeps what was reached alive, so that an id stands for one object; `came_from` has what led to each.
    """

    def __init__(self, objects: Sequence[object], ignore: Iterable[object]) -> None:
        self.objects = objects
        self.targets = {id(thing): number for number, thing in reversed(list(enumerate(objects)))}
        self.heap: list[object] = []
        self.came_from: dict[int, object] = dict.fromkeys(map(id, ignore))  # as if already seen
        self.variables: dict[int, list[str]] = {}
        self.namespaces = _namespaces()
        self.found: dict[str, Owner] = {}

    def run(self, budget_s: float) -> bool:
        """Whether all was looked at within so many CPU seconds of this thread."""
        until_s = time.thread_time() + budget_s
        for frame in running_frames():
            place = frame_name(frame)
            for name, value in frame_variables(frame).items():
                self.variables.setdefault(id(value), []).append(f"local {name!r} of {place}")
                self._add([value], None)
        self._add([namespace for _, namespace in self.namespaces.values()], None)
        for number, holder in enumerate(self.heap):
            if number % _CHUNK == 0 and time.thread_time() > until_s:
                return False
            if id(holder) in self.targets or (type(holder) is FrameType and is_our_frame(holder)):
                continue
            held = gc.get_referents(holder)
            if not self.targets.keys().isdisjoint(map(id, held)):
                for target in {self.targets[id(thing)] for thing in held if id(thing) in self.targets}:
                    owner = self._owner(holder, target)
                    self.found.setdefault(owner.path, owner)
            self._add(held, holder)
        return True

    def owners(self, max_owners: int, *, complete: bool) -> Owners:
        for key, number in self.targets.items():
            for name in self.variables.get(key, ()):
                self.found[name] = Owner(path=name, holder=name, target=number, way=(name,))
        owners = Owners(sorted(self.found.values(), key=lambda owner: len(owner.path))[:max_owners])
        owners.complete = complete
        return owners

    def forget(self) -> None:
        """Release everything reached, even if an error keeps this frame."""
        for kept in (self.heap, self.came_from, self.namespaces):
            kept.clear()
        self.objects = ()

    def _add(self, held: Iterable[object], holder: object) -> None:
        heap, came_from = self.heap, self.came_from
        for thing in held:
            if id(thing) not in came_from and gc.is_tracked(thing):
                came_from[id(thing)] = holder
                heap.append(thing)

    def _root(self, thing: object) -> str | None:
        """The name that a path may begin with here."""
        if id(thing) in self.namespaces:
            return self.namespaces[id(thing)][0]
        return _class_name(thing) or next(iter(self.variables.get(id(thing), ())), None)

    def _owner(self, holder: object, number: int) -> Owner:
        nodes = [holder, self.objects[number]]
        while (root := self._root(nodes[0])) is None:
            nodes.insert(0, self.came_from[id(nodes[0])])
        is_module = id(nodes[0]) in self.namespaces
        ends = range(1 + is_module, len(nodes) + 1)
        way = tuple(root + write_path(nodes[:end], begins_with_namespace=is_module) for end in ends)
        return Owner(path=way[-1], holder=holder_path(nodes) or way[-1], target=number, way=way)


def _namespaces() -> dict[int, tuple[str, dict[str, object]]]:
    """Namespaces of all modules, the user's first, installed ones last, and of code executed in its own namespace."""
    modules = [(name, vars(module)) for name, module in list(sys.modules.items()) if hasattr(module, "__dict__")]
    modules.sort(key=lambda pair: (pair[0] != "__main__", str(pair[1].get("__file__")).startswith(sys.prefix)))
    running = ((str(frame.f_globals.get("__name__")), frame.f_globals) for frame in all_frames())
    found: dict[int, tuple[str, dict[str, object]]] = {}
    for name, namespace in [*modules, *running]:
        found.setdefault(id(namespace), (name, namespace))
    return found


def _class_name(cls: object) -> str | None:
    if not (issubclass(type(cls), type) and isinstance(cls, type)):
        return None
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
