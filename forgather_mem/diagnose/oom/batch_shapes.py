"""The shape of a micro-batch, read from the arguments of a call of the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from forgather_mem.units import by_sides

if TYPE_CHECKING:
    import torch

_COLOURS = (1, 3, 4)  # in a picture that stands alone, (colours, height, width)


class BatchForms:
    """How far is looked for a batch, as set on the trainings of tests/ooms and on nine scripts of others.

    Attributes:
        max_depth: Of the containers that are looked into.
        most_named: Tensors whose sizes are told.
    """

    max_depth = 3
    most_named = 8


class Batch(NamedTuple):
    """The shape of a micro-batch.

    Attributes:
        rows: Samples.
        length: Tokens of a sample (padding included) if it has tokens, else None.
        sample: Without tokens, the sizes of one sample in the largest tensor: (3, 224, 224). Empty where that is one
            number.
        sizes: The shapes of all tensors by name, or by place where they had none, in words; empty if nobody asked.
    """

    rows: int
    length: int | None
    sample: tuple[int, ...] = ()
    sizes: str = ""

    @property
    def size(self) -> int:
        """Tokens, or numbers, of all samples."""
        return self.rows * (self.length or math.prod(self.sample))


def batch_of(arguments: Sequence[object], keywords: Mapping[str, object]) -> Batch | None:
    """The shape of the batch among the arguments of a call; None if there is no tensor.

    Rows are counted in the first tensor with a dimension. Of those with as many rows, the longest two-dimensional
    integer one has tokens, unless only labels are such; without tokens, the largest has the sizes of a sample. Where
    states of a recurrent layer come with tokens, which are (layers, rows, size), they tell which dimension of those is
    time. A list of pictures, or of tensors that differ in size, is a batch of such samples.

    >>> import torch
    >>> batch_of([], {"pixels": torch.zeros(4, 3, 8, 8), "input_ids": torch.zeros(4, 17, dtype=torch.long)})
    Batch(rows=4, length=17, sample=(), sizes='')
    >>> batch_of([], {"input_values": torch.zeros(8, 40000), "labels": torch.zeros(8, 12, dtype=torch.long)})
    Batch(rows=8, length=None, sample=(40000,), sizes='')
    >>> batch_of([torch.zeros(35, 20, dtype=torch.long), torch.zeros(2, 20, 64)], {})
    Batch(rows=20, length=35, sample=(), sizes='')
    >>> batch_of([[torch.zeros(3, 20, 30), torch.zeros(3, 40, 20)]], {})
    Batch(rows=2, length=None, sample=(3, 40, 30), sizes='')
    """
    items = [*enumerate(arguments), *keywords.items()]
    found = [(name, tensor) for name, tensor in _tensors(items, 0) if len(tensor.shape)]
    listed = next(_lists([value for _, value in items], 0), None)
    if listed is not None and listed[0] is found[0][1]:
        return Batch(len(listed), None, tuple(map(max, zip(*(tensor.shape for tensor in listed), strict=True))))
    if not found:
        return None
    rows = found[0][1].shape[0]
    alike = [(name, tensor) for name, tensor in found if tensor.shape[0] == rows]
    flat = [(name, tensor) for name, tensor in alike if len(tensor.shape) == 2]
    tokens = {name: tensor.shape[1] for name, tensor in flat if not tensor.is_floating_point()}
    if not tokens or (set(tokens) == {"labels"} and len(alike) > 1):
        return Batch(rows, None, max((tuple(tensor.shape[1:]) for _, tensor in alike), key=math.prod))
    second = max(tokens.values())
    states = (tensor.shape for _, tensor in found if tensor.is_floating_point())
    turned = any(len(state) == 3 and state[0] != rows and state[1] == second != rows for state in states)
    return Batch(second, rows) if turned else Batch(rows, second)


def news_of(batch: Batch, largest: Batch | None, *, is_first: bool) -> str | None:
    """That this batch is the first, or larger than the largest of the steps before; None if it is neither."""
    if largest is None:
        return f"the first batch, {batch_in_words(batch)}; there was none before it." if is_first else None
    if batch.size <= largest.size:
        return None
    longest = "longest" if batch.length is not None and batch.rows <= largest.rows else "largest"
    now, before = batch_in_words(batch), batch_in_words(largest).rpartition(" ")[0]
    if batch.length is None and len(batch.sample) > 0 and batch.sample != largest.sample:
        pattern = "{:,} x {}" if len(batch.sample) == 1 else "{:,} x ({})"
        now, before = (pattern.format(one.rows, by_sides(one.sample)) for one in (batch, largest))
    return f"the {longest} batch so far, {now}; until then at most {before}."


def batch_in_words(batch: Batch) -> str:
    """Its rows, and their length if it has tokens."""
    return f"{batch.rows:,} rows" if batch.length is None else f"{batch.rows:,} x {batch.length:,} tokens"


class BatchFinder:
    """`batch_of` for similar calls, with the sizes in words: remembers the shapes of the last one's tensors."""

    def __init__(self) -> None:
        self._shapes: object = None
        self._batch: Batch | None = None

    def __call__(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> Batch | None:
        """The shape of this call's batch; takes some us, less if all shapes equal the last call's."""
        shapes = [tensor.shape for _, tensor in _tensors((*enumerate(arguments), *keywords.items()), 0)]
        if not shapes or shapes != self._shapes:
            batch, self._shapes = batch_of(arguments, keywords), shapes
            self._batch = None if batch is None else batch._replace(sizes=_sizes_of(arguments, keywords))
        return self._batch


def _sizes_of(arguments: Sequence[object], keywords: Mapping[str, object]) -> str:
    """
    >>> import torch
    >>> _sizes_of([], {"input_ids": torch.zeros(8, 512), "labels": torch.zeros(8)})
    'input_ids=8x512 labels=8'
    """
    items = (*enumerate(arguments), *keywords.items())
    found = [(name, tensor) for name, tensor in _tensors(items, 0) if tensor.shape]  # a number is no batch
    return " ".join(f"{name}={'x'.join(map(str, tensor.shape))}" for name, tensor in found[: BatchForms.most_named])


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return hasattr(value, "is_floating_point") and hasattr(value, "shape")


def _tensors(items: Iterable[tuple[object, object]], depth: int) -> Iterator[tuple[object, torch.Tensor]]:
    """The tensors among these values and inside their containers, each with its name or number."""
    for name, value in items:
        if _is_tensor(value):
            yield name, value
        elif depth < BatchForms.max_depth and isinstance(value, Mapping | list | tuple):
            yield from _tensors(value.items() if isinstance(value, Mapping) else enumerate(value), depth + 1)


def _lists(values: Iterable[object], depth: int) -> Iterator[Sequence[torch.Tensor]]:
    """The lists among these values, and in their containers, whose tensors are a sample each."""
    for value in values:
        if isinstance(value, list) and value and all(map(_is_tensor, value)):
            shapes = {tuple(one.shape) for one in value}
            are_pictures = all(len(shape) == 3 and shape[0] in _COLOURS for shape in shapes)
            if len({len(shape) for shape in shapes}) == 1 and (are_pictures or len(shapes) > 1):
                yield value
        elif depth < BatchForms.max_depth and isinstance(value, Mapping | list | tuple):
            yield from _lists(value.values() if isinstance(value, Mapping) else value, depth + 1)
