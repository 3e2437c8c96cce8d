"""Finds what has grown between two looks near the user's code, and the size of each new piece."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from forgather_mem.heap import object_size
from forgather_mem.heap.autograd import number_of, operations_of, reaches_back
from forgather_mem.heap.containers import CONTAINERS, container_kind, length_of, newest
from forgather_mem.heap.reachable import MANY, ReachableGraph
from forgather_mem.probes.tensors import storages_of


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """How much of what is near is looked at. Set on the scripts of `tests/leaks/zoo`.

    Attributes:
        samples: New items of a container that are described.
        most_weighed: Of a container: new items whose sizes are measured.
        weighed_s: CPU seconds for the items of a whole container,
        apart: taken first so many items apart: not what people take to do something at every so many steps.
        big_bytes: A single value that grows by less is none that grows.
        operation_bytes: What an operation of a graph takes once its backward pass has been: 590 to 740 (torch 2.13).
    """

    samples: int = 6
    most_weighed: int = 64
    weighed_s: float = 0.02
    apart: int = 17
    big_bytes: int = 2048
    operation_bytes: int = 650


_LIMITS = SnapshotLimits()
_PLAIN = dict, list  # of which Python gives the place of one that is freed to the next


@dataclass(slots=True)
class Look:
    """Lengths and sizes of nearby objects at one step; numbers only, nothing is kept alive.

    `storages` has each tensor's, the size of each array, and who has each of Python's containers and its ends, by its
    id: the place of one that is freed is given to a new one. `values` has the sizes of what is replaced in each step,
    by name; `places` how many places a list has, of which some may be empty.
    """

    step: int
    known: set[int]
    lengths: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    storages: dict[int, object] = field(default_factory=dict)
    values: dict[str, tuple[int, int]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    newest_operation: int = 0
    types: Counter[str] = field(default_factory=Counter)

    def add(self, container: object, length: int) -> None:
        """Add a container that was not reached: it had this length."""
        self.lengths[_as_number(id(container), type(container))] = length
        self.known.add(id(container))
        self.storages[id(container)] = ()


@dataclass(slots=True)
class GrownObject:
    """Something that has grown between two looks; `samples` holds live objects and is dropped with the call.

    Attributes:
        position: Its place in the walk.
        kind: "items" of a container, "size" of one value, "graph" behind a tensor, "chain" of objects, each of which
            leads to one other, or "objects" that an object of another class holds.
        count_per_step: New items per step.
        each_bytes: Size of one item.
        count: Items in it now.
        samples: Some new items.
        bound: Its maximum number of items, if it has one.
        name: The holder's name for people; "" takes it from the walk. Set when several are merged.
        others: The places of those.
        is_whole: Whether nearly all of its items came as the new ones did; else there are some from before.
        part: What grows in one of its items, as in most of them.
    """

    position: int
    kind: str
    count_per_step: float
    each_bytes: float
    count: int
    samples: list[object] = field(default_factory=list)
    bound: int | None = None
    name: str = ""
    others: list[int] = field(default_factory=list)
    is_whole: bool = True
    part: GrownObject | None = None

    @property
    def bytes_per_step(self) -> float:
        return self.count_per_step * self.each_bytes


def look(walk: ReachableGraph, step: int) -> Look:
    """The present state of what the walk reached."""
    found = Look(step, walk.ids(), types=Counter(type(node).__qualname__ for node in walk.nodes))
    sorts = object_size.Sorts()
    for position, node in enumerate(walk.nodes):
        sort = sorts[type(node)]
        if sort > object_size.CONTAINER or type(node) in _PLAIN:
            found.storages[id(node)] = _storage(walk, position)
        if sort == object_size.TENSOR:
            found.newest_operation = max(number_of(node.grad_fn) or 0, found.newest_operation)
            continue
        length = length_of(node) if sort == object_size.CONTAINER else len(node) if sort == object_size.TUPLE else None
        if sort == object_size.CONTAINER and length is not None:
            found.lengths[_as_number(id(node), type(node))] = length
        if sort != object_size.NOT_ASKED and (length is None or length <= MANY) and (size := sorts.own_bytes(node)):
            found.sizes[id(node)] = size  # without reading `__dict__`, which would create one
    found.places, found.values = {id(node): len(node) for node in walk.nodes if type(node) is list}, _values(walk)
    return found


def grown(before: Look, walk: ReachableGraph, step: int) -> list[GrownObject]:
    """What has grown since, the largest first."""
    steps = max(1, step - before.step)
    found, counted = list(_graphs(before, walk)), set[object]()
    sorts, known, reaching = object_size.Sorts(), _known(before, walk), {one.position for one in found}
    for position, node in enumerate(walk.nodes):
        if id(node) not in known:
            continue  # be it in the place of another one
        then = before.lengths.get(_as_number(id(node), type(node)))
        now = length_of(node) if then is not None else None
        above = walk.parent(position)
        if above >= 0 and CONTAINERS.get(type(walk.nodes[above]), CONTAINERS[list]).has_parts:
            continue  # the cache itself is told
        if then is not None and now is not None and now > then:
            new = _new_items(node, min(now - then, _LIMITS.most_weighed), known)
            sizes = [object_size.deep_bytes(item, known, counted) for item in new]
            row = container_kind(type(node)) or CONTAINERS[list]
            each = usual_bytes(sizes) + row.place_bytes(node)
            bound = len(node) if type(node) is list and before.places.get(id(node)) == len(node) else row.bound(node)
            found.append(GrownObject(position, "items", (now - then) / steps, each, now, _usual(new, sizes), bound))
        elif now == then and id(node) in before.sizes:
            more = sorts.own_bytes(node) - before.sizes[id(node)]
            if more > _LIMITS.big_bytes:
                found.append(GrownObject(position, "size", 1.0, more / steps, 1, object_size.largest_held(node, known)))
    for name, (position, size) in _values(walk).items():
        more = size - before.values.get(name, (0, size))[1]
        if more > _LIMITS.big_bytes and position not in reaching:
            at = position if walk.parent(position) < 0 else walk.parent(position)
            found.append(GrownObject(at, "size", 1.0, more / steps, 1, [walk.nodes[position]]))
    return sorted(found, key=lambda one: -one.bytes_per_step)


def chains(before: Look, walk: ReachableGraph, step: int) -> list[GrownObject]:
    """Chained objects: ever more of one class, but in no container that has grown. The largest first."""
    steps = max(1, step - before.step)
    new: dict[str, list[int]] = {}
    types = Counter(type(node).__qualname__ for node in walk.nodes)
    for position, node in enumerate(walk.nodes):
        if id(node) not in before.known:
            new.setdefault(type(node).__qualname__, []).append(position)
    found, old = [], _known(before, walk)
    for name, at in new.items():
        more, kind = types[name] - before.types[name], type(walk.nodes[at[0]])
        is_part = kind.__module__ == "builtins" or object_size.is_tensor_class(kind)  # of what it is in
        if more < max(4, 0.5 * steps) or (is_part and kind is not FunctionType):
            continue
        samples = [walk.nodes[number] for number in at[: _LIMITS.samples // 2]]
        known = old | {id(walk.nodes[number]) for number in at}
        each = sum(object_size.deep_bytes(sample, known - {id(sample)}, set()) for sample in samples) / len(samples)
        sort = "chain" if _num_links(samples[0]) == 1 else "objects"
        found.append(GrownObject(at[0], sort, more / steps, each, types[name], samples))
    return sorted(found, key=lambda one: -one.bytes_per_step)


def _num_links(sample: object) -> int:
    """How many others of its class it leads to first, be it in an attribute, or in a variable of a function."""
    level, links = [sample], 0
    while level and not links and len(level) <= MANY:
        level = [part for part in gc.get_referents(*level) if not isinstance(part, type)]
        links = sum(type(part) is type(sample) for part in level)
    return links


def _known(before: Look, walk: ReachableGraph) -> set[int]:
    """The ids of what there was, without those that a new tensor or container has got, or an array that is longer."""
    sorts, then = object_size.Sorts(), before.storages.get
    there = (
        (at, node)
        for at, node in enumerate(walk.nodes)
        if type(node) in _PLAIN or sorts[type(node)] > object_size.CONTAINER
    )
    return before.known - {id(node) for at, node in there if (was := then(id(node))) != _storage(walk, at, was)}


def _graphs(before: Look, walk: ReachableGraph) -> Iterator[GrownObject]:
    """New tensors whose graph reaches back to before the first look: a sum of losses that are not detached."""
    seen: set[object] = set()
    for position, node in enumerate(walk.nodes):
        start = node.grad_fn if object_size.is_tensor(node) and before.newest_operation else None
        if start is not None and start not in seen and reaches_back(start, before.newest_operation, seen):
            yield GrownObject(position, "graph", 1.0, 0.0, 1, [node])


def _values(walk: ReachableGraph) -> dict[str, tuple[int, int]]:
    """The place and the size of what a variable of the user's functions holds, and of the graph behind any variable."""
    found: dict[str, tuple[int, int]] = {}
    seen: set[object] = set()
    for position, node in enumerate(walk.nodes):
        at = walk.parent(position)
        is_local = at < 0 and not walk.is_librarys_variable(position)
        is_tensor = object_size.is_tensor(node)
        if is_local or (at >= 0 and walk.is_module(at) and is_tensor):  # a path to others would read `__dict__`
            graph = operations_of(node.grad_fn, seen) if is_tensor and node.grad_fn is not None else ()
            size = len(graph) * _LIMITS.operation_bytes + is_local * object_size.big_bytes(node)
            found[walk.path(position)] = position, size
    return found


def weigh_whole(found: Iterable[GrownObject], walk: ReachableGraph) -> None:
    """Set the size of an item to the mean of all that each of these holds, or of some that came at any time.

    What came between two looks may be unlike the rest: a holder of texts gets a model's weights now and then.
    """
    ours = {one.position: one for one in found}
    within = set(ours)
    within.update(at for at in range(len(walk.nodes)) if walk.parent(at) in within)  # it grows meanwhile
    others = {id(node) for at, node in enumerate(walk.nodes) if at not in within or at in ours}
    for position, one in ours.items():
        every = newest(node := walk.nodes[position], 100 * MANY)  # more would take some 10 ms
        mixed = itertools.chain.from_iterable(every[first :: _LIMITS.apart] for first in range(_LIMITS.apart))
        parts = [(item, {id(item), *map(id, item if type(item) is tuple else ())}) for item in mixed]
        parts = [(item, own) for item, own in parts if others.isdisjoint(own)]  # what others have, too, says nothing
        known, until_s = others.union(*(own for _, own in parts)), time.thread_time() + _LIMITS.weighed_s
        sizes, counted = list[tuple[object, float, bool]](), set[object]()
        for item, own in parts:
            if len(sizes) < _LIMITS.samples or time.thread_time() < until_s:
                known -= own  # each without the others, which it may lead to
                shared = any(id(part) in others and object_size.is_array(part) for part in object_size.inside([item]))
                sizes.append((item, object_size.deep_bytes(item, known, counted), shared))
                known |= own
        sizes = [row for row in sizes if not row[2]] or sizes  # a variable has the tensors of the last one, too
        if sizes:
            items, weights, _ = zip(*sizes, strict=True)
            one.samples = _usual(items, weights)
            row = container_kind(type(node)) or CONTAINERS[list]
            one.each_bytes = statistics.fmean(weights) + row.place_bytes(node)


def _usual(items: Sequence[object], sizes: Sequence[float]) -> list[object]:
    """Some of them, first those of the size in which most bytes are, and one that differs, if any does."""
    most = sum(size * size for size in sizes) / max(1.0, sum(sizes))
    nearest = [item for item, _ in sorted(zip(items, sizes, strict=False), key=lambda pair: abs(pair[1] - most))]
    return nearest[: _LIMITS.samples - 1] + nearest[_LIMITS.samples - 1 :][-1:]


def usual_bytes(sizes: list[float]) -> float:
    """The mean, without the few that seem to take nothing: new objects with the id of an old one.

    >>> usual_bytes([40.0, 40.0, 0.0, 40.0]), usual_bytes([40.0, 0.0, 0.0, 0.0]), usual_bytes([])
    (40.0, 10.0, 0.0)
    """
    some = [size for size in sizes if size > 0.1 * max(sizes)]
    return statistics.fmean(some if 2 * len(some) > len(sizes) else sizes) if sizes else 0.0


def _storage(walk: ReachableGraph, position: int, then: Any = None) -> object:
    """What tells this tensor, array or container from another in its place; `then` if it is still that container."""
    thing, above = walk.nodes[position], walk.parent(position)
    if type(thing) not in _PLAIN:
        return next(iter(storages_of(thing)), None) if object_size.is_tensor(thing) else object_size.big_bytes(thing)
    held = thing.values() if type(thing) is dict else thing
    now = id(walk.nodes[above]) if above >= 0 else 0, id(next(iter(held), None)), id(next(reversed(held), None))
    if now == then or not then:
        return now if then is None else then
    holders = map(id, walk.way(position)[-3:-1])  # an object, or its `__dict__` once somebody has asked for it
    return then if then[0] in holders or not {*then[1:]}.isdisjoint(map(id, list(held))) else now


def _as_number(key: int, kind: type) -> int:
    """A pair as one number: a tuple would itself be a new object, and would keep the class alive."""
    return key << 64 | id(kind)


def _new_items(node: Any, count: int, known: set[int]) -> list[object]:
    """Items that were not there at the last look, wherever they are: in a heap or a set, new ones are not last."""
    if issubclass(type(node), set):
        return [item for item in itertools.islice(node, count + MANY) if id(item) not in known][:count]
    if issubclass(type(node), list) and count < len(node) <= MANY:
        new = [item for item in node if id(item) not in known]
        if count <= len(new) < len(node):  # numbers and strings are not tracked
            return new[-count:]
    return newest(node, count)
