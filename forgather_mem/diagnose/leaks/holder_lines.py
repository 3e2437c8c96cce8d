"""The line that adds to a holder, and what says that it will stop growing: a maximum, or the number of rows."""

from __future__ import annotations

import ast
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from forgather_mem.diagnose.leaks.holder_kinds import Held, queue_module
from forgather_mem.errors import missing
from forgather_mem.heap.containers import LRU_CACHE
from forgather_mem.heap.object_size import WRITTEN, inside, is_array, is_tensor, is_torch
from forgather_mem.heap.owner_paths import has_attributes
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.source.container_code import adding_lines, is_assigned_by_index
from forgather_mem.source.source_lines import Line, is_user_file
from forgather_mem.source.syntax import Named


def lines_of_cache(cache: object) -> list[Line]:
    """The line of the function whose results it keeps."""
    found = line_of_function([getattr(cache, "__wrapped__", None)])
    return [] if found is None else [found]


def lines_of_holder(held: Held, names: Sequence[Named]) -> list[Line]:
    """The lines that add to it, as far as the source shows.

    Args:
        held: What has grown.
        names: What the user's code calls the container.
    """
    one, container, _, _ = held
    if type(container) is LRU_CACHE:
        return lines_of_cache(container)
    is_list = issubclass(type(container), list | deque) and one.kind == "items"
    in_place = any(isinstance(sample, WRITTEN) for sample in one.samples)
    every = (adding_lines(named, is_list, assigned=one.kind != "items" and not in_place) for named in names)
    return next(filter(None, every), [])


class HolderBound(NamedTuple):
    """Why something will stop growing by itself, or may, and its most items, if known."""

    why: str
    most: int | None = None


def bound_of_holder(held: Held, names: Sequence[Named], sets: Iterable[object]) -> HolderBound | None:
    """Why it will stop growing, or may; None if there is no sign of that. `sets`: what may be its data set."""
    one, container, path, owner = held
    is_slot = has_attributes(container) or isinstance(container, dict)  # what an iterator keeps is not replaced
    value = one.samples[0] if is_slot and one.samples else container
    is_fixed = isinstance(value, str | bytes) or is_array(value)
    is_users = bool(names) and names[0].regions[0].own
    if one.kind == "size" and type(container) is LRU_CACHE:
        return HolderBound(f"the entries of the cache {path} get longer, as where batches get longer")
    is_list = type(container) is list
    if one.kind == "size" and is_users and (is_fixed or is_list):
        items = (replace(named, item=True) for named in names if is_list)
        if not any([*(adding_lines(one, is_list) for one in names), *(adding_lines(one, False) for one in items)]):
            return HolderBound(f"{path}{'[...]' * is_list} is replaced by longer ones, as where batches get longer")
    most = getattr(owner, "maxsize", 0) if queue_module(held) else one.bound or 0
    if most > 0:
        return HolderBound(f"{path} holds {most:,} at most", most)
    if one.kind == "items" and issubclass(type(container), list) and any(map(is_assigned_by_index, names)):
        return HolderBound(f"{path} may be a ring buffer that is not full yet: its places are assigned by index, too")
    entries = _most_entries(owner, container, sets)
    if entries is not None and one.kind == "items" and one.count <= entries[0]:  # also once it is full
        return one_for_each(path, *entries)
    return None


def one_for_each(path: str, number: int, what: str) -> HolderBound:
    """The bound of what has one entry for each of these."""
    return HolderBound(f"{path} holds one entry for each of {number:,} {what} at most", number)


def line_of_function(samples: Sequence[object]) -> Line | None:
    """Where the user has written the first function of his own in these; None if there is none."""
    for part in inside(list(samples)):
        function = part.__func__ if isinstance(part, MethodType) else getattr(part, "func", part)
        if isinstance(function, FunctionType) and is_user_file(function.__code__.co_filename):
            return function.__code__.co_filename, function.__code__.co_firstlineno
    return None


def data_sets(walk: ReachableGraph, position: int, names: Sequence[Named], lines: Sequence[Line]) -> Iterator[object]:
    """What may be the data set whose rows are kept here: what has it, itself or in its class, or a method that adds."""
    above = {id(thing): thing for thing in walk.way(position)[:-1]}
    classes = tuple(thing for thing in above.values() if isinstance(thing, type))
    adding = {
        region.class_name
        for named in names
        for region in named.regions
        for node in ast.walk(region.node)
        if region.class_name and (region.file, getattr(node, "lineno", 0)) in lines
    }
    for thing in walk.nodes:
        if id(thing) in above or issubclass(type(thing), classes) or type(thing).__name__ in adding:
            yield thing


def _most_entries(owner: Any, container: object, sets: Iterable[object]) -> tuple[int, str] | None:
    """The most entries that this will have and what they are for: an optimizer's parameters, or a dataset's rows.

    A row's number is its key, as far as the first keys show.
    """
    if not isinstance(container, dict):
        return None
    if is_torch(owner, "optim", "Optimizer"):
        parameters = {id(one) for group in owner.param_groups for one in group["params"]}
        is_bounded = container is owner.state and parameters.issuperset(map(id, container))
        return (len(parameters), "parameters") if is_bounded else None
    keys = list(itertools.islice(dict.__iter__(container), 100))
    if not keys or not all(type(key) is int and key >= 0 for key in keys):
        return None
    rows = max(map(rows_of, sets), default=0)
    return (rows, "rows") if max(keys) < rows else None


def rows_of(thing: object) -> int:
    """The rows of a data set; 0 for what is none: a parameter is none, and a container has as many as were added."""
    cls = type(thing)
    if not hasattr(cls, "__getitem__") or hasattr(cls, "keys") or hasattr(cls, "append") or is_tensor(thing):
        return 0
    with missing(Exception):  # the user's own, of a data set without a length
        return len(thing)  # type: ignore[arg-type]
    return 0
