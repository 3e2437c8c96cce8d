"""The shape of a micro-batch, read from the arguments of a call of the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeGuard

_COLOURS = (1, 3, 4)  # in a picture that stands alone, (colours, height, width)
GRAPH = "a graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchForms:
    """By which a batch is told from others of its form, in the trainings of tests/ooms and benchmarks/any_training.py.

    Attributes:
        max_depth: Of the containers that are looked into.
        smallest_side: Of a picture.
        numbers_a_token: So many mean that the tokens are labels.
        fewest_edges: Of a graph.
        most_named: Tensors whose sizes are told.
    """

    max_depth: int = 3
    smallest_side: int = 8
    numbers_a_token: int = 16
    fewest_edges: int = 64
    most_named: int = 8


_FORMS = BatchForms()


class TensorLike(Protocol):
    """A tensor, as far as its shape goes."""

    @property
    def shape(self) -> Sequence[int]: ...

    def is_floating_point(self) -> bool: ...


class Batch(NamedTuple):
    """The shape of a micro-batch.

    Attributes:
        rows: Samples.
        length: Tokens of a sample (padding included) if it has tokens, else None.
        sample: Without tokens, the sizes of one sample in the largest tensor: (3, 224, 224). Empty where that is one
            number.
        of: The name of the tensor that has most tokens, if it is not the first one that has some: "labels". `GRAPH`
            where the batch is one graph.
    """

    rows: int
    length: int | None
    sample: tuple[int, ...] = ()
    of: str = ""

    @property
    def width(self) -> int:
        """Tokens of a sample, or its numbers."""
        return self.length or math.prod(self.sample)

    @property
    def size(self) -> int:
        return self.rows * self.width

    @property
    def named(self) -> dict[str, int | None]:
        """As in a report."""
        return {"rows": self.rows, "length": self.length}


def batch_of(arguments: Sequence[object], keywords: Mapping[str, object]) -> Batch | None:
    """The shape of the batch among the arguments of a call; None if there is no tensor.

    Tokens are counted in the longest two-dimensional integer tensor; without one, rows are counted in the first tensor
    with at least one dimension, and numbers in the largest that has so many rows. Where states of a recurrent layer
    come with tokens, which are (layers, rows, size), they tell which dimension of those is time. A list of pictures, or
    of tensors that differ in size, is a batch of such samples.

    >>> import torch
    >>> batch_of([], {"pixels": torch.zeros(4, 3, 8, 8), "input_ids": torch.zeros(4, 17, dtype=torch.long)})
    Batch(rows=4, length=17, sample=(), of='')
    >>> batch_of([torch.zeros(35, 20, dtype=torch.long), torch.zeros(2, 20, 64)], {})
    Batch(rows=20, length=35, sample=(), of='')
    >>> batch_of([[torch.zeros(3, 20, 30), torch.zeros(3, 40, 20)]], {})
    Batch(rows=2, length=None, sample=(3, 40, 30), of='')
    """
    found = list(_tensors(enumerate(arguments), 0)) + list(_tensors(keywords.items(), 0))
    tokens = [(name, tensor.shape) for name, tensor in found if _has_tokens(tensor)]
    graph = _graph(found, tokens)
    if graph is not None:
        return graph
    signal = _signal(found, tokens)
    if signal is not None:
        return signal
    if tokens:
        first, second = tokens[0][1]
        states = (other.shape for _, other in found if other.is_floating_point())
        batch = _with_states(first, second, states)
        longest = max((shape[1] for _, shape in tokens if shape[0] == batch.rows), default=0)
        if longest <= (batch.length or 0) or batch.rows != first:
            return batch
        name = next(name for name, shape in tokens if shape == (first, longest))
        return Batch(first, longest, of=name if isinstance(name, str) else "")
    listed = next(_lists([*arguments, *keywords.values()], 0), None)
    if listed is not None and (not found or listed[0] is found[0][1]):
        sides = zip(*(tensor.shape for tensor in listed), strict=True)
        return Batch(len(listed), None, tuple(map(max, sides)))
    shapes = [tuple(tensor.shape) for _, tensor in found if len(tensor.shape)]
    if not shapes:
        return None
    rows = shapes[0][0]
    return Batch(rows, None, max((shape[1:] for shape in shapes if shape[0] == rows), key=math.prod))


def _has_tokens(tensor: TensorLike) -> bool:
    return len(tensor.shape) == 2 and not tensor.is_floating_point()


def _signal(found: Sequence[tuple[object, TensorLike]], tokens: Sequence[tuple[object, Sequence[int]]]) -> Batch | None:
    """A batch of sounds, (rows, numbers) or (rows, frames, bands), with few tokens as their labels.

    >>> import torch
    >>> batch_of([], {"input_values": torch.zeros(8, 40000), "labels": torch.zeros(8, 12, dtype=torch.long)})
    Batch(rows=8, length=None, sample=(40000,), of='')
    """
    if not tokens or not found[0][1].is_floating_point() or len(found[0][1].shape) not in (2, 3):
        return None
    rows, *sample = found[0][1].shape
    few = all(shape[0] == rows and _FORMS.numbers_a_token * shape[1] <= math.prod(sample) for _, shape in tokens)
    return Batch(rows, None, tuple(sample)) if few else None


def _graph(found: Sequence[tuple[object, TensorLike]], tokens: Sequence[tuple[object, Sequence[int]]]) -> Batch | None:
    """One graph, with edges as two rows of numbers of its nodes: no batch, but one sample.

    >>> import torch
    >>> batch_of([torch.zeros(20, 32), torch.zeros(2, 500, dtype=torch.long)], {})
    Batch(rows=1, length=None, sample=(20, 32), of='a graph')
    """
    nodes = [tuple(other.shape) for _, other in found if other.is_floating_point() and len(other.shape) == 2]
    edges = [shape for _, shape in tokens if shape[0] == 2 and shape[1] >= _FORMS.fewest_edges]
    if len(edges) != 1 or len(tokens) != 1 or not nodes or nodes[0][0] <= 2:
        return None
    return Batch(1, None, nodes[0], of=GRAPH)


def _with_states(first: int, second: int, states: Iterable[Sequence[int]]) -> Batch:
    for state in states:
        if len(state) == 3 and state[0] != first and state[1] == second != first:
            return Batch(second, first)
    return Batch(first, second)


class BatchFinder:
    """`batch_of` for similar calls: remembers the shapes of the last one's tensors.

    Attributes:
        sizes: The shapes of the last call's tensors by name, or by place where they had none, as text.
    """

    def __init__(self) -> None:
        self.sizes = ""
        self._shapes: object = None
        self._batch: Batch | None = None

    def __call__(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> Batch | None:
        """The shape of this call's batch; takes some us, less if all shapes equal the last call's."""
        shapes = list(_shapes((*arguments, *keywords.values())))
        if not shapes or shapes != self._shapes:
            self._batch, self._shapes = batch_of(arguments, keywords), shapes
            self.sizes = _sizes_of(arguments, keywords)
        return self._batch


def _sizes_of(arguments: Sequence[object], keywords: Mapping[str, object]) -> str:
    """
    >>> import torch
    >>> _sizes_of([], {"input_ids": torch.zeros(8, 512), "labels": torch.zeros(8)})
    'input_ids=8x512 labels=8'
    """
    found = [*_tensors(enumerate(arguments), 0), *_tensors(keywords.items(), 0)]
    return " ".join(f"{name}={'x'.join(map(str, tensor.shape))}" for name, tensor in found[: _FORMS.most_named])


def _is_tensor(value: object) -> TypeGuard[TensorLike]:
    return hasattr(value, "is_floating_point") and hasattr(value, "shape")


def _shapes(values: Iterable[object]) -> Iterator[object]:
    """Of the tensors among these values and directly in their containers."""
    for value in values:
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else (value,)
        for one in inner:
            yield getattr(one, "shape", None) if not isinstance(one, Mapping | list | tuple) else object()


def _tensors(items: Iterable[tuple[object, object]], depth: int) -> Iterator[tuple[object, TensorLike]]:
    """The tensors among these values and inside their containers, each with its name or number."""
    for name, value in items:
        if _is_tensor(value):
            yield name, value
        elif depth < _FORMS.max_depth and isinstance(value, Mapping | list | tuple):
            yield from _tensors(value.items() if isinstance(value, Mapping) else enumerate(value), depth + 1)


def _lists(values: Iterable[object], depth: int) -> Iterator[Sequence[TensorLike]]:
    """The lists among these values, and in their containers, whose tensors are a sample each."""
    for value in values:
        if isinstance(value, list | tuple) and value and all(map(_is_tensor, value)):
            if _are_samples([tuple(one.shape) for one in value]):
                yield value
        elif depth < _FORMS.max_depth and isinstance(value, Mapping | list | tuple):
            yield from _lists(value.values() if isinstance(value, Mapping) else value, depth + 1)


def _are_samples(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether tensors of these shapes are samples, not parts of one batch, which have the same rows."""
    if len({len(shape) for shape in shapes}) != 1 or not shapes[0]:
        return False
    if all(len(shape) == 3 and shape[0] in _COLOURS and min(shape[1:]) >= _FORMS.smallest_side for shape in shapes):
        return True
    rows = {shape[0] for shape in shapes}
    return len({shape[1:] for shape in shapes}) == 1 and any(size % min(rows) for size in rows if min(rows))
