"""What has grown between two looks at the things near the user's code, and what does each new piece take?"""

from __future__ import annotations

import gc
import itertools
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

from forgather_mem.diagnose.walk import LRU_CACHE, Walk
from forgather_mem.probes.tensors import storages_of

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
_SAMPLES = 6
_MOST_INSIDE = 3_000
_BIG_BYTES = 2048
_MOST_GRAPH_NODES = 4_000
_SHARED = (type, ModuleType, CodeType, str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Look:
    """Numbers only, nothing alive: how long, how big and how deep the things near were at a step."""

    step: int
    lengths: dict[int, int]
    sizes: dict[int, int]
    graphs: dict[int, int]
    types: Counter[str]
    known: set[int]


@dataclass(slots=True)
class Grown:
    """Something that has grown between two looks; `samples` is alive and dropped with the call.

    Attributes:
        position: Its place in the walk.
        kind: "items" of a container, "size" of one value, "graph" behind a tensor, "chain" of objects.
        count_per_step: New items a step.
        each_bytes: What one of them takes.
        count: Items in it now.
        samples: Some new items.
        bound: How many items it will have at most, where it says so.
    """

    position: int
    kind: str
    count_per_step: float
    each_bytes: float
    count: int
    samples: list[Any] = field(default_factory=list)
    bound: int | None = None

    @property
    def bytes_per_step(self) -> float:
        return self.count_per_step * self.each_bytes


def look(walk: Walk, step: int) -> Look:
    """What there is now."""
    lengths: dict[int, int] = {}
    sizes: dict[int, int] = {}
    graphs: dict[int, int] = {}
    types: Counter[str] = Counter()
    for node in walk.nodes:
        kind = type(node)
        length = length_of(node)
        if length is not None:
            lengths[id(node)] = length
        if kind not in _CONTAINERS and kind is not tuple:
            types[kind.__qualname__] += 1
        if getattr(node, "grad_fn", None) is not None and _is_tensor(node):
            graphs[id(node)] = graph_nodes(node)
    for node in walk.nodes:
        size = _own_bytes(node)  # not by asking for `__dict__`, which would make one
        if size:
            sizes[id(node)] = size
    return Look(step, lengths, sizes, graphs, types, walk.ids())


def grown(before: Look, walk: Walk, step: int) -> list[Grown]:
    """What has grown since, the largest first."""
    steps = max(1, step - before.step)
    found: list[Grown] = []
    counted: set[tuple[object, int]] = set()
    for position, node in enumerate(walk.nodes):
        then, now = before.lengths.get(id(node)), length_of(node)
        if then is not None and now is not None and now > then:
            samples = newest(node, min(now - then, _SAMPLES))
            each = sum(deep_bytes(sample, before.known, counted) for sample in samples) / max(1, len(samples))
            each += 8 if type(node) in (list, deque) else 100
            grown_here = Grown(position, "items", (now - then) / steps, each, now, samples, bound_of(node))
            found.append(grown_here)
        elif now == then and id(node) in before.sizes:
            more = _own_bytes(node) - before.sizes[id(node)]
            if more > _BIG_BYTES:
                found.append(Grown(position, "size", 1.0, more / steps, 1, _largest(node)))
    found += _graphs(before, walk, steps)
    found += _replaced(before, walk, steps, found)
    return sorted(found, key=lambda one: -one.bytes_per_step)


def _graphs(before: Look, walk: Walk, steps: int) -> Iterator[Grown]:
    """Tensors with a graph behind them that is longer than any was before: a sum of losses that are not detached."""
    longest = max(before.graphs.values(), default=0)
    for position, node in enumerate(walk.nodes):
        if _is_tensor(node) and node.grad_fn is not None:
            now = graph_nodes(node)
            if now > longest + steps / 2 and now > 1.02 * longest:
                yield Grown(position, "graph", 1.0, 0.0, now, [node])
                longest = now


def _replaced(before: Look, walk: Walk, steps: int, found: list[Grown]) -> Iterator[Grown]:
    """Objects that hang on each other: ever more of a class, and no container that has grown by them."""
    types = Counter(type(node).__qualname__ for node in walk.nodes)
    listed = Counter(type(sample).__qualname__ for one in found for sample in one.samples)
    for name, now in types.items():
        more = now - before.types.get(name, 0)
        if more < max(4, 0.5 * steps) or listed[name]:
            continue
        at = [
            number
            for number, node in enumerate(walk.nodes)
            if type(node).__qualname__ == name and id(node) not in before.known
        ]
        if not at or type(walk.nodes[at[0]]).__module__ == "builtins":
            continue
        samples = [walk.nodes[number] for number in at[: _SAMPLES // 2]]
        known = before.known | {id(walk.nodes[number]) for number in at}
        each = sum(deep_bytes(sample, known - {id(sample)}, set()) for sample in samples) / len(samples)
        yield Grown(at[0], "chain", more / steps, each, now, samples)


def length_of(node: Any) -> int | None:
    """How many items a container has; None for what is none."""
    kind = type(node)
    if kind in _CONTAINERS or issubclass(kind, dict | list | set | deque):
        try:
            return len(node)
        except Exception:  # noqa: BLE001  # somebody's own __len__
            return None
    if kind is LRU_CACHE:
        return int(node.cache_info().currsize)
    return None


def bound_of(node: Any) -> int | None:
    """How many items it can have at most, None for one without a limit."""
    if type(node) is LRU_CACHE:
        maximum = node.cache_info().maxsize
        return None if maximum is None else int(maximum)
    if isinstance(node, deque):
        return node.maxlen
    return None


def newest(node: Any, count: int) -> list[Any]:
    """The items that came last, as far as the container has an order."""
    if type(node) is LRU_CACHE:
        held = [thing for thing in gc.get_referents(node) if not isinstance(thing, type)]
        size = node.cache_info().currsize
        if bound_of(node) is not None:  # keys and results in turn, from the oldest on
            return held[: 2 * size][-2 * count :]
        caches = [thing for thing in held if type(thing) is dict and len(thing) == size]
        return [result for cache in caches[:1] for result in itertools.islice(reversed(cache.values()), count)]
    if issubclass(type(node), dict):
        keys = list(itertools.islice(reversed(node), count))
        # A weak dictionary's values are references
        return [(key, dict.get(node, key)) for key in keys]
    if issubclass(type(node), list | deque):
        return list(itertools.islice(reversed(node), count))
    return list(itertools.islice(iter(node), count))


def deep_bytes(thing: Any, known: set[int], counted: set[tuple[object, int]]) -> float:
    """What goes when this goes: itself and what it alone leads to. `known` was there before; storages count once."""
    total = 0.0
    seen: set[int] = set()
    todo = [thing]
    while todo and len(seen) < _MOST_INSIDE:
        part = todo.pop()
        if id(part) in seen or id(part) in known or isinstance(part, type | ModuleType | CodeType):
            continue
        seen.add(id(part))
        kind = type(part)
        if kind is int and -6 < part < 257:
            continue
        if _is_tensor(part):
            total += 200.0
            for key, size in storages_of(part):
                if key not in counted:
                    counted.add(key)
                    total += size
            continue
        total += array_bytes(part) or sys.getsizeof(part, 64)
        if kind is FunctionType:
            todo += list(part.__closure__ or ())
            todo += [part.__defaults__]
        elif kind not in _SHARED:
            todo += gc.get_referents(part)
    return total


def array_bytes(part: Any) -> int:
    """Bytes of an array, with what it is a view of; 0 for what is none."""
    if type(part).__module__.partition(".")[0] not in ("numpy", "pandas", "array", "mmap"):
        return 0
    base = getattr(part, "base", None)
    size = getattr(base if hasattr(base, "nbytes") else part, "nbytes", 0)
    return size if isinstance(size, int) else 0


def graph_nodes(tensor: Any) -> int:
    """How many operations the tensor's graph has, 4 000 at most."""
    seen: set[Any] = set()
    todo = [tensor.grad_fn]
    while todo and len(seen) < _MOST_GRAPH_NODES:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [below for below, _ in node.next_functions]
    return len(seen)


def big_bytes(thing: Any) -> int:
    """Bytes of a tensor's storages, an array, a text."""
    if _is_tensor(thing):
        return sum(size for _, size in storages_of(thing))
    if type(thing) in (bytes, str, bytearray):
        return sys.getsizeof(thing)
    return array_bytes(thing)


def _own_bytes(node: Any) -> int:
    """Of tensors, arrays and texts held directly; of a long container nothing, since its length tells."""
    length = length_of(node)
    if (length or 0) > 64 or type(node) in (FrameType, TracebackType, MethodType) or _is_tensor(node):
        return 0
    return sum(map(big_bytes, gc.get_referents(node)))


def _largest(node: Any) -> list[Any]:
    return sorted(gc.get_referents(node), key=big_bytes)[-1:]


def _is_tensor(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(type(thing), torch.Tensor)
