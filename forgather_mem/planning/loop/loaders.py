"""The data loaders of a planned training: their batches are those that come, and a loop's end when it is enough.

The sampler is asked for all its numbers where it would be asked for the first ones. After the first step the largest
batch comes, in the place within a step that it has. A later epoch has a round as well where it has a larger one.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import suppress
from typing import Any, TypeAlias, get_args
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only
from torch.utils.data import _DatasetKind
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from forgather_mem.planning import batches
from forgather_mem.planning.loop.rounds import MOST_BATCHES, Rounds
from forgather_mem.planning.private_state import surround

_MOST_OF_EVALUATION = 4_000  # batches, in some 10 s: a guess
Numbers: TypeAlias = Sequence[int]
Key: TypeAlias = tuple[int | str, ...]
Largest: TypeAlias = Callable[..., batches.Coming | None]  # of the batches with these numbers


class Loaders:
    """Those of a training, from now on.

    Args:
        loop: The training: a `Loop`, or that of a Trainer.
        iterators: Those that are under way. A child can't use their workers.

    Attributes:
        differ: Whether some batches are larger than others.
        waiting: Iterators whose largest batch is still to come.
        left: How many batches still come where it is enough.
    """

    def __init__(self, loop: Any, iterators: Sequence[Any] = ()) -> None:
        self._loop, self.differ, self.left = loop, False, 0
        self._met = WeakKeyDictionary[object, Rounds | None]()  # iterators; of an evaluation its rounds
        self._unordered = WeakSet[object]()  # iterators met where no work is done
        self._collate = WeakKeyDictionary[object, Callable[..., object]]()  # the training's, by what fetches
        self.waiting = WeakSet[object]()
        self._sizes = defaultdict[int, dict[int, batches.Sizes]](dict)  # of rows, by data set
        self._planned = Counter[Key]()  # sizes of the largest batch, by data set, its rows and the measure
        self._left_s = batches.MEASURE_S  # to look at the rows of later epochs
        # Whether a batch may be loaded before the one before it is trained with: else there is one at the first call
        self._is_ahead = all(one._num_yielded != 1 for one in iterators)
        for one in iterators:
            one.__class__, one._pin_memory = _SingleProcessDataLoaderIter, False
            one._dataset_fetcher = _DatasetKind.create_fetcher(
                one._dataset_kind, one._dataset, one._auto_collation, one._collate_fn, one._drop_last
            )
        self._again = WeakKeyDictionary[object, object]()  # the batch that comes again, by what fetches it
        self._first = WeakKeyDictionary[object, Numbers]()  # the rows of the first one: in an evaluation the largest
        surround("torch.utils.data.dataloader:_BaseDataLoaderIter.__next__", self._followed, loop.notes)
        surround("torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch", self._fetched, loop.notes)

    def _followed(self, follow: Callable[[Any], object], iterator: Any) -> object:
        loop = self._loop
        if iterator not in self._met:
            is_known = isinstance(iterator._dataset, Sized)
            most = min(len(iterator) + 1, _MOST_OF_EVALUATION) if is_known else MOST_BATCHES
            self._met[iterator] = None if loop.trains else Rounds(loop.log, most=most, host=loop.mode.host)
            self._meet(iterator)
        elif iterator in self._unordered and not loop.ahead.skips:
            self._order(iterator)
        rounds = self._met[iterator]
        if rounds is not None and not rounds.go_on():
            loop.notes += rounds.notes()
            raise StopIteration
        loop.ahead.repeats = rounds is not None and rounds.repeats
        is_enough = loop.num_passes and iterator not in self.waiting and loop.is_through()
        if rounds is None and is_enough:  # what follows an epoch is planned, too
            self.left -= 1
            if self.left < 0:
                raise StopIteration
        try:
            return follow(iterator)
        except StopIteration:
            if rounds is not None or not loop.skipped or loop.ahead.has_looked:
                raise
            iterator._sampler_iter = iter(iterator._index_sampler)  # the round that is skipped is no part of it
            return follow(iterator)

    def _fetched(self, fetch: Callable[..., object], fetcher: Any, numbers: Numbers) -> object:
        """One batch comes again and again where no work is done: rows may take long to read."""
        ahead = self._loop.ahead
        if not (ahead.skips or ahead.repeats):
            self._again.pop(fetcher, None)
            self._first.setdefault(fetcher, numbers)
            return fetch(fetcher, numbers)
        with _disable_current_modes():  # the one that is kept is none of the training's
            if fetcher not in self._again:
                self._again[fetcher] = fetch(fetcher, self._first[fetcher] if ahead.repeats else numbers)
            return tree_map_only(torch.Tensor, copy_when_written, self._again[fetcher])

    def _meet(self, iterator: Any) -> None:
        """Let it make the batches of a plan; another round is planned where it brings what was not there before."""
        loop = self._loop
        began_s, is_larger, fetcher = time.monotonic(), False, iterator._dataset_fetcher
        if loop.trains:
            fetcher.collate_fn = loop.collating(fetcher.collate_fn)
        if iterator._auto_collation:
            wanted = self._wanted()
            told = loop.shapes.append if loop.trains else lambda _: None
            self._collate[fetcher] = fetcher.collate_fn
            fetcher.collate_fn = batches.collating(fetcher.collate_fn, wanted, told)
            self._unordered.add(iterator)
            if loop.trains and isinstance(iterator._dataset, Sized):
                loop.all_rows = max(loop.all_rows, len(iterator._dataset))
            is_larger = not loop.ahead.skips and self._order(iterator)
        if loop.trains and loop.num_passes and loop.is_through():
            loop.counts_idle()
            self._left_s -= time.monotonic() - began_s
            if is_larger and not loop.rounds.notes():
                loop.again()

    def _wanted(self) -> batches.PlannedShape:
        wanted: batches.PlannedShape = self._loop.wanted
        return wanted if self._loop.trains else wanted._replace(rows=None)

    def _order(self, iterator: Any) -> bool:
        """Give it its batches; whether a step has been planned and one is larger than those before."""
        self._unordered.discard(iterator)
        dataset, sampler = iterator._dataset, iterator._index_sampler
        loop, trains, wanted = self._loop, self._loop.trains, self._wanted()
        if iterator._dataset_kind != _DatasetKind.Map or wanted.length is not None:
            return False
        collate = self._collate[iterator._dataset_fetcher]
        until_s, of_epoch = time.monotonic() + self._left_s, list[Numbers]()
        for numbers in iterator._sampler_iter:
            of_epoch.append(numbers)
            if time.monotonic() > until_s:
                break
        iterator._sampler_iter = itertools.chain(of_epoch, iterator._sampler_iter)
        sizes, coming = self._sizes[id(dataset)], of_epoch[: loop.most_batches(len(of_epoch)) if trains else None]
        known = list(batches.looked_at(dataset, coming, sizes, until_s - time.monotonic()))
        is_of_any_size = not isinstance(getattr(sampler, "batch_size", None), int)
        differ = is_of_any_size or len(set(map(batches.row_length, sizes.values()))) > 1
        if not known or not (differ or (trains and len(set(map(str, sizes.values()))) > 1)):
            return False
        self.differ |= differ
        if wanted.rows is not None and differ:
            longest = batches.longest_of(sizes, wanted.rows)
            which = batches.largest_of(longest, sizes, collate, dataset)
            known = [longest[which.largest if which else 0]] * len(known)

        @functools.cache
        def largest(by: batches.Measure, *among: int) -> batches.Coming | None:
            return batches.largest_of(known, sizes, collate, dataset, among, by) if differ or by == "values" else None

        key = id(dataset), getattr(sampler, "batch_size", None) or 1
        if trains:
            order = self._of_training(ref(iterator), key, known, largest)
        else:  # the largest comes first
            found = largest("bytes", *range(len(known)))
            order = iter(sorted(known, key=lambda one: found is None or one is not known[found.largest]))
        left = itertools.islice(iterator._sampler_iter, len(known), None)
        iterator._sampler_iter = itertools.chain(itertools.islice(order, len(of_epoch)), left)
        return bool(trains and loop.rounds.step > 1 and self._larger(key, largest, range(len(known)), 0))

    def _larger(self, key: Key, largest: Largest, numbers: range, taken: int) -> dict[Key, batches.Coming]:
        """The largest of these that are larger than all before.

        In bytes, and where a size was that of known values, as of packed rows or of what a mask chooses, in tokens and
        in values; and the same where there are gradients of the batches before it in its step, which may count more.
        """
        among = numbers, [one for one in numbers if (taken + one) % self._loop.each]
        kinds = get_args(batches.Measure) if self._loop.mode.counts_values else ("bytes",)
        measures = itertools.product(kinds, enumerate(among))
        asked = {(*key, by, place): largest(by, *some) for by, (place, some) in measures if some}
        return {name: one for name, one in asked.items() if one is not None and one.size > self._planned[name]}

    def _of_training(self, iterator: ref[Any], key: Key, known: list[Numbers], largest: Largest) -> Iterator[Numbers]:
        """The first step's batches, then the steps with the largest ones."""
        # The iterator has this, which is not to keep it
        loop, number, taken = self._loop, 0, iterator()._num_yielded  # type: ignore[union-attr]
        # Of batches of one size a pass tells whether some are larger, and others may be loaded before it
        while number < len(known) and (loop.is_first(number) or not (self.differ or loop.num_passes)):
            yield known[number]
            number += 1
        larger = self._larger(key, largest, range(number, len(known)), taken)
        self.differ |= len(larger) > 0
        if larger and not any(self._planned[name] for name in larger):  # of the first epoch
            loop.notes.append(next(iter(larger.values())).note(loop.wanted.rows is not None, taken))
        self._planned |= Counter({name: one.size for name, one in larger.items()})
        places = sorted({one.largest for one in larger.values()})
        self.waiting.add(iterator())
        for at in places:
            begin, end = at - (at - number) % loop.each, at + loop.each - (taken + at) % loop.each
            yield from known[max(begin, number) : at]
            loop.again()
            if at == places[-1] and not self._is_ahead:  # it is the last, and the round that follows is its own
                self.waiting.discard(iterator())
            yield from known[max(at, number) : end]
            number = max(end, number)
        self.waiting.discard(iterator())
        yield from known[number:]


def copy_when_written(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that takes no memory before something is written, where torch can make one: not of memory of others."""
    with suppress(RuntimeError, AttributeError):
        return torch._lazy_clone(tensor)
    return tensor.clone()
