"""Does a tensor's graph reach back over steps, as a sum of losses does that nobody detaches?

Autograd numbers its operations as they run. A graph that holds an operation from long ago has grown since; to find
it, the oldest way down is followed first, so that the length of the graph does not count.
"""

from __future__ import annotations

import heapq
from typing import Any

MOST_NODES = 20_000
_LEAF = 2**63  # above: gradients that are summed up, which have no place in the order


def number_of(node: Any) -> int | None:
    """The place of an operation among all that ran; None for what has none."""
    ask = getattr(node, "_sequence_nr", None)
    number = ask() if ask is not None else None
    return None if number is None or number >= _LEAF else int(number)


def reaches_back(node: Any, number: int, seen: set[Any]) -> bool:
    """Whether this operation ran after `number`, and needs one that ran up to then.

    Args:
        node: The `grad_fn` of a tensor.
        number: The newest operation of the earlier look.
        seen: What was looked at for other tensors; with 20 000 of them it ends.
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
