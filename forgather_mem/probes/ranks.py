"""Compares memory across ranks: each rank writes its numbers to the store; rank 0 reads them and never waits."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from forgather_mem.system.rank_store import get_all, put
from forgather_mem.telemetry.protocols import RunInfo
from forgather_mem.telemetry.records import Moment, Sample

_NUMBERS = ("device/allocated_bytes", "device/reserved_bytes", "host/rss_bytes")
_SHORT = ("allocated", "reserved", "rss")
_FORMAT = struct.Struct("<3d")
NOTHING: Mapping[str, float] = {}


class RankProbe:
    """Lowest and highest memory over the ranks, and the highest rank; on rank 0 only, and only with several ranks.

    A rank's numbers are its last written ones, so they may be one period old: no rank waits for another. A call costs
    one round trip to the store (about 0.1 ms), on rank 0 one per rank.
    """

    def __init__(self) -> None:
        self._rank, self._world_size, self._key = 0, 1, ""

    def begin(self, run: RunInfo) -> None:
        self._rank, self._world_size = run.rank, run.world_size
        self._key = run.store_key("ranks") if run.world_size > 1 else ""

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if self._world_size == 1:
            return NOTHING
        mine = [sample.values.get(name, float("nan")) for name in _NUMBERS]
        put(f"{self._key}/{self._rank}", _FORMAT.pack(*mine))
        if self._rank != 0:
            return NOTHING
        keys = [f"{self._key}/{rank}" for rank in range(self._world_size)]
        found = get_all(keys)
        if found is None:  # some rank has not written yet; next time
            return NOTHING
        return spread([_FORMAT.unpack(numbers) for numbers in found])


def spread(ranks: list[tuple[float, ...]]) -> dict[str, float]:
    """Lowest, highest and the highest rank from one (allocated, reserved, rss) in bytes per rank; NaN means absent.

    >>> spread([(1.0, 2.0, 5.0), (3.0, 2.0, 4.0)])["ranks/argmax"]
    1.0
    """
    values: dict[str, float] = {}
    for column, short in reversed(list(enumerate(_SHORT))):
        known = [(row[column], rank) for rank, row in enumerate(ranks) if row[column] == row[column]]
        if known:
            values[f"ranks/{short}_min_bytes"] = min(known)[0]
            values[f"ranks/{short}_max_bytes"], highest = max(known, key=lambda pair: pair[0])
            values["ranks/argmax"] = float(highest)  # device memory decides if there is any: it comes last
    return values
