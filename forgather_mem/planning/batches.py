"""The batches of a plan: real ones, of the longest rows, made larger or smaller where that is asked."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

from forgather_mem.planning.pretending import tensors_among

JOINS, VARIES = "The collator joins rows", "others take less"
_MEASURE_S = 1.0
_TOKENS = "input_ids"
_PLACES = (_TOKENS, "inputs_embeds", "input_values", "input_features", "pixel_values")


Batch = TypeVar("Batch")
Trainer: TypeAlias = Any  # of transformers, which is not imported here


class Dataset(Protocol):
    """One that gives rows by number; one of the datasets package has columns, too."""

    def __getitem__(self, place: int, /) -> object: ...


class Loader(Protocol):
    """A data loader: torch's, or accelerate's with torch's inside."""

    @property
    def dataset(self) -> Dataset: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[object]: ...


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
    """

    shape: PlannedShape = PlannedShape()
    on_device: bool = False
    ranks: int = 1
    changes: Mapping[str, object] = MappingProxyType({})


class Longest(NamedTuple):
    """The longest rows of a dataset.

    Attributes:
        numbers: Which they are, the longest first.
        length: Of the longest.
        measured: How many rows were looked at.
        of: How many there are.
        unit: What the length counts.
        shorter: Rows that are shorter: the longest of them, and the shortest.
        mean: Length of a row.
        is_batch: Whether these are a whole batch of the sampler's, of which others have fewer or more rows.
    """

    numbers: Sequence[int]
    length: int
    measured: int
    of: int
    unit: str = "tokens"
    shorter: Sequence[int] = ()
    mean: float = 0.0
    is_batch: bool = False

    def note(self) -> str:
        """What a reader has to know."""
        seen = "" if self.measured == self.of else f", of the {self.measured:,} that could be looked at in a second"
        if self.is_batch:
            each = f", to {self.length:,} {self.unit}{seen}" if self.unit else ""
            return f"Batches are the largest of the sampler's: {len(self.numbers):,} rows{each}."
        return f"Batches are of the longest rows: {self.length:,} {self.unit}{seen}; {VARIES}."

    def joined_note(self, rows: int) -> str:
        """What a reader has to know where so many are joined."""
        mean = f"; {rows:,} rows have {rows * self.mean:,.0f} on average" if self.unit == "tokens" else ""
        return f"{JOINS}, so that other batches are shorter: an upper bound{mean}."


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


def largest(shapes: Sequence[PlannedShape]) -> PlannedShape:
    """That with the most tokens, or rows.

    >>> largest([PlannedShape(4, 16), PlannedShape(2, 64)])
    PlannedShape(rows=2, length=64, joined=0)
    """
    return max(shapes, key=lambda shape: (shape.rows or 0) * (shape.length or 1), default=PlannedShape())


def resized(batch: Batch, rows: int | None, length: int | None) -> Batch:
    """The batch with so many rows of this length: its own again and again, or the first of them.

    >>> resized({"input_ids": torch.zeros(4, 16), "labels": torch.zeros(4)}, 6, 8)["input_ids"].shape
    torch.Size([6, 8])
    """
    now = shape_of(batch)[:2]
    wanted = (rows or now[0], length if now[1] else None)

    def change(value: object) -> object:
        if isinstance(value, torch.Tensor):
            for place, (old, new) in enumerate(zip(now, wanted, strict=True)):
                if old and new and value.dim() > place and value.size(place) == old:
                    value = value.index_select(place, torch.arange(new) % old)
            return value
        if isinstance(value, Mapping):
            changed = {key: change(one) for key, one in value.items()}
            return changed if type(value) is dict else type(value)(changed)  # type: ignore[call-arg]
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(change(one) for one in value)
        return value

    return batch if wanted == now else cast(Batch, change(batch))


def longest_rows(
    dataset: object, rows: int, column: str = "length", batches: Sequence[Sequence[int]] = ()
) -> Longest | None:
    """So many of the longest rows; None where all are of one length, or can't be looked at.

    Lengths come from a column of that name, else from the rows themselves, for a second: of their tokens, else of the
    longest text or list that a row has, which the collator may make tokens of.

    Args:
        dataset: That has the rows.
        rows: Of a batch.
        column: Of the dataset, with lengths.
        batches: The numbers of the rows in each, where a sampler makes them of different sizes: the largest is taken.
    """
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__") or not len(dataset):
        return None
    also: list[int] = []
    if column in (getattr(dataset, "column_names", None) or ()):
        lengths, units = [int(length) for length in dataset[column]], ["tokens"]
    else:
        with _disable_current_modes():  # rows have values, and are read fast
            measured = list(_measured(cast(Dataset, dataset)))
        lengths, units = [length for length, _, _ in measured], [unit for _, unit, _ in measured]
        also = _longest_of_others([others for _, _, others in measured])
    if not lengths and batches:
        lengths, units = [1] * len(dataset), [""]
    known = [batch for batch in batches if batch and max(batch) < len(lengths)]
    if known:
        whole = max(known, key=lambda batch: len(batch) * max(lengths[number] for number in batch))
        length, of = max(lengths[number] for number in whole), len(dataset)
        return Longest(whole, length, len(lengths), of, units[0], is_batch=True)
    if not lengths or min(lengths) == max(lengths):
        return None
    ordered = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    length, unit = lengths[ordered[0]], units[ordered[0] % len(units)]
    next_longest = next(number for number in ordered if lengths[number] < length)
    shorter, mean = (next_longest, ordered[-1]), sum(lengths) / len(lengths)
    also = [number for number in also if number not in ordered[:rows]][: rows - 1]
    return Longest([*ordered[: rows - len(also)], *also], length, len(lengths), len(dataset), unit, shorter, mean)


def collating(
    collate: Callable[[list[object]], Batch],
    dataset: Dataset,
    longest: Longest | None,
    wanted: PlannedShape,
    tell: Callable[[PlannedShape], None],
) -> Callable[[list[object]], Batch]:
    """A collate function that makes the batches of a plan, whatever rows it is given.

    A model may leave a mask without padding aside, which those of the training will have: where the longest rows are of
    one length, one of them makes room for a shorter row, unless the batch would have another size then.
    """

    def made(samples: list[object]) -> tuple[Batch, int]:
        batch = collate(samples)
        if not _joins(collate, samples, batch):
            return resized(batch, wanted.rows, wanted.length), 0
        if wanted.rows is not None:
            samples = [samples[place % len(samples)] for place in range(wanted.rows)]
            batch = collate(samples)
        return resized(batch, None, wanted.length), len(samples)

    def collated(samples: list[object]) -> Batch:
        if longest is not None:
            count = len(longest.numbers) if longest.is_batch else len(samples)
            samples = [dataset[longest.numbers[place % len(longest.numbers)]] for place in range(count)]
        batch, joined = made(samples)
        if longest is not None and not joined and (wanted.rows or len(samples)) > 1 and not _is_padded(batch):
            mixed = ([samples[0], dataset[number], *samples[2:]] for number in longest.shorter)
            batch = next(_padded(lambda rows: made(rows)[0], mixed, [one.shape for one in tensors_among(batch)]), batch)
        tell(shape_of(batch)._replace(joined=joined))
        return batch

    return collated


def batches_of_longest_rows(
    loader: Loader,
    rows: int,
    column: str,
    wanted: PlannedShape,
    tell: Callable[[PlannedShape], None] = lambda _: None,
) -> Longest | None:
    """Let a loader make the batches of a plan; the rows that they are of, if those differ.

    Args:
        loader: The loader.
        rows: Of a batch.
        column: Of the dataset, with lengths.
        wanted: Another shape of batches.
        tell: Told the shape of each.
    """
    inner: Any = getattr(loader, "base_dataloader", loader)
    longest = longest_rows(loader.dataset, rows, column, _batches_of_own(inner))
    inner.collate_fn = collating(inner.collate_fn, loader.dataset, longest, wanted, tell)
    return longest


def _batches_of_own(loader: object) -> list[Sequence[int]]:
    """The batches of a sampler that makes them of any size, as far as it does so in a second."""
    sampler: Iterable[Sequence[int]] | None = getattr(loader, "batch_sampler", None)
    if sampler is None or isinstance(getattr(sampler, "batch_size", None), int):
        return []
    until_s = time.monotonic() + _MEASURE_S
    with _disable_current_modes():
        return list(itertools.takewhile(lambda _: time.monotonic() < until_s, sampler))


def _joins(collate: Callable[[list[object]], object], samples: list[object], batch: object) -> bool:
    """Whether rows become one row."""
    if shape_of(batch).rows != 1:
        return False
    try:
        return len(samples) > 1 or shape_of(collate([*samples, *samples])).rows == 1
    except Exception:  # noqa: BLE001  # the collator's own: it takes one row only
        return False


def _measured(dataset: Dataset) -> Iterator[tuple[int, str, dict[str, int]]]:
    """Of each row the length that counts, what it counts, and the lengths of its other lists."""
    until_s = time.monotonic() + _MEASURE_S
    for number in range(len(cast(Sized, dataset))):
        row = dataset[number]
        named = row if isinstance(row, Mapping) else {}
        lists = {name: one for name, one in named.items() if isinstance(one, Sequence) or getattr(one, "ndim", 0) == 1}
        if not lists or time.monotonic() > until_s:
            return
        sizes = {str(name): len(one) for name, one in lists.items()}
        name = _TOKENS if _TOKENS in sizes else max(sizes, key=sizes.__getitem__)
        length = sizes.pop(name)
        yield length, "tokens" if name == _TOKENS else f"in {name!r}", {of: n for of, n in sizes.items() if n != length}


def _longest_of_others(rows: Sequence[Mapping[str, int]]) -> list[int]:
    """The rows in which another list is longest, as the labels of a translation, that are padded by themselves."""
    longest: dict[str, tuple[int, int]] = {}
    for number, others in enumerate(rows):
        for name, length in others.items():
            if length > longest.get(name, (0, 0))[0]:
                longest[name] = length, number
    return [number for _, number in longest.values()]


def _padded(
    made: Callable[[list[object]], Batch], of: Iterable[list[object]], sizes: Sequence[torch.Size]
) -> Iterator[Batch]:
    """The batches that have padding and these sizes."""
    for samples in of:
        try:
            batch = made(samples)
        except Exception:  # noqa: BLE001  # the collator's own: it takes rows of one length only
            return
        if _is_padded(batch) and [one.shape for one in tensors_among(batch)] == sizes:
            yield batch


def _is_padded(batch: object) -> bool:
    """Whether a mask of the batch leaves something out."""
    named = batch if isinstance(batch, Mapping) else {}
    masks = [value for name, value in named.items() if "mask" in str(name) and isinstance(value, torch.Tensor)]
    with _disable_current_modes():
        return any(not mask.all() for mask in masks)
