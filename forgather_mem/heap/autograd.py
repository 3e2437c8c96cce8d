"""Graphs of torch's autograd: how old they are, and what they keep for a backward pass.

Autograd numbers its operations as they run, so a number tells the pass in which an operation ran. What a graph keeps is
held in C++: no variable and no search for references leads to it, only its operations do.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from forgather_mem.errors import missing
from forgather_mem.heap.object_size import inside
from forgather_mem.heap.owner_paths import cell_contents
from forgather_mem.probes.tensors import StorageKey, storages_in

if TYPE_CHECKING:
    from torch.autograd.graph import Node

# 101 passes of 40 recurrent cells have 65,000; each takes 6 to 10 us with what it keeps (torch 2.13, idle)
MOST_NODES = 100_000
_LEAF = 2**63  # above: gradient accumulation, which has no number in this order


def number_of(node: object) -> int | None:
    """The sequence number of an operation; None if it has none."""
    number = getattr(node, "_sequence_nr", lambda: None)()
    return None if number is None or number >= _LEAF else int(number)


def reaches_back(node: Node, number: int, seen: set[object]) -> bool:
    """Whether this operation ran after `number` but depends on one that ran up to then.

    The oldest branch is followed first, so that the search does not depend on the length of the graph.

    Args:
        node: The `grad_fn` of a tensor.
        number: The newest operation at the earlier look.
        seen: Operations already visited for other tensors; the search stops at 20,000.
    """
    newest = number_of(node)
    if newest is None or newest <= number:
        return False
    todo = [(newest, 0, node)]
    while todo and len(seen) < MOST_NODES // 5:
        at, _, node = heapq.heappop(todo)
        if at <= number:
            return True
        for below, _ in node.next_functions:
            if below is not None and below not in seen and (age := number_of(below)) is not None:
                seen.add(below)
                heapq.heappush(todo, (age, len(seen), below))
    return False


def operations_of(start: Node | None, seen: set[object], most: int = MOST_NODES) -> list[Node]:
    """This operation and those that lead to it, the oldest first, without those seen before; they are seen then.

    Args:
        start: The `grad_fn` of a tensor.
        seen: Those visited before.
        most: Of these the search ends.
    """
    found: list[Node] = []
    todo = [start]
    while todo and len(seen) < most:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found.append(node)
            todo += [below for below, _ in node.next_functions]
    # Before all numbers: the accumulation of gradients, which has none
    return sorted(found, key=lambda node: -1 if (number := number_of(node)) is None else number)


def is_running_sum(node: Node | None) -> bool:
    """Whether this number adds to an earlier sum what was computed since."""
    while node is not None and _is_number(node):
        below = [one for one, _ in node.next_functions if one is not None]
        if len(below) != 1:
            sides = (below, below[::-1]) if len(below) == 2 and _adds(node) else ()
            return any(_adds(one) and _is_number(one) and _came_before(one, other) for one, other in sides)
        (node,) = below
    return False


def _came_before(node: Node, other: Node) -> bool:
    later = [number for one in operations_of(other, set()) if (number := number_of(one)) is not None]
    return bool(later) and (number_of(node) or 0) < min(later)


def _adds(node: Node) -> bool:
    return node.name().startswith("Add")


def _is_number(node: Node) -> bool:
    results = getattr(node, "_input_metadata", ())
    return bool(results) and all(math.prod(one.shape) == 1 for one in results)


def saved_by(node: Node) -> Iterator[tuple[StorageKey, int]]:
    """The storages that an operation keeps for its backward pass. Nothing is computed again or moved for it."""
    kind: type = type(node)
    for name in _saved_names(kind):
        with missing(RuntimeError, AttributeError):  # freed by its backward pass
            saved = getattr(node, name)
            several = saved if isinstance(saved, list | tuple) else (saved,)
            # Before torch 2.8, which tells of no hooks: they are run
            if not all(hasattr(one, "data") for one in several):
                yield from storages_in(getattr(node, name.removeprefix("_raw"))).items()
                continue
            hooks = [getattr(one, "unpack_hook", None) for one in several]
            # Of activation checkpointing: the input of what will run again
            cells = (cell for hook in hooks for cell in getattr(hook, "__closure__", None) or ())
            inputs = inside([cell_contents(cell) for cell in cells])
            yield from storages_in([getattr(one, "data", None) for one in (*several, *inputs)]).items()


@functools.lru_cache(maxsize=256)
def _saved_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
