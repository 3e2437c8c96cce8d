"""Finds who holds objects: follows references upwards from each to a name that a person can find.

The search goes breadth first from the objects to their referrers, until it reaches a module, a class or a running
function. It uses the heap as Python's collector sees it; after a `gc.freeze()`, which hides most of it, the heap is
walked from its roots instead, which takes about ten times as long.
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Literal

from forgather_mem.heap.owner_paths import frame_name, holder_path, write_path
from forgather_mem.source.frame_variables import frame_variables, is_our_frame, running_frames, running_namespaces

Kind = Literal["variable", "module", "class", "traceback", "notebook"]

MAX_LEVELS = 30
MAX_PER_LEVEL = 5_000  # an object with so many referrers identifies nobody
_CHUNK = 1_000
_NOTEBOOK = re.compile(r"_+|_\d+|_i+\d*|_oh|Out|_exit_code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One path to an object.

    Attributes:
        path: The whole path, e.g. "__main__.trainer.kept[3]" or "local 'kept' of main (train.py:41)[3]".
        kind: Where the path begins: in a running function ("variable"), in a module, at a class; "traceback" if it
            leads through a kept exception; "notebook" for IPython's cache of results (`Out`, `_`).
        holder: The last named object on the path, as people refer to it: "Trainer.kept[3]".
        target: Index of the requested object.
    """

    path: str
    kind: Kind
    holder: str
    target: int


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
    search = _Search(objects, ignore, budget_s)
    try:
        search.run()
        return search.owners(max_owners)
    finally:
        search.forget()


@dataclass(slots=True)
class _Search:
    """Objects reached on the way up, by id (`seen` keeps the ids valid), and the edges between them."""

    objects: Sequence[object]
    ignore: Iterable[object]
    budget_s: float
    began_s: float = field(default_factory=time.thread_time)
    seen: dict[int, object] = field(default_factory=dict)
    holders: dict[int, list[int]] = field(default_factory=dict)
    roots: dict[int, str] = field(default_factory=dict)
    variables: dict[int, list[str]] = field(default_factory=dict)
    namespaces: dict[int, tuple[str, dict[str, object]]] = field(default_factory=dict)
    passed_over: set[int] = field(default_factory=set)
    complete: bool = True

    def run(self) -> None:
        self.namespaces = _namespaces()
        self._look_at_running()
        self.passed_over = {id(thing) for thing in self.ignore}
        own = (self.objects, self.seen, self.holders, self.variables, self.namespaces)
        self.passed_over |= {id(self), *map(id, own)}
        for thing in self.objects:
            self.seen[id(thing)] = thing
        if gc.get_freeze_count():
            self._walk_down()
        else:
            self._climb()

    def _look_at_running(self) -> None:
        for frame in running_frames():
            place = frame_name(frame)
            for name, value in frame_variables(frame).items():
                self.variables.setdefault(id(value), []).append(f"local {name!r} of {place}")

    def _climb(self) -> None:
        """Goes up level by level from the objects to their referrers."""
        level = list(self.objects)
        for _ in range(MAX_LEVELS):
            level = self._next_level(level)
            if not level or self._all_named():
                return
            if self._late() or len(level) > MAX_PER_LEVEL:
                break
        self.complete = False

    def _next_level(self, level: list[object]) -> list[object]:
        here = {id(thing) for thing in level}
        above: list[object] = []
        found = gc.get_referrers(*level)
        self.passed_over |= {id(level), id(above), id(found)}
        for holder in found:
            if self._counts(holder):
                self._add(holder, here)
                if id(holder) not in self.seen:
                    self.seen[id(holder)] = holder
                    if not self._is_root(holder):
                        above.append(holder)
        return above

    def _walk_down(self) -> None:
        """Breadth first from modules and variables to all they hold; then back from the objects' holders."""
        heap: list[object] = []
        came_from: dict[int, object] = {}
        self.passed_over |= {id(heap), id(came_from)}
        came_from |= dict.fromkeys(self.passed_over)  # as if already seen
        here = {id(thing) for thing in self.objects}
        batch: Iterable[object] = itertools.chain(
            (value for frame in running_frames() for value in frame_variables(frame).values()),
            (namespace for _, namespace in self.namespaces.values()),
        )
        holder: object = None
        position = 0
        while True:
            for held in batch:
                if id(held) not in came_from and gc.is_tracked(held):
                    came_from[id(held)] = holder
                    if not (type(held) is FrameType and is_our_frame(held)):
                        heap.append(held)
            if position == len(heap):
                break
            if position % _CHUNK == 0 and self._late():
                self.complete = False
                break
            holder = heap[position]
            batch = gc.get_referents(holder)
            position += 1
        for direct in _holding(heap, here):
            self._add(direct, here)
            below = direct
            while below is not None and id(below) not in self.seen:
                self.seen[id(below)] = below
                if self._is_root(below):
                    break
                holder = came_from[id(below)]
                if holder is not None:
                    self.holders.setdefault(id(below), []).append(id(holder))
                below = holder

    def _counts(self, holder: object) -> bool:
        return id(holder) not in self.passed_over and not (type(holder) is FrameType and is_our_frame(holder))

    def _add(self, holder: object, here: set[int]) -> None:
        for held in here.intersection(map(id, gc.get_referents(holder))):
            self.holders.setdefault(held, []).append(id(holder))

    def _is_root(self, holder: object) -> bool:
        name = self.namespaces.get(id(holder), (None,))[0] or _class_name(holder)
        if name is not None:
            self.roots[id(holder)] = name
        return name is not None or id(holder) in self.variables

    def _late(self) -> bool:
        return time.thread_time() - self.began_s > self.budget_s

    def _all_named(self) -> bool:
        """Whether every direct holder of the objects has been followed to a name."""
        ways = self._ways()
        return all(holder in ways for thing in self.objects for holder in self.holders.get(id(thing), ()))

    def _ways(self) -> dict[int, list[int]]:
        """The shortest path from a name to everything reached, except through the objects themselves."""
        below: dict[int, list[int]] = {}
        for held, holders in self.holders.items():
            for holder in holders:
                below.setdefault(holder, []).append(held)
        targets = {id(thing) for thing in self.objects}
        ways = {key: [key] for key in self.seen if (key in self.roots or key in self.variables) and key not in targets}
        todo = list(ways)
        for key in todo:
            for held in below.get(key, ()):
                if held not in ways and held not in targets:
                    ways[held] = [*ways[key], held]
                    todo.append(held)
        return ways

    def owners(self, max_owners: int) -> Owners:
        ways = self._ways()
        found: dict[str, Owner] = {}
        for number, target in reversed(list(enumerate(map(id, self.objects)))):
            for name in self.variables.get(target, ()):
                found[name] = Owner(path=name, kind="variable", holder=name, target=number)
            for holder in self.holders.get(target, ()):
                if holder in ways:
                    owner = self._owner([*ways[holder], target], number)
                    found.setdefault(owner.path, owner)
        ordered = sorted(found.values(), key=lambda owner: (owner.kind == "notebook", len(owner.path)))
        owners = Owners(ordered[:max_owners])
        owners.complete = self.complete
        return owners

    def _owner(self, way: list[int], number: int) -> Owner:
        nodes = [self.seen[key] for key in way]
        kind: Kind = "variable"
        if way[0] in self.roots:
            kind = "class" if issubclass(type(nodes[0]), type) else "module"
        start = self.roots.get(way[0]) or self.variables[way[0]][0]
        path = start + write_path(nodes, begins_with_namespace=kind == "module")
        if any(type(node) is TracebackType for node in nodes):
            kind = "traceback"
        elif kind == "module" and _is_notebook(nodes):
            kind = "notebook"
        return Owner(path=path, kind=kind, holder=holder_path(nodes) or path, target=number)

    def forget(self) -> None:
        """Release everything reached, even if an error keeps this frame."""
        self.seen.clear()
        self.namespaces.clear()
        self.objects = ()


def _holding(heap: list[object], here: set[int]) -> list[object]:
    found = []
    for start in range(0, len(heap), _CHUNK):
        part = heap[start : start + _CHUNK]
        if not here.isdisjoint(map(id, gc.get_referents(*part))):
            found += [thing for thing in part if not here.isdisjoint(map(id, gc.get_referents(thing)))]
    return found


def _namespaces() -> dict[int, tuple[str, dict[str, object]]]:
    """Namespaces of all modules, the user's first, installed ones last, and of code executed in its own namespace."""
    modules = [(name, vars(module)) for name, module in list(sys.modules.items()) if hasattr(module, "__dict__")]
    modules.sort(key=lambda pair: (pair[0] != "__main__", str(pair[1].get("__file__")).startswith(sys.prefix)))
    found: dict[int, tuple[str, dict[str, object]]] = {}
    for name, namespace in [*modules, *((str(names.get("__name__")), names) for names in running_namespaces())]:
        found.setdefault(id(namespace), (name, namespace))
    return found


def _class_name(cls: object) -> str | None:
    if not issubclass(type(cls), type):
        return None
    assert isinstance(cls, type)
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


def _is_notebook(nodes: Sequence[object]) -> bool:
    namespace = nodes[0]
    if type(namespace) is not dict or "get_ipython" not in namespace:
        return False
    names = [name for name, value in namespace.items() if value is nodes[1]]
    return bool(names) and all(isinstance(name, str) and _NOTEBOOK.fullmatch(name) for name in names)
