"""How far apart are the ranks? Each leaves its numbers in the store; rank 0 looks there and never waits."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from forgather_mem.sample import Moment, RunInfo, Sample
from forgather_mem.store import default_store

_NUMBERS = ("device/allocated_bytes", "device/reserved_bytes", "host/rss_bytes")
_SHORT = ("allocated", "reserved", "rss")
_FORMAT = struct.Struct("<3d")
NOTHING: Mapping[str, float] = {}


class RankProbe:
    """Lowest and highest memory over the ranks, and which rank is highest; on rank 0 only, and only with several ranks.

    A rank's numbers are those it wrote last, so they may be one period old: nobody waits for anybody. One
    call costs a round trip to the store (about 0.1 ms), on rank 0 one for each rank.
    """

    names = ("ranks/",)

    def __init__(self) -> None:
        self._rank, self._world_size = 0, 1

    def begin(self, run: RunInfo) -> None:
        self._rank, self._world_size = run.rank, run.world_size

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        store = default_store() if self._world_size > 1 else None
        if store is None:
            return NOTHING
        mine = [sample.values.get(name, float("nan")) for name in _NUMBERS]
        store.set(_key(self._rank), _FORMAT.pack(*mine))
        if self._rank != 0:
            return NOTHING
        keys = [_key(rank) for rank in range(self._world_size)]
        if not store.check(keys):  # somebody has not written yet; next time
            return NOTHING
        return spread([_FORMAT.unpack(_bytes(store.get(key))) for key in keys])


def spread(ranks: list[tuple[float, ...]]) -> dict[str, float]:
    """Lowest, highest and the highest's rank from one (allocated, reserved, rss) in bytes per rank; NaN is absent.

    >>> spread([(1.0, 2.0, 5.0), (3.0, 2.0, 4.0)])["ranks/argmax"]
    1.0
    """
    values: dict[str, float] = {}
    for column, short in reversed(list(enumerate(_SHORT))):
        known = [(row[column], rank) for rank, row in enumerate(ranks) if row[column] == row[column]]
        if known:
            values[f"ranks/{short}_min_bytes"] = min(known)[0]
            values[f"ranks/{short}_max_bytes"], highest = max(known, key=lambda pair: pair[0])
            values["ranks/argmax"] = float(highest)  # device memory decides where there is any: it comes last
    return values


def _key(rank: int) -> str:
    return f"forgather_mem/ranks/{rank}"


def _bytes(value: Any) -> bytes:
    return bytes(value)
