"""Whether longer samples will still come than those so far, from the data set of the loader that is running."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol

from forgather_mem.diagnose.oom.shapes.batch_shapes import Batch
from forgather_mem.diagnose.oom.shapes.sample_lengths import batches_of
from forgather_mem.probes.live_objects import live_objects

_MOST_SAMPLES = 200_000


class RunningLoader(Protocol):
    """A pass over one of torch's data loaders."""

    _dataset: Sequence[object]
    _num_yielded: int


def times_ahead(batch: Batch) -> float | None:
    """How many times as long as the longest sample so far the longest of the data set is; None if that is not known.

    Nothing is loaded: known are a list of samples, and a data set that keeps one. Those may be cut later, where that is
    not so of the current batch.

    Args:
        batch: The current batch, which tells whether its samples were cut.
    """
    loaders = sys.modules.get("torch.utils.data.dataloader")
    with suppress(MemoryError):
        for iterator in live_objects(loaders._BaseDataLoaderIter) if loaders is not None else ():
            found = _times_ahead(iterator, batch)
            if found is not None:
                return found
    return None


def _times_ahead(iterator: RunningLoader, batch: Batch) -> float | None:
    sizes, batches = sizes_of(iterator._dataset), batches_of(iterator)
    given = list(islice(batches, iterator._num_yielded)) if batches is not None else []
    if sizes is None or not given or len(given[-1]) < batch.rows:
        return None
    now = max((sizes[index] for part in given for index in part), default=0)
    times = max(sizes) / now if now else 1.0
    is_cut = batch.length is not None and batch.length < max(sizes[index] for index in given[-1]) - 1
    return 1.0 if is_cut else times


def sizes_of(dataset: Sequence[object]) -> list[int] | None:
    """Numbers or tokens of each sample before it is cut; None where only loading them would tell.

    >>> sizes_of([([5, 6, 7], 0), ([5], 1)])
    [3, 1]
    """
    try:
        count = len(dataset)
    except TypeError:
        return None
    if not 0 < count <= _MOST_SAMPLES:
        return None
    kept = [dataset] if isinstance(dataset, list | tuple) else list(getattr(dataset, "__dict__", {}).values())
    lists = [one for one in kept if isinstance(one, list | tuple) and len(one) == count]
    found = [sizes for sizes in map(_sizes, lists) if max(sizes) > 1]
    return max(found, key=sum, default=None)


def _sizes(samples: Sequence[object]) -> list[int]:
    return [_size(sample) for sample in samples]


def _size(sample: object) -> int:
    """Numbers of a sample's largest tensor; 1 for a plain number, which may mean anything."""
    shape = getattr(sample, "shape", None)
    if isinstance(shape, tuple):
        return math.prod(shape)
    if isinstance(sample, Mapping):
        return max(map(_size, sample.values()), default=0)
    if isinstance(sample, list | tuple):
        is_flat = not sample or isinstance(sample[0], int | float)
        return len(sample) if is_flat else max(map(_size, sample))
    return 1
