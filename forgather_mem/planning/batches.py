"""The batches of a plan: real ones, of the longest rows, made larger or smaller where that is asked."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from forgather_mem.errors import missing
from forgather_mem.planning.known_operations import tensors_among
from forgather_mem.planning.loop.notes import Bound, Note
from forgather_mem.system.procfs import anonymous_bytes
from forgather_mem.units import MIB

MEASURE_S = 1.0
# Of the largest with padding, and of those with the most in all: the collator shows which is larger. A guess: all
# scripts by others that have batches of different sizes were planned right with it.
_COLLATED = 4
# Rows of a batch of another size, which has them again and again: a guess; reading thousands takes most of a search
_MOST_READ = 64
_TOKENS = "input_ids"
_VALUES = ""  # in place of a list's name: whole numbers of the row that are no padding, as labels that a mask chooses
_PLACES = (_TOKENS, "inputs_embeds", "input_values", "input_features", "pixel_values")


Batch = TypeVar("Batch")
Sizes: TypeAlias = Mapping[str, int]
Trainer: TypeAlias = Any  # of transformers, which is not imported here
Measure: TypeAlias = Literal["bytes", "tokens", "values"]
Collate: TypeAlias = Callable[[Any], object]


class PlannedShape(NamedTuple):
    """Rows of a batch, their length if they are tokens, and how many of the data set a collator has joined into one."""

    rows: int | None = None
    length: int | None = None
    joined: int = 0


class Wanted(NamedTuple):
    """What is planned in place of a training's own.

    Attributes:
        shape: Of the batches.
        on_device: Whether optimizers work as they do on a device.
        ranks: How many processes train together.
        changes: Other arguments of the Trainer.
        edits: What is called first in the child: each changes something about the training.
        collating: Makes another of what makes the training's batches.
    """

    shape: PlannedShape = PlannedShape()
    on_device: bool = False
    ranks: int = 1
    changes: Mapping[str, object] = MappingProxyType({})
    edits: Sequence[Callable[[], object]] = ()
    collating: Callable[[Collate], Collate] = lambda collate: collate


class Coming(NamedTuple):
    """The batches that come, in the order of this training's sampler; or one of other rows, again and again.

    Attributes:
        batches: The rows of each.
        largest: Which of them is.
        size: Of that: bytes, or the tokens or values of its rows.
        shape: The same.
    """

    batches: Sequence[Sequence[int]]
    largest: int
    size: int
    shape: PlannedShape

    def note(self, is_of_longest: bool, taken: int = 0) -> Note:
        """What a reader has to know.

        Args:
            is_of_longest: Whether all of them are one, of the longest rows.
            taken: How many of their epoch came before these.
        """
        most = f": {self.shape.length:,} tokens" if self.shape.length and not self.shape.joined else ""
        if is_of_longest:
            joins, bound = (", joined: an upper bound", "at most") if self.shape.joined else ("", "exact")
            return Note(f"Batches are of the longest rows{most}{joins}; others take less.", cast(Bound, bound), True)
        which = f"Batches are the largest of the {taken + len(self.batches):,} that come in this order"
        return Note(f"{which}{most}.", lengths_differ=True)


def shape_of(batch: object) -> PlannedShape:
    """The rows and the length of a batch.

    >>> shape_of({"input_ids": torch.zeros(4, 16), "labels": torch.zeros(4)})
    PlannedShape(rows=4, length=16, joined=0)
    """
    named = batch if isinstance(batch, Mapping) else {}
    tensors = [named[name] for name in _PLACES if isinstance(named.get(name), torch.Tensor)]
    tensors += [tensor for tensor in tensors_among(batch) if tensor.dim()]
    if not tensors:
        return PlannedShape()
    length = tensors[0].size(1) if _TOKENS in named and tensors[0].dim() > 1 else None
    return PlannedShape(tensors[0].size(0), length)


def resized(batch: Batch, rows: int | None, length: int | None) -> Batch:
    """The batch with so many rows of this length: its own again and again, or the first of them.

    >>> resized({"input_ids": torch.zeros(4, 16), "labels": torch.zeros(4)}, 6, 8)["input_ids"].shape
    torch.Size([6, 8])
    """
    now = shape_of(batch)[:2]
    wanted = (rows or now[0], length if now[1] else None)

    sides = [{old: new} if old and new else {} for old, new in zip(now, wanted, strict=True)]
    return batch if wanted == now else with_sides(batch, lambda place: sides[place] if place < len(sides) else {})


def with_sides(batch: Batch, sides_of: Callable[[int], Mapping[int, int]]) -> Batch:
    """The batch with its tensors repeated, or cut, along sides of certain sizes.

    Args:
        batch: The same.
        sides_of: For the first sides of tensors, 0, the second ones and so on, what is to be made of which size.
    """

    def change(value: object) -> object:
        if isinstance(value, torch.Tensor):
            for place, old in enumerate(value.shape):
                if old in sides_of(place):
                    value = value.index_select(place, torch.arange(sides_of(place)[old]) % old)
            return value
        if isinstance(value, Mapping):
            return type(value)({key: change(one) for key, one in value.items()})  # type: ignore[call-arg]
        if isinstance(value, list | tuple):
            return getattr(type(value), "_make", type(value))(map(change, value))
        return value

    return cast(Batch, change(batch))


def looked_at(
    dataset: Sequence[object], batches: Iterable[Sequence[int]], sizes: dict[int, Sizes], within_s: float = MEASURE_S
) -> Iterator[Sequence[int]]:
    """Those of these batches whose rows can be looked at in this time.

    Args:
        dataset: That has the rows.
        batches: By the numbers of their rows.
        sizes: Gets the sizes of the lists in each row: of tokens, or of a text that the collator may make tokens of.
        within_s: The time. It ends where the process grows, too: the data set keeps what it has read.
    """
    until_s, most_bytes = time.monotonic() + within_s, anonymous_bytes() + 64 * MIB  # the latter is a guess
    with _disable_current_modes(), torch.random.fork_rng(devices=[]):  # rows have values, and are read fast
        for batch in batches:
            is_known = all(isinstance(row, Hashable) for row in batch)  # else a sampler gives more than numbers
            for row in batch if is_known else ():
                if row not in sizes:
                    sizes[row] = _sizes_of(dataset[row])
            if time.monotonic() > until_s or not is_known or anonymous_bytes() > most_bytes:
                return
            yield batch


def row_length(sizes: Sizes) -> int:
    """The length of a row that counts: of its tokens, else of the longest list."""
    return sizes.get(_TOKENS, max((size for name, size in sizes.items() if name != _VALUES), default=0))


def longest_of(sizes: Mapping[int, Sizes], rows: int) -> list[list[int]]:
    """So many of the longest rows: those with the most tokens, labels and so on; and the same with the shortest.

    A model may leave a mask without padding aside, which those of the training will have.
    """
    names = dict.fromkeys(name for of_row in sizes.values() for name in of_row)
    ordered = sorted(sizes, key=lambda row: row_length(sizes[row]), reverse=True)
    each = [max(ordered, key=lambda row: sizes[row].get(name, 0)) for name in names]
    found = [*dict.fromkeys([ordered[0], *each, *ordered])]
    longest = [found[place % len(found)] for place in range(min(rows, _MOST_READ))]
    return [longest, [*longest[: max(1, rows - 1)], *ordered[-1:]][:rows]]


def largest_of(
    batches: Sequence[Sequence[int]], sizes: Mapping[int, Sizes], collate: Callable[[list[object]], object],
    dataset: Sequence[object], among: Sequence[int] = (), by: Measure = "bytes",
) -> Coming | None:  # fmt: skip
    """The largest of these batches; None where the collator fails.

    Args:
        batches: The rows of each.
        sizes: Of these rows.
        collate: The training's.
        dataset: That has the rows.
        among: By number; without it all.
        by: What it has the most of: tokens or values, however long its longest row is.
    """

    def lists(number: int) -> list[list[int]]:
        rows = [sizes[row] for row in batches[number]]
        return [[row.get(name, 0) for row in rows] for name in rows[0] if name != _VALUES] or [[1] * len(rows)]

    def sum_of(number: int) -> int:
        values = [[sizes[row].get(_VALUES, 0) for row in batches[number]]]
        return sum(map(sum, values if by == "values" else lists(number)))

    def found(number: int) -> tuple[tuple[int, bool], Coming]:
        batch = collate([dataset[row] for row in batches[number]])
        size = sum_of(number) if by != "bytes" else sum(tensor.nbytes for tensor in tensors_among(batch))
        return (size, _is_padded(batch)), Coming(batches, number, size, joined_shape(batch, len(batches[number])))

    numbers = among or range(len(batches))
    padded = heapq.nlargest(_COLLATED, numbers, key=lambda number: sum(len(of) * max(of) for of in lists(number)))
    joined = heapq.nlargest(_COLLATED, numbers, key=sum_of)
    with _disable_current_modes(), torch.random.fork_rng(devices=[]):
        try:
            return max(map(found, dict.fromkeys([*padded, *joined])), key=lambda one: one[0], default=((), None))[1]
        except Exception:  # noqa: BLE001  # the collator's own, which the training meets as well
            return None


def joined_shape(batch: object, rows: int) -> PlannedShape:
    """The shape of a batch that a collator has made of so many rows, which may be a list of these, or have them second.

    >>> joined_shape((4 * [torch.zeros(3, 8, 8)], 4 * [{"boxes": torch.zeros(2, 4)}]), 4)
    PlannedShape(rows=4, length=None, joined=0)
    """
    shape = shape_of(batch)
    parts = [*batch.values()] if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else []
    lists = [len(one) for one in (parts, *parts) if isinstance(one, list | tuple)]
    columns = [one.size(1) for one in tensors_among(batch) if one.dim() == 3]  # of tokens by rows
    if shape.rows not in (1, rows) and rows in (*lists, *columns):
        return PlannedShape(rows)
    return shape._replace(joined=rows if shape.rows == 1 < rows else 0)


def collating(collate: Collate, wanted: PlannedShape, tell: Callable[[PlannedShape], None]) -> Collate:
    """A collate function that makes batches of this shape, and tells it."""

    def collated(samples: list[object]) -> object:
        if wanted.rows is None:
            batch = collate(samples)
        else:
            few = samples[: wanted.rows]
            samples = [few[place % len(few)] for place in range(wanted.rows)]
            batch = collate(few)
            is_joined = shape_of(batch).rows != len(few) or len(few) == 1
            batch = collate(samples) if is_joined else resized(batch, wanted.rows, None)
        batch = resized(batch, None, wanted.length)
        tell(joined_shape(batch, len(samples)))
        return batch

    return collated


def _sizes_of(row: object) -> Sizes:
    """The lengths of the lists in a row, or its own: a row of tokens may be a bare list."""
    several = isinstance(row, list | tuple) and any(map(_is_list, row))
    parts = row if isinstance(row, Mapping) else dict(enumerate(cast(list[object], row))) if several else {0: row}
    sizes = {str(name): len(cast(Sized, part)) for name, part in parts.items() if _is_list(part)}
    values = sum(map(_values_of, parts.values()))
    return {**sizes, _VALUES: values} if values else sizes


def _values_of(part: object) -> int:
    """How many of its whole numbers are no padding: that is the lowest one if it is negative, else 0."""
    with missing(TypeError, ValueError, RuntimeError):  # a tensor that is no array, or numbers and something else
        if isinstance(part, list | tuple):
            return len(part) - part.count(min(0, *part)) if part and type(part[0]) is int else 0
        numbers = np.asarray(part if _is_list(part) else 0.0)
        if numbers.dtype.kind in "iu" and numbers.size:
            return int(np.count_nonzero(numbers != min(0, numbers.min())))
    return 0


def _is_list(part: object) -> bool:
    return isinstance(part, Sequence) or getattr(part, "ndim", 0) in (1, 2)


def _is_padded(batch: object) -> bool:
    """Whether a mask of the batch leaves something out."""
    named = batch if isinstance(batch, Mapping) else {}
    masks = [value for name, value in named.items() if "mask" in str(name) and isinstance(value, torch.Tensor)]
    return any(not mask.all() for mask in masks)
