"""Finds what the data workers keep or copy: they are other processes, but their code and the data set can be read."""

from __future__ import annotations

import ast
import gc
import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

from forgather_mem.diagnose.leaks.holder_kinds import KINDS
from forgather_mem.diagnose.leaks.holder_lines import lines_of_cache, one_for_each, rows_of
from forgather_mem.diagnose.leaks.sizes import Copied
from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.heap.containers import LRU_CACHE
from forgather_mem.heap.holder_names import slot_names
from forgather_mem.heap.owner_paths import attributes_of
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.source.container_code import adding_lines, is_assigned_by_index, is_keyed_by_row
from forgather_mem.source.source_lines import Line, is_user_class
from forgather_mem.source.syntax import Named, local_names, regions_of_module

_FEWEST_OBJECTS = 1_000  # of a data set's container: below, few pages are copied
_MOST = 3
_LOADERS = ("DataLoader", "_MultiProcessingDataLoaderIter")


def loader_of(known: object) -> object:
    """The training's loader, or else the one with the most workers, or a pass of it, which keeps its data set."""
    if known is not None:
        return getattr(known, "base_dataloader", known)  # Accelerate's
    walk = ReachableGraph.walk()
    # The collector does not show what is frozen, nor the walk what only a `for` statement has
    around = [*walk.nodes, *gc.get_objects()]
    walk.forget()
    kinds = {kind for kind in set(map(type, around)) if any(base.__name__ in _LOADERS for base in kind.__mro__)}
    loaders = [one for one in around if type(one) in kinds]
    return max(loaders, key=lambda one: getattr(one, "num_workers", getattr(one, "_num_workers", 0)), default=None)


def _of(loader: object, name: str) -> object:
    """An attribute of a loader, or of a pass of it."""
    return getattr(loader, name, getattr(loader, f"_{name}", None))


def worker_suspects(loader: object, bytes_per_step: float, micro_batches: int = 1) -> list[Suspect]:
    """What the code of the dataset and the collator fills: attributes, a module's variables, caches without a limit.

    If all of that is limited by the data set's rows, what these take follows from what came with each step.
    """
    found: dict[tuple[str, Line], Suspect] = {}
    batch = getattr(_of(loader, "index_sampler"), "batch_size", None)
    # Each worker that stays comes to see all rows; others end with an epoch, in which each row is read once
    many = int(str(_of(loader, "num_workers"))) if _of(loader, "persistent_workers") else 1
    for part in _parts(loader):
        for held_by, sort, lines, rows in _held_by_code(part):
            for line in lines[:1]:
                cure = KINDS["lru_cache"].cure if sort == "lru_cache" else None
                one = found[held_by, line] = Suspect(
                    type=sort, bytes_per_step=bytes_per_step, held_by=held_by, cure=cure,
                    each="in each data worker", kind="workers", where="workers",
                    bounded=one_for_each(held_by, rows, "rows").why if rows else None,
                    full_bytes=int(rows * many * bytes_per_step / batch / micro_batches) if rows and batch else None,
                )  # fmt: skip
                one.set_line(line)
                if _of(loader, "persistent_workers"):
                    one.cure = f"{one.cure}; until then: persistent_workers=False"
    return sorted(found.values(), key=lambda one: one.bounded is not None)[:_MOST]


def copied_suspect(loader: object, copied: Copied) -> Suspect:
    """The data set's container with the most Python objects, whose pages the workers copy; without one what they keep.

    Pages alone don't tell: what is kept, and put where the main process had freed memory, copies these pages, too.
    """
    found = [
        (len(value), part, name)
        for part in _parts(loader)
        for name, value in list((attributes_of(part) or {}).items())
        if isinstance(value, list | dict | tuple) and len(value) >= _FEWEST_OBJECTS
    ]
    count, part, name = max(found, key=lambda one: one[0], default=(0, None, ""))
    held_by = f"{type(part).__name__}.{name}" if found else None
    kept = [one for one in worker_suspects(loader, copied.per_step) if one.held_by != held_by]
    why = copied.why(by_reading=bool(found) and not kept)
    if kept and not found:
        return replace(kept[0], kind="copied pages", bounded=why)
    sort = type((attributes_of(part) or {}).get(name)).__name__ if found else "object"
    suspect = Suspect(
        type=sort, bytes_per_step=copied.per_step, held_by=held_by, count=count or None,
        kind="copied pages", where="workers", bounded=why,
    )  # fmt: skip
    for line in [line for one in slot_names(part, name) for line in adding_lines(one, is_list=True, assigned=True)][:1]:
        suspect.set_line(line)
    return suspect


def _parts(loader: object) -> list[object]:
    """The data set and the collator; of what only wraps a data set (`Subset`), the inner one, too."""
    parts = [_of(loader, "dataset"), _of(loader, "collate_fn")]
    for part in parts:
        inner = getattr(part, "dataset", None)
        if inner is not None and not any(inner is known for known in parts):
            parts.append(inner)
    return [part for part in parts if part is not None]


# What the code may fill, its sort, the lines that do, and how many rows there are if each has one entry, else 0
_Held = tuple[str, str, list[Line], int]


def _held_by_code(part: object) -> Iterator[_Held]:
    """What the code of a part may fill: its attributes, the variables of its module, caches without a limit."""
    if inspect.isfunction(part):
        yield from _variables(part, part.__module__, part.__code__.co_name)
        return
    cls = type(part)
    if not is_user_class(cls):
        return
    for name, value in list((attributes_of(part) or {}).items()):
        for named in slot_names(part, name):
            yield _held(part, f"{cls.__name__}.{name}", "attribute", named, value)
    for base in filter(is_user_class, cls.__mro__):
        yield from _caches(base.__name__, vars(base).items())
    yield from _variables(part, cls.__module__, cls.__name__)


def _caches(owner: str, values: Iterable[tuple[str, object]]) -> Iterator[_Held]:
    for name, value in values:
        if isinstance(value, LRU_CACHE) and value.cache_info().maxsize is None:
            yield f"{owner}.{name}", "lru_cache", lines_of_cache(value), 0


def _variables(part: object, module: str, within: str) -> Iterator[_Held]:
    """The module's variables that a function or the methods of a class name."""
    regions = [one for one in regions_of_module(module) if within in (one.class_name, getattr(one.node, "name", None))]
    names = {
        part.id
        for region in regions
        for part in ast.walk(region.node)
        if isinstance(part, ast.Name) and part.id not in local_names(region.node)
    }
    for name in sorted(names):
        named = Named(name=name, attribute=False, item=False, regions=tuple(regions), of_module=True)
        yield _held(part, f"{module}.{name}", "variable", named, None)
    values = vars(sys.modules[module]) if module in sys.modules else {}
    yield from _caches(module, ((name, values.get(name)) for name in sorted(names)))


def _held(part: object, held_by: str, sort: str, named: Named, value: object) -> _Held:
    lines = adding_lines(named, is_list=isinstance(value, list))
    if isinstance(value, list) and not lines and is_assigned_by_index(named):  # [None] * 4000
        return held_by, sort, adding_lines(named, is_list=False), len(value)
    return held_by, sort, lines, rows_of(part) if is_keyed_by_row(named) else 0
