"""Finds tensors whose autograd graph keeps another tensor alive, as an undetached loss keeps a model.

The graph lives in C++, so neither the collector nor a search for owners sees these references.
"""

from __future__ import annotations

import gc
import itertools
import sys
from typing import TYPE_CHECKING

from forgather_mem.heap.owners import Owner, find_owners

if TYPE_CHECKING:
    from torch.autograd.graph import Node

MAX_TENSORS = 1_000
MAX_NODES = 100_000


def graph_owners(wanted: object, *, max_owners: int = 3, budget_s: float = 2.0) -> list[Owner]:
    """Paths to tensors whose autograd graph ends at `wanted`; empty if it is not a tensor, or in no graph."""
    torch = sys.modules.get("torch")
    if torch is None or not issubclass(type(wanted), torch.Tensor):
        return []
    with_graph = (
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.Tensor) and thing is not wanted and thing.grad_fn is not None
    )
    tensors = list(itertools.islice(with_graph, MAX_TENSORS))
    owners = find_owners(tensors, max_owners=MAX_TENSORS, budget_s=budget_s, ignore=[tensors])
    leading = {number: _leads_to(tensors[number].grad_fn, wanted) for number in {owner.target for owner in owners}}
    return [owner for owner in owners if leading[owner.target]][:max_owners]


def _leads_to(node: Node, wanted: object) -> bool:
    seen: set[object] = set()
    todo = [node]
    while todo and len(seen) < MAX_NODES:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", None) is wanted:
            return True
        todo += [below for below, _ in node.next_functions if below is not None]
    return False
