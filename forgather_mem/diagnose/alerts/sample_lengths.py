"""The lengths of a data set's samples, where they are known without loading them, and the order in which they come."""

from __future__ import annotations

import dis
import inspect
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, GeneratorType, MethodType
from typing import Any, Protocol

from forgather_mem.source.frame_variables import frame_variables

_MOST_SAMPLES = 1_000_000
_TOKENS = "input_ids"
_SLICES = frozenset(("BUILD_SLICE", "BINARY_SLICE"))
_CUTS = ("trunc", "max_len", "max_seq", "block_size", "narrow", "islice", "crop", "clip", "shorten")
_SHORTER = frozenset(("min",))  # whole names
# These pad, or turn text into tokens as the code that calls them says
_HARMLESS = ("torch", "numpy", "transformers.data.data_collator", "transformers.tokenization")
_MOST_FUNCTIONS = 64


class RunningLoader(Protocol):
    """A pass over one of torch's data loaders."""

    _dataset: object
    _num_yielded: int
    _index_sampler: object
    _sampler_iter: Iterator[Sequence[int]]
    _collate_fn: Callable[..., object]

    def __len__(self) -> int: ...


def lengths_of(dataset: Any, column: str = "length") -> Sequence[int] | None:
    """Tokens of each sample, or its numbers; None where only loading them would tell, or where loading may cut them.

    Known are a list of samples, a column of lengths, and a data set that keeps such a list.

    Args:
        dataset: The data set.
        column: That of the lengths.

    >>> list(lengths_of([{"input_ids": [5, 6, 7]}, {"input_ids": [5]}])), list(lengths_of([([5, 6], 0), ([5], 1)]))
    ([3, 1], [2, 1])
    """
    try:
        count = len(dataset)
    except TypeError:
        return None
    if not 0 < count <= _MOST_SAMPLES:
        return None
    if column in (getattr(dataset, "column_names", None) or ()):
        found = array("l", (value for value in dataset[column] if isinstance(value, int)))
        return found if len(found) == count else None
    kept = [dataset]
    if not isinstance(dataset, list | tuple):
        if cuts(getattr(dataset, "__getitem__", None)):
            return None
        kept = [
            one.get(_TOKENS) if isinstance(one, Mapping) else one for one in getattr(dataset, "__dict__", {}).values()
        ]
    lists = [one for one in kept if isinstance(one, list | tuple) and len(one) == count]
    return max((sizes for one in lists if max(sizes := array("l", map(_size, one))) > 1), key=sum, default=None)


def cuts(call: object) -> bool:
    """Whether a callable of Python, or a function that it calls, may shorten samples: it slices, or names a limit.

    Followed are functions and objects that its code names: of its module, of what it is a method of, of its closure.
    """
    return any(_may_cut(code) for code in _codes(call))


def _may_cut(code: CodeType) -> bool:
    names = [*code.co_names, *code.co_varnames, *code.co_freevars]
    for constant in code.co_consts:
        names += constant if isinstance(constant, tuple) else [constant]
    if any(name in _SHORTER or any(word in name.lower() for word in _CUTS) for name in names if isinstance(name, str)):
        return True
    return any(step.opname in _SLICES for step in dis.get_instructions(code)) or any(
        isinstance(constant, slice) for constant in code.co_consts
    )


def _codes(call: object) -> Iterator[CodeType]:
    """The code of this callable and of those that it names; none of a library that is known to shorten nothing."""
    waiting: list[tuple[object, object]] = [(call, None)]  # with the object that each is a method of
    seen: set[object] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        found, owner = waiting.pop()
        if isinstance(found, partial):
            waiting.append((found.func, None))
        elif isinstance(found, MethodType):
            waiting.append((found.__func__, found.__self__))
        elif not isinstance(found, FunctionType):
            if isinstance(of_class := getattr(type(found), "__call__", None), FunctionType):  # noqa: B004  # the function
                waiting.append((of_class, found))
        elif found not in seen and not str(found.__module__).startswith(_HARMLESS):
            seen.add(found)
            function = inspect.unwrap(found)
            codes = [function.__code__]
            for code in codes:
                codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
                yield code
                waiting += [(function.__globals__.get(name), None) for name in code.co_names]
                waiting += [
                    (inspect.getattr_static(owner, name, None), owner) for name in code.co_names if owner is not None
                ]
            for cell in function.__closure__ or ():
                with suppress(ValueError):  # it is empty
                    waiting.append((cell.cell_contents, None))


def batches_of(loader_iterator: RunningLoader) -> Iterator[Sequence[int]] | None:
    """The samples of each batch of the epoch that this data loader is in, one after the other, read without taking any.

    Known where the sampler yields from a list that it has made, as torch's, accelerate's and transformers' do.
    """
    sampler = loader_iterator._index_sampler
    size, drops = getattr(sampler, "batch_size", None), bool(getattr(sampler, "drop_last", False))
    begun = loader_iterator._sampler_iter
    if not isinstance(size, int) or not isinstance(begun, GeneratorType) or begun.gi_frame is None:
        return None
    order = _order(frame_variables(begun.gi_frame).get("sampler_iter"))
    if order is None:
        return None
    end = len(order) - len(order) % size if drops else len(order)
    return (order[at : at + size] for at in range(0, end, size))


def _order(source: Any) -> Sequence[int] | None:
    """All that this iterator has given and will give, if it goes through a list or a range."""
    while isinstance(source, GeneratorType):
        source = source.gi_yieldfrom
    if type(source) not in (type(iter([])), type(iter(range(0)))):
        return None
    parts = source.__reduce__()[1]  # for a list the whole of it; a range is what is left
    order: Any = parts[0] if parts else None
    if isinstance(order, range):
        return range(order.stop) if order.step == 1 else None
    return order if isinstance(order, list) else None


def _size(sample: object) -> int:
    """Tokens of a sample, or the numbers of its largest tensor; 1 for a plain number, which may mean anything."""
    shape = getattr(sample, "shape", None)
    if isinstance(shape, tuple):
        return math.prod(shape)
    if isinstance(sample, Mapping):
        return _size(sample[_TOKENS]) if _TOKENS in sample else max(map(_size, sample.values()), default=0)
    if isinstance(sample, list | tuple):
        is_flat = not sample or isinstance(sample[0], int | float)
        return len(sample) if is_flat else max(map(_size, sample))
    return 1
