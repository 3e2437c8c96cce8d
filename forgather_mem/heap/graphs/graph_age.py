"""Recognises autograd graphs that reach back over steps, such as a sum of losses that is never detached.

Autograd numbers its operations as they run. A graph with an old operation has grown since; the oldest branch is
followed first, so that the search does not depend on the length of the graph.
"""

from __future__ import annotations

import heapq
from typing import Any

MOST_NODES = 20_000
_LEAF = 2**63  # above: gradient accumulation, which has no number in this order


def number_of(node: object) -> int | None:
    """The sequence number of an operation; None if it has none."""
    ask = getattr(node, "_sequence_nr", None)
    number = ask() if ask is not None else None
    return None if number is None or number >= _LEAF else int(number)


def reaches_back(node: Any, number: int, seen: set[Any]) -> bool:
    """Whether this operation ran after `number` but depends on one that ran up to then.

    Args:
        node: The `grad_fn` of a tensor.
        number: The newest operation at the earlier look.
        seen: Operations already visited for other tensors; the search stops at 20 000.
    """
    newest = number_of(node)
    if newest is None or newest <= number:
        return False
    todo = [(newest, 0, node)]
    while todo and len(seen) < MOST_NODES:
        at, _, node = heapq.heappop(todo)
        if at <= number:
            return True
        for below, _ in node.next_functions:
            if below is not None and below not in seen and (age := number_of(below)) is not None:
                seen.add(below)
                heapq.heappush(todo, (age, len(seen), below))
    return False
