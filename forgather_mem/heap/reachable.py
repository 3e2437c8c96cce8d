"""Walks what the user's variables reach, with its names: from the top down, nearest first, not far.

A leak in a training is nearly always held by something near: a callback, the trainer, the model, the data, a module's
variable. This walk takes some 20 ms where the whole heap takes half a second; it does not use the collector, so a
`gc.freeze()` hides nothing; and the path down is the name.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Reversible, Sequence
from queue import SimpleQueue
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from forgather_mem.errors import ours
from forgather_mem.heap import owner_paths
from forgather_mem.heap.containers import container_kind
from forgather_mem.source.frame_variables import frame_variables, running_frames
from forgather_mem.source.source_lines import is_our_class, is_user_class, is_user_file, user_modules

MAX_NODES = 40_000
# Of longer containers only the first and last few items are visited: new ones are last.
MANY, _FIRST, _LAST = 400, 8, 24
SAMPLED = _FIRST + _LAST
ATOMS = frozenset((
    int, float, complex, bool, str, bytes, type(None), CodeType, ModuleType, BuiltinFunctionType, FrameType,
    property, range, slice,
))  # fmt: skip
# Modules of libraries that keep what users pass to them.
_KEEPERS = (
    ("logging", "root"),
    ("logging", "root.manager.loggerDict"),
    ("threading", "_active"),
    ("matplotlib._pylab_helpers", "Gcf.figs"),
    ("gc", "garbage"),
)


class ReachableGraph:
    """Everything nearby, in the order in which it was reached (`walk`); holds live objects, so don't keep it.

    Attributes:
        nodes: The objects reached.
        complete: Whether everything nearby was seen.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.complete = True
        self._above: list[int] = []
        self._labels: dict[int, str] = {}
        self._kinds: dict[type, bool] = {}
        self._seen: dict[int, int] = {}
        self._until_s, self._librarys_from = 0.0, 0

    @classmethod
    def walk(
        cls, budget_s: float = 0.15, failed: Iterable[FrameType] = (), among: Iterable[object] | None = None
    ) -> ReachableGraph:
        """Walk down from the user's variables, for so many CPU seconds of this thread at most.

        `failed` are functions that an error has left: what only they lead to is reached after the rest. Suspended
        generators are looked for `among` these; else among all objects of the process, some 70 ms and 3 MiB with
        360,000 of them, and not at all where there is no memory for that.
        """
        graph, collects = cls(), gc.isenabled()
        gc.disable()  # a full collection in between would take longer than the whole budget
        try:
            graph._walk(budget_s, failed, _all_objects() if among is None else among)
        finally:
            if collects:
                gc.enable()
        return graph

    def _walk(self, budget_s: float, failed: Iterable[FrameType], among: Iterable[object]) -> None:
        self._until_s = time.thread_time() + budget_s
        of_users, modules = user_modules(len(sys.modules)), list(sys.modules.items())
        # The namespaces of libraries' modules, to which their functions that are written in C lead
        of_libraries = [id(owner_paths.attributes_of(module)) for name, module in modules if name not in of_users]
        ours = dict.fromkeys([id(self), id(self.__dict__), *map(id, vars(self).values()), *of_libraries], -1)
        self._seen.update(ours)  # counted as seen, not entered
        # What only a function's variable leads to comes last, a library's function last of all: an attribute is a
        # better name
        users, plain, librarys = (list[tuple[str, Any]]() for _ in range(3))
        left = list(failed)
        for frame in itertools.chain(left, running_frames()):
            of_user = is_user_file(frame.f_code.co_filename)
            where = owner_paths.frame_name(frame)
            for name, thing in frame_variables(frame).items():
                is_plain = container_kind(type(thing)) is not None or frame in left
                roots = librarys if not of_user else plain if is_plain else users
                roots.append((f"local {name!r} of {where}", thing))
        # What is suspended may be held by a `for` statement alone; to ask for its frame would create one that stays
        for one in [one for one in among if type(one) in owner_paths.FRAMES]:
            code = getattr(one, owner_paths.FRAMES[type(one)].replace("frame", "code"))
            plain += [("", one)] if is_user_file(code.co_filename) else []
        position = 0
        for roots in ([*users, *_namespaces()], plain, librarys):
            if roots is librarys:
                self._librarys_from = len(self.nodes)
            for label, thing in roots:
                counts = _counts(type(thing)) and (not issubclass(type(thing), type) or is_user_class(thing))
                if counts and id(thing) not in self._seen:
                    self._labels[len(self.nodes)] = label
                    self._put(thing, -1)
            position = self._descend(position)
        for key in ours:
            del self._seen[key]

    def ids(self) -> set[int]:
        """The ids of everything reached."""
        return set(self._seen)

    def position(self, key: int) -> int | None:
        """The position of the node with this `id`."""
        return self._seen.get(key)

    def way(self, position: int) -> list[object]:
        """The objects from a root down to this node."""
        found = []
        while position >= 0:
            found.append(self.nodes[position])
            position = self._above[position]
        return found[::-1]

    def parent(self, position: int) -> int:
        """The position of the object that led to this node; -1 for a root."""
        return self._above[position]

    def is_namespace(self, position: int) -> bool:
        """Whether this is the namespace of an instance's attributes, or of a class's."""
        above = self._above[position]
        return above >= 0 and owner_paths.is_namespace_of(self.nodes[above], self.nodes[position])

    def is_module(self, position: int) -> bool:
        """Whether this is the namespace of a module."""
        return type(self.nodes[position]) is dict and not self._labels.get(position, "local ").startswith("local ")

    def label(self, position: int) -> str:
        """The name of the root from which this node was reached: a module, or "local 'x' of f (train.py)"."""
        while self._above[position] >= 0:
            position = self._above[position]
        return self._labels[position]

    def is_librarys_variable(self, position: int) -> bool:
        """Whether only a variable of a library's function leads to this node."""
        return position >= self._librarys_from

    def path(self, position: int) -> str:
        """The full path, e.g. "__main__.CACHE['rows']"."""
        label, way = self.label(position), self.way(position)
        names = type(way[0]) is dict and not label.startswith("local ")
        return (label + owner_paths.write_path(way, begins_with_namespace=names)).removeprefix(", ")

    def holder(self, position: int) -> str:
        """The path as people write it: from the last object with attributes on it ("LossCallback.losses")."""
        return owner_paths.holder_path(self.way(position)) or self.path(position)

    def owner(self, position: int) -> object:
        """The instance or class that `holder` begins with; None for a module or a function's variable."""
        for thing in reversed(self.way(position)[:-1]):
            if isinstance(thing, type) or owner_paths.has_attributes(thing):
                return thing
        return None

    def lead(self, label: str, way: Sequence[object]) -> None:
        """Add objects that nothing nearby leads to, each of which leads to the next; the first one gets this name."""
        above = -1
        for thing in way:
            if id(thing) not in self._seen:
                self._put(thing, above)
                self._labels |= {self._seen[id(thing)]: label} if above < 0 else {}
            above = self._seen[id(thing)]

    def forget(self) -> None:
        """Release everything reached."""
        for kept in (self.nodes, self._above, self._labels, self._kinds, self._seen):
            kept.clear()

    def _descend(self, position: int) -> int:
        nodes, above, seen, kinds = self.nodes, self._above, self._seen, self._kinds
        while position < len(nodes):
            late = not position % 500 and time.thread_time() > self._until_s
            if late or len(nodes) > MAX_NODES:
                self.complete = False
                break
            for held in _held_by(nodes[position]):
                kind = type(held)
                counts = kinds.get(kind)
                if counts is None:
                    counts = kinds[kind] = _counts(kind)
                if counts and id(held) not in seen and (not issubclass(kind, type) or is_user_class(held)):
                    seen[id(held)] = len(nodes)
                    nodes.append(held)
                    above.append(position)
            position += 1
        return position

    def _put(self, thing: object, above: int) -> None:
        self._seen[id(thing)] = len(self.nodes)
        self.nodes.append(thing)
        self._above.append(above)


def _all_objects() -> list[object]:
    try:
        return gc.get_objects()
    except ours(MemoryError):
        return []


def _namespaces() -> Iterator[tuple[str, object]]:
    for name in sorted(user_modules(len(sys.modules)), key=lambda name: name != "__main__"):
        if (module := sys.modules.get(name)) is not None:
            yield name, vars(module)
    for name, attribute in _KEEPERS:
        keeper: object = sys.modules.get(name)
        for part in attribute.split("."):
            keeper = getattr(keeper, part, None)
        if keeper is not None:
            yield f"{name}.{attribute}", keeper


def _counts(kind: type) -> bool:
    """Whether objects of this class may hold a leak: numbers and strings hold nothing, ours are not the user's."""
    return kind not in ATOMS and not is_our_class(kind)


def _held_by(thing: Any) -> Iterable[Any]:
    kind = type(thing)
    if issubclass(kind, dict) and dict.__len__(thing) > MANY:  # methods of a subclass may do anything, even import
        return _ends(dict.values(thing))
    if (kind is list or kind is tuple or kind is deque) and len(thing) > MANY:
        return _ends(thing)
    if (kind is set or kind is frozenset) and len(thing) > MANY:
        return list(itertools.islice(thing, _LAST))
    if kind is SimpleQueue:
        held = gc.get_referents(thing)  # all its items, from Python 3.13 on
        return held if len(held) <= MANY else _ends(held)
    if kind is FunctionType:
        # To read `__dict__` would create one in each
        own = [one for one in gc.get_referents(thing) if type(one) is dict and one is not thing.__globals__]
        return [*map(owner_paths.cell_contents, thing.__closure__ or ()), thing.__defaults__, *own]
    return gc.get_referents(thing)


def _ends(items: Reversible[object]) -> list[object]:
    return [*itertools.islice(items, _FIRST), *itertools.islice(reversed(items), _LAST)]
