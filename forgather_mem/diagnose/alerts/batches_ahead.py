"""The shapes of the batches that a running pass over data will still give, found in a forked child, which makes them.

There the pass goes on from where it is, whatever the sampler, the data set and the collator do, keep and draw. Nothing
of it happens here. What depends on chance that others draw from as well can't be known.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

from forgather_mem.diagnose.oom.shapes.batch_shapes import batch_of
from forgather_mem.errors import PlanError
from forgather_mem.planning.isolation.child import in_a_child

_MOST_BATCHES = 1_000_000
_STUCK_S = 1.0  # longer than it was given: one sample takes that long, or waits for a thread that is not there


class Ahead(NamedTuple):
    """What is known of a pass.

    Attributes:
        taken: How many batches it has taken from its sampler.
        shapes: Rows and tokens of those after that, as far as time allowed.
    """

    taken: int
    shapes: list[tuple[int, int]]


class Pass(Protocol):
    """A pass over one of torch's data loaders."""

    _dataset: object
    _num_yielded: int
    _index_sampler: object
    _sampler_iter: Iterator[Sequence[int]]
    _auto_collation: bool
    _collate_fn: Callable[..., object]


def batches_ahead(iterator: Pass, lengths: Sequence[int] | None, most_s: float) -> Ahead | None:
    """What this pass over one of torch's data loaders will give; None if that can't be known. It waits for the child.

    Args:
        iterator: The pass.
        lengths: Of the samples, if a batch is as long as its longest sample: then none is made.
        most_s: After this time the child begins no other batch.
    """
    streams = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    if isinstance(iterator._dataset, streams) or not hasattr(iterator._dataset, "__getitem__"):
        return None  # a stream, of which nothing can be made twice
    taken = getattr(iterator, "_send_idx", iterator._num_yielded)  # workers are sent batches ahead
    acts: dict[str, None] = {}
    try:
        shapes = in_a_child(partial(_shapes, iterator, lengths, most_s), most_s + _STUCK_S, acts)
    except PlanError:
        return None
    return Ahead(taken, shapes) if shapes and not acts else None


def _shapes(iterator: Pass, lengths: Sequence[int] | None, most_s: float) -> list[tuple[int, int]]:
    until_s, found, longest = time.monotonic() + most_s, list[tuple[int, int]](), 0
    chance = _chance()
    order = list(_until(until_s - most_s / 2, islice(iterator._sampler_iter, _MOST_BATCHES)))
    if _chance() != chance:
        return []
    if lengths is not None:
        return [(len(batch), max(lengths[number] for number in batch)) for batch in order]
    fetch = _fetch(iterator)
    for batch in _until(until_s, iter(order)):
        shape = _shape(fetch(batch))
        if shape[0] * shape[1] > longest:
            longest = shape[0] * shape[1]
            if _shape(fetch(batch)) != shape:
                return []
        found.append(shape)
    return found


def _until(time_s: float, values: Iterator[Sequence[int]]) -> Iterator[Sequence[int]]:
    for value in values:
        yield value
        if time.monotonic() > time_s:
            return


def _fetch(iterator: Pass) -> Callable[[Sequence[int]], object]:
    """Makes a batch of the samples with these numbers, in this process."""
    fetcher = sys.modules["torch.utils.data._utils.fetch"]._MapDatasetFetcher
    made = fetcher(iterator._dataset, iterator._auto_collation, iterator._collate_fn, drop_last=False)
    return made.fetch  # type: ignore[no-any-return]


def _shape(batch: object) -> tuple[int, int]:
    shape = batch_of((), batch) if isinstance(batch, Mapping) else batch_of((batch,), {})
    return (shape.rows, shape.length or 1) if shape is not None else (0, 0)


def _chance() -> list[object]:
    """The states of the random generators that all share."""
    states: list[object] = [sys.modules["torch"].get_rng_state().tolist(), random.getstate()]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        _, key, *rest = numpy.get_state()
        states += [key.tolist(), rest]
    return states
