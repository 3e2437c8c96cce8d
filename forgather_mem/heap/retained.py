"""Weak references to objects that should be released: which are still alive, how much they hold, who owns them."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from forgather_mem.heap.autograd import operations_of
from forgather_mem.heap.object_size import is_tensor
from forgather_mem.heap.owners import Owner, find_owners
from forgather_mem.probes.tensors import storages_of, tensors_in
from forgather_mem.units import format_bytes


@dataclass(frozen=True, slots=True)
class LookLimits:
    """How far what holds a tensor or a graph is looked for.

    Attributes:
        watched: Tensors of one thing.
        sampled: Of these, that are looked for.
        tensors: Of those with a graph.
        budget_s: For one search.
    """

    watched: int = 100_000
    sampled: int = 16
    tensors: int = 1_000
    budget_s: float = 2.0


_LOOK = LookLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """An object that should have been released but still exists, entirely or in part.

    Attributes:
        what: Its type, or for a tensor its shape and dtype.
        whole: Whether the object itself is alive, or of a list or a dictionary, of which that is not known, its
            content; False if only some of its tensors are.
        num_bytes: Size of its live tensors, each storage counted once.
        num_tensors: Number of live tensors.
        owners: Paths to it, as a programmer would write them; empty if none was found.
        searched: Whether all that may lead to it was looked at: then no variable does where there are no owners.
    """

    what: str
    whole: bool
    num_bytes: int
    num_tensors: int
    owners: tuple[str, ...]
    searched: bool = True

    def __str__(self) -> str:
        number = self.num_tensors
        rest = f", {format_bytes(self.num_bytes)} in {number:,} tensor{'s' * (number != 1)}" * (number > 0)
        head = f"{'' if self.whole else 'the memory of '}{self.what} is still held{rest}"  # a list can't be watched
        if not self.owners and not self.searched:
            return f"{head}; holder not found: the search ran out of time"
        if not self.owners:
            who = "a running statement or C++ code holds it"
            return f"{head}, and no variable leads to it: {who}, or it is garbage hidden by gc.freeze()"
        return "\n".join([f"{head}, by", *(f"  {owner}" for owner in self.owners)])


class WeakWatch:
    """Weak references to objects and to the tensors in them.

    Args:
        objects: The objects to watch.
        labels: A name for each; default: a description.
    """

    def __init__(self, objects: Sequence[object], labels: Sequence[str] = ()) -> None:
        named = itertools.zip_longest(objects, labels)
        self._watched = [_Watch(thing, label or describe(thing)) for thing, label in named if thing is not None]

    def held(self, max_owners: int = 3, leaving: Sequence[str] = ()) -> list[Retained]:
        """Those that are alive, with their owners.

        Args:
            max_owners: The most of them.
            leaving: Owners that don't count, as paths begin: they let go after the call.
        """
        return [held for watch in self._watched if (held := watch.held(max_owners, tuple(leaving))) is not None]


class _Watch:
    def __init__(self, thing: object, what: str) -> None:
        self.what = what  # no reference is to a list, a dictionary or a number
        self.itself = weakref.ref(thing) if type(thing).__weakrefoffset__ else None
        self.tensors = list(map(weakref.ref, itertools.islice(tensors_in(thing, gradients=True), _LOOK.watched)))

    def held(self, max_owners: int, leaving: tuple[str, ...]) -> Retained | None:
        tensors = [tensor for ref in self.tensors if (tensor := ref()) is not None]
        itself = self.itself() if self.itself is not None else None
        if itself is None and not tensors:
            return None
        whole = itself is not None
        sample = tensors[:: 1 + len(tensors) // _LOOK.sampled]
        found = _owners([itself] if whole else sample, max_owners, [tensors, sample], leaving)
        if found is None and whole and tensors:
            whole = False  # soon
            found = _owners(sample, max_owners, [tensors, sample], leaving)
        if found is None:
            return None
        return Retained(
            what=self.what if self.itself is not None else f"the content of {self.what}",
            whole=whole or self.itself is None,
            num_bytes=sum({key: size for tensor in tensors for key, size in storages_of(tensor)}.values()),
            num_tensors=len(tensors),
            owners=found[0],
            searched=found[1],
        )


def _owners(
    wanted: Sequence[object], max_owners: int, ignore: Sequence[object], leaving: tuple[str, ...]
) -> tuple[tuple[str, ...], bool] | None:
    """Paths to what leads to most of them, and whether the search was complete; None if all of these are leaving."""
    found = find_owners(wanted, max_owners=_LOOK.tensors, budget_s=_LOOK.budget_s, ignore=ignore)
    staying = [owner for owner in found if not owner.path.startswith(leaving)]
    reached = Counter(path for path, _ in {(path, owner.target) for owner in staying for path in owner.way})
    held_by = [owner.way[: owner.way.index(max(reversed(owner.way), key=reached.__getitem__)) + 1] for owner in staying]
    if held_by:
        above = {path for way in held_by for path in way[:-1]}
        return tuple(dict.fromkeys(way[-1] for way in held_by if way[-1] not in above))[:max_owners], found.complete
    ways = graph_owners(wanted[0], max_owners=max_owners, budget_s=_LOOK.budget_s)
    if found and not ways:
        return None
    told = [f"the graph of {way.path}: detach it" for way in ways]
    views = [one for one in gc.get_objects() if is_tensor(one) and one._base is wanted[0] is not one]
    others = find_owners(views, max_owners=max_owners, budget_s=_LOOK.budget_s, ignore=[views])
    return tuple([*told, *(f"{way.path}, a view of it: clone it" for way in others)][:max_owners]), found.complete


def describe(thing: object) -> str:
    """A short description.

    >>> describe({}), describe(len)
    ('dict', 'builtin_function_or_method')
    """
    if is_tensor(thing):
        return f"{type(thing).__name__} {list(thing.shape)} {str(thing.dtype).removeprefix('torch.')}"
    return type(thing).__name__


def graph_owners(wanted: object, *, max_owners: int = 3, budget_s: float = 2.0) -> list[Owner]:
    """Paths to tensors whose autograd graph ends at `wanted`, as an undetached loss keeps a model.

    The graph lives in C++, so neither the collector nor a search for owners sees these references. Empty if it is not a
    tensor, or in no graph.
    """
    if not is_tensor(wanted):
        return []
    with_graph = (one for one in gc.get_objects() if is_tensor(one) and one is not wanted and one.grad_fn is not None)
    tensors = list(itertools.islice(with_graph, _LOOK.tensors))
    owners = find_owners(tensors, max_owners=_LOOK.tensors, budget_s=budget_s, ignore=[tensors])
    graphs = {number: operations_of(tensors[number].grad_fn, set()) for number in {owner.target for owner in owners}}
    leaves = {number: [getattr(one, "variable", None) for one in graph] for number, graph in graphs.items()}
    return [owner for owner in owners if any(one is wanted for one in leaves[owner.target])][:max_owners]
