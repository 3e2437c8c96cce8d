"""The data loaders of a planned loop: their batches are those that come, and they end when it is enough.

The sampler is asked for all its numbers where it would be asked for the first ones. After the first step the largest
batch comes, in the place within a step that it has.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import _DatasetKind
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from forgather_mem.planning.batches import (
    MEASURE_S,
    Coming,
    PlannedShape,
    Row,
    batches_of_longest_rows,
    collating,
    largest_of,
    looked_at,
)  # fmt: skip
from forgather_mem.planning.loop.rounds import Rounds
from forgather_mem.planning.private_state import surround

Numbers = Sequence[int]


class Loaders:
    """Those of a loop, from now on.

    Args:
        loop: The loop.
        iterators: Those that are under way. A child can't use their workers.
    """

    def __init__(self, loop: Any, iterators: Iterable[Any]) -> None:
        self._loop = loop
        self._met = WeakKeyDictionary[Any, Rounds | None]()  # iterators; of an evaluation its rounds
        self._waiting = set[int]()  # iterators, by id, whose largest batch is still to come
        self._rows: dict[int, list[Row]] = {}  # by data set
        self._planned_bytes: dict[tuple[int, int], int] = {}  # of the largest batch, by data set and size
        for one in iterators:
            one.__class__, one._pin_memory = _SingleProcessDataLoaderIter, False
            one._dataset_fetcher = _DatasetKind.create_fetcher(
                one._dataset_kind, one._dataset, one._auto_collation, one._collate_fn, one._drop_last
            )
        surround("torch.utils.data.dataloader:_BaseDataLoaderIter.__next__", self._followed, loop.notes)

    def _followed(self, follow: Callable[[Any], object], iterator: Any) -> object:
        loop = self._loop
        if iterator not in self._met:
            self._met[iterator] = None if loop.trains else Rounds(loop.log)
            self._meet(iterator)
        rounds = self._met[iterator]
        if rounds is not None and not rounds.go_on():
            loop.notes += rounds.notes()
            raise StopIteration
        is_enough = loop.passes and id(iterator) not in self._waiting and loop.is_through()
        if rounds is None and is_enough:  # what follows an epoch is planned, too
            raise StopIteration
        try:
            return follow(iterator)
        except StopIteration:
            if rounds is not None or not loop.skipped:
                raise
            iterator._sampler_iter = iter(iterator._index_sampler)  # the round that is skipped is no part of it
            return follow(iterator)

    def _meet(self, iterator: Any) -> None:
        """Let it make the batches of a plan; another round is planned where it brings what was not there before."""
        loop, size = self._loop, 0
        rows = getattr(iterator._index_sampler, "batch_size", None) or 1
        key = id(iterator._dataset), rows
        if iterator._auto_collation and iterator._dataset_kind == _DatasetKind.Map:
            size = self._order(iterator, key, rows)
        if not loop.trains:
            return
        if loop.passes and loop.is_through():
            loop.counts_idle()
            if loop.rounds.grows() or size > self._planned_bytes.get(key, -1):
                loop.again()
        self._planned_bytes.setdefault(key, 0)

    def _order(self, iterator: Any, key: tuple[int, int], rows: int) -> int:
        """Give it its batches; the bytes of the largest where they differ and a step has been planned."""
        loop, fetcher = self._loop, iterator._dataset_fetcher
        fetcher.batch_sampler, until_s = iterator._index_sampler, time.monotonic() + MEASURE_S
        wanted = loop.wanted if loop.trains else loop.wanted._replace(rows=None)
        told = (loop.shapes, loop.notes) if loop.trains else ([], [])
        known: list[Numbers] = []
        if wanted == PlannedShape():
            known += itertools.takewhile(lambda _: time.monotonic() < until_s, iterator._sampler_iter)
        if not known or time.monotonic() > until_s:
            iterator._sampler_iter = itertools.chain(known, iterator._sampler_iter)
            batches_of_longest_rows(fetcher, rows, "length", wanted, *told)
            return 0
        fetcher.collate_fn = collating(fetcher.collate_fn, iterator._dataset, None, wanted, told[0].append)
        if key[0] not in self._rows:
            self._rows[key[0]] = looked_at(iterator._dataset, "length")
        return self._largest_early(iterator, key, known)

    def _largest_early(self, iterator: Any, key: tuple[int, int], known: Sequence[Numbers]) -> int:
        """The same, of these batches."""
        loop, fetcher = self._loop, iterator._dataset_fetcher
        measured = self._rows[key[0]]
        differ = len({row.length for row in measured}) > 1 or not hasattr(iterator._index_sampler, "batch_size")

        name, taken = id(iterator), iterator._num_yielded  # the iterator has these functions, which are not to keep it
        self._waiting.discard(name)

        @functools.cache
        def largest(*among: int) -> Coming | None:
            return largest_of(known, measured, 1, fetcher, among) if differ and among else None

        def of_training() -> Iterator[Numbers]:
            number = 0
            while number < len(known) and loop.rounds.step == 1:
                yield known[number]
                number += 1
            later = range(number, len(known))
            # Gradients of the batches before it in its step may count more
            among = [[*later], [one for one in later if (taken + one) % loop.each]]
            found = [one for one in (largest(*numbers) for numbers in among) if one is not None]
            loop.notes += [] if self._planned_bytes.get(key) else [one.note() for one in found[:1]]
            self._planned_bytes[key] = max([self._planned_bytes.get(key, 0), *(one.bytes for one in found)])
            self._waiting.add(name)
            for at in sorted({one.largest for one in found}):
                begin, end = at - (at - number) % loop.each, at + loop.each - (taken + at) % loop.each
                yield from known[max(begin, number) : at]
                loop.again()
                yield from known[max(at, number) : end]
                number = max(end, number)
            self._waiting.discard(name)
            yield from known[number:]

        def of_evaluation() -> Iterator[Numbers]:
            found = largest(*range(len(known)))
            first = found.largest if found else 0
            return itertools.chain([known[first]], known[:first], known[first + 1 :])

        iterator._sampler_iter = of_training() if loop.trains else of_evaluation()
        found = largest(*range(len(known))) if loop.trains and loop.rounds.step > 1 else None
        return found.bytes if found else 0
