"""The batches of a plan: real ones, of the longest rows, made larger or smaller where that is asked."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

from forgather_mem.planning.loop.notes import Note
from forgather_mem.planning.pretending import tensors_among

MEASURE_S = 1.0
# Of the largest with padding, and of those with the most in all: the collator shows which is larger. A guess: all
# scripts by others that have batches of different sizes were planned right with it.
_COLLATED = 4
_TOKENS = "input_ids"
_PLACES = (_TOKENS, "inputs_embeds", "input_values", "input_features", "pixel_values")


Batch = TypeVar("Batch")
Trainer: TypeAlias = Any  # of transformers, which is not imported here
Loader: TypeAlias = DataLoader[object]  # or accelerate's, with torch's inside


class Dataset(Protocol):
    """One that gives rows by number; one of the datasets package has columns, too."""

    def __getitem__(self, place: int, /) -> object: ...


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
        shortest: A row that is shorter than all others.
    """

    numbers: Sequence[int]
    length: int
    measured: int
    of: int
    unit: str = "tokens"
    shortest: int = 0

    def notes(self, joined: int) -> list[Note]:
        """What a reader has to know, where so many are joined into one."""
        seen = "" if self.measured == self.of else f", of the {self.measured:,} that could be looked at in a second"
        told = f"Batches are of the longest rows: {self.length:,} {self.unit}{seen}; others take less."
        joins = "The collator joins rows, so that other batches are shorter: an upper bound."
        return [Note(told, lengths_differ=True), *([Note(joins, "at most")] if joined else [])]


class Coming(NamedTuple):
    """The batches that come, in the order of this training's sampler.

    Attributes:
        batches: The rows of each.
        each: How many of them a step has.
        largest: Which of them is, of those after the first step, which has no state of the optimizer.
        bytes: Of that.
        shape: The same.
    """

    batches: Sequence[Sequence[int]]
    each: int
    largest: int
    bytes: int = 0
    shape: PlannedShape = PlannedShape()

    def planned(self) -> Iterator[Sequence[int]]:
        """Those of the first step, then those from the step with the largest on."""
        begin = self.largest - self.largest % self.each
        return itertools.chain(self.batches[: self.each], itertools.cycle(self.batches[begin:]))

    def note(self) -> Note:
        """What a reader has to know."""
        is_long = self.shape.length and self.shape.rows != 1
        each = f" to {self.shape.length:,} tokens" if is_long else ""
        of = f"number {self.largest + 1:,}, {len(self.batches[self.largest]):,} rows{each}"
        told = f"Batches are the largest of the {len(self.batches):,} that come in this order: {of}; others take less."
        return Note(told, lengths_differ=True)


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
            return type(value)({key: change(one) for key, one in value.items()})  # type: ignore[call-arg]
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(change(one) for one in value)
        return value

    return batch if wanted == now else cast(Batch, change(batch))


class Row(NamedTuple):
    """The sizes of the lists in a row by their names, the length that counts, and what it counts."""

    sizes: Mapping[str, int]
    length: int
    unit: str = "tokens"


def longest_rows(dataset: object, rows: int, column: str = "length") -> Longest | None:
    """So many of the longest rows; None where all are of one length, or can't be looked at.

    Lengths come from a column of that name, else from the rows themselves, for a second: of their tokens, else of the
    longest text or list that a row has, which the collator may make tokens of.

    Args:
        dataset: That has the rows.
        rows: Of a batch.
        column: Of the dataset, with lengths.
    """
    return _longest_of(looked_at(dataset, column), rows, dataset)


def looked_at(dataset: object, column: str) -> list[Row]:
    """The rows of a dataset, as far as a second suffices; none where they have no lengths."""
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__") or not len(dataset):
        return []
    if column in (getattr(dataset, "column_names", None) or ()):
        return [Row({column: int(length)}, int(length)) for length in dataset[column]]
    with _disable_current_modes(), torch.random.fork_rng(devices=[]):  # rows have values, and are read fast
        return list(_measured(cast(Dataset, dataset)))


def _longest_of(measured: Sequence[Row], rows: int, dataset: object) -> Longest | None:
    lengths = [row.length for row in measured]
    if not lengths or min(lengths) == max(lengths):
        return None
    ordered = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    length, unit = lengths[ordered[0]], measured[ordered[0]].unit
    also = [number for number in _longest_of_others(measured) if number not in ordered[:rows]][: rows - 1]
    of = len(cast(Sized, dataset))
    return Longest([*ordered[: rows - len(also)], *also], length, len(lengths), of, unit, ordered[-1])


def largest_that_comes(loader: Any, measured: Sequence[Row], each: int, most: int | None) -> Coming | None:
    """The largest of the batches that come, as far as they do in a second; None where that is not known.

    Args:
        loader: Torch's, with the collate function of the training, or accelerate's with that inside.
        measured: The rows of its dataset.
        each: How many batches a step has.
        most: How many come; None for as many as a sampler makes that has batches of any size.
    """
    return largest_of(_in_order(loader, most), measured, each, getattr(loader, "base_dataloader", loader))


def largest_of(
    batches: Sequence[Sequence[int]], measured: Sequence[Row], each: int, loader: Any, among: Sequence[int] = ()
) -> Coming | None:
    """The same of these batches.

    Args:
        batches: The rows of each.
        measured: As above.
        each: As above.
        loader: Has the collate function and the dataset.
        among: By number; without it those after the first step.
    """
    if not batches or (measured and any(max(batch) >= len(measured) for batch in batches)):
        return None
    collate, dataset = loader.collate_fn, loader.dataset

    def sizes(number: int) -> list[list[int]]:
        """The sizes of the lists in a batch, by name."""
        rows = [measured[row].sizes for row in batches[number]] if measured else []
        return [[row.get(name, 0) for row in rows] for name in rows[0]] if rows else [[1] * len(batches[number])]

    def bytes_of(number: int) -> tuple[int, bool, PlannedShape]:
        batch = collate([dataset[row] for row in batches[number]])
        return sum(tensor.nbytes for tensor in tensors_among(batch)), _is_padded(batch), shape_of(batch)

    later = among or range(each, len(batches)) or range(len(batches))
    padded = heapq.nlargest(_COLLATED, later, key=lambda number: sum(len(of) * max(of) for of in sizes(number)))
    joined = heapq.nlargest(_COLLATED, later, key=lambda number: sum(map(sum, sizes(number))))
    with _disable_current_modes(), torch.random.fork_rng(devices=[]):
        try:
            found = {number: bytes_of(number) for number in dict.fromkeys([*padded, *joined])}
            number = max(found, key=lambda number: found[number][:2])
            return Coming(batches, each, number, found[number][0], found[number][2])
        except Exception:  # noqa: BLE001  # the collator's own, which the training meets as well
            return None


def _in_order(loader: Any, most: int | None) -> list[Sequence[int]]:
    """The rows of the batches that come, in their order; none where a second does not suffice.

    A loader of numbers with the same sampler draws from the random generator what the training's will draw.
    """
    inner: Any = getattr(loader, "base_dataloader", loader)
    sampler = getattr(inner, "batch_sampler", None)
    if sampler is None or not isinstance(inner.dataset, Sized):
        return []
    numbers: Any = DataLoader(
        range(len(inner.dataset)),  # type: ignore[arg-type]
        batch_sampler=sampler,
        collate_fn=list,
        generator=getattr(inner, "generator", None),
    )

    counting: list[Any] = [
        one for one in (loader, sampler, getattr(sampler, "sampler", 0)) if hasattr(one, "set_epoch")
    ]

    def epochs() -> Iterator[Sequence[int]]:
        for epoch in itertools.count() if most else [0]:
            for one in counting:
                one.set_epoch(epoch)
            yield from numbers

    until_s = time.monotonic() + MEASURE_S
    with _disable_current_modes():
        found = list(itertools.takewhile(lambda _: time.monotonic() < until_s, itertools.islice(epochs(), most)))
        for one in counting:
            one.set_epoch(0)
    return found if not most or len(found) == most else []


def collating(
    collate: Callable[[list[object]], Batch],
    dataset: Dataset,
    longest: Longest | Coming | None,
    wanted: PlannedShape,
    tell: Callable[[PlannedShape], None],
) -> Callable[[list[object]], Batch]:
    """A collate function that makes the batches of a plan, whatever rows it is given.

    A model may leave a mask without padding aside, which those of the training will have: where the longest rows are of
    one length, one of them makes room for the shortest, unless the batch would have another size then.
    """

    def made(samples: list[object]) -> Batch:
        return resized(collate(samples), None, wanted.length)

    def sizes(batch: object) -> list[torch.Size]:
        return [one.shape for one in tensors_among(batch)]

    coming = longest.planned() if isinstance(longest, Coming) else None

    def collated(samples: list[object]) -> Batch:
        if coming is not None:
            samples = [dataset[row] for row in next(coming)]
        elif isinstance(longest, Longest):
            samples = [dataset[longest.numbers[place % len(longest.numbers)]] for place in range(len(samples))]
        if wanted.rows is not None:
            samples = [samples[place % len(samples)] for place in range(wanted.rows)]
        batch = made(samples)
        if isinstance(longest, Longest) and len(samples) > 1:
            with suppress(Exception):  # the collator's own: it takes rows of one length only
                mixed = made([samples[0], dataset[longest.shortest], *samples[2:]])
                batch = mixed if sizes(mixed) == sizes(batch) else batch
        shape = shape_of(batch)
        tell(shape._replace(joined=len(samples) if shape.rows == 1 < len(samples) else 0))
        return batch

    return collated


def batches_of_longest_rows(
    loader: Loader,
    rows: int,
    column: str,
    wanted: PlannedShape,
    shapes: list[PlannedShape],
    notes: list[str],
    each: int = 1,
    most: int | None = None,
) -> bool:
    """Let a loader make the batches of a plan; whether they are of other rows than its own.

    Those are the largest batches of those that come, where their order is known, else of the longest rows.

    Args:
        loader: The loader.
        rows: Of a batch.
        column: Of the dataset, with lengths.
        wanted: Another shape of batches.
        shapes: Gets the shape of each.
        notes: Gets what a reader has to know of them.
        each: How many batches a step has.
        most: How many batches come in all; None where it is not known.
    """

    made_before = itertools.count()

    def tell(shape: PlannedShape) -> None:
        shapes.append(shape)
        number, told = next(made_before), []
        if isinstance(longest, Coming) and number == each + longest.largest % each:
            told = [longest.note()]
        elif isinstance(longest, Longest) and wanted.length is None:
            told = longest.notes(shape.joined)
        notes.extend(note for note in told if note not in notes)

    inner: Any = getattr(loader, "base_dataloader", loader)
    measured = looked_at(loader.dataset, column)
    longest: Longest | Coming | None = _longest_of(measured, rows, loader.dataset)
    sampler = getattr(inner, "batch_sampler", None)
    is_of_any_size = sampler is not None and not isinstance(getattr(sampler, "batch_size", None), int)
    if is_of_any_size or (most and longest is not None and wanted == PlannedShape()):
        longest = largest_that_comes(loader, measured, each, most) or longest
    inner.collate_fn = collating(inner.collate_fn, loader.dataset, longest, wanted, tell)
    return longest is not None


def _measured(dataset: Dataset) -> Iterator[Row]:
    until_s = time.monotonic() + MEASURE_S
    for number in range(len(cast(Sized, dataset))):
        row = dataset[number]
        parts = row if isinstance(row, Mapping) else dict(enumerate(row)) if isinstance(row, list | tuple) else {0: row}
        lists = {
            name: one for name, one in parts.items() if isinstance(one, Sequence) or getattr(one, "ndim", 0) in (1, 2)
        }
        if not lists or time.monotonic() > until_s:
            return
        sizes = {str(name): len(cast(Sized, one)) for name, one in lists.items()}
        name = _TOKENS if _TOKENS in sizes else max(sizes, key=sizes.__getitem__)
        yield Row(sizes, sizes[name], "tokens" if name == _TOKENS else f"in {name!r}")


def _longest_of_others(rows: Sequence[Row]) -> list[int]:
    """The rows in which another list is longest, as the labels of a translation, that are padded by themselves."""
    others = [{name: size for name, size in row.sizes.items() if size not in (0, row.length)} for row in rows]
    names = dict.fromkeys(name for sizes in others for name in sizes)
    return [max(range(len(rows)), key=lambda number: others[number].get(name, 0)) for name in names]


def _is_padded(batch: object) -> bool:
    """Whether a mask of the batch leaves something out."""
    named = batch if isinstance(batch, Mapping) else {}
    masks = [value for name, value in named.items() if "mask" in str(name) and isinstance(value, torch.Tensor)]
    return any(not mask.all() for mask in masks)
