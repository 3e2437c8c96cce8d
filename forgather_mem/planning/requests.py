"""The allocations of a planned training, each beside what was there before it: by which a failure is found in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from forgather_mem.planning.storage_log import StorageLog

_LEAST_PART = 1000  # of the largest: smaller ones are no reason for a failure


class StorageRequest(NamedTuple):
    """A storage that is made.

    Attributes:
        step: 1 or 2.
        phase: As in `PhasePlan`.
        size: Its bytes.
        before_bytes: Of all tensors there were then.
    """

    step: int
    phase: str
    size: int
    before_bytes: int


def requests_of(log: StorageLog) -> Iterator[StorageRequest]:
    """The larger allocations, in order."""
    least = max(log.sizes, default=0) // _LEAST_PART
    total = 0
    ends = [stretch.first_event for stretch in log.stretches[1:]] + [len(log.events)]
    for stretch, end in zip(log.stretches, ends, strict=True):
        for event in log.events[stretch.first_event : end]:
            size = log.sizes[event if event >= 0 else ~event]
            if event >= 0 and size > least:
                yield StorageRequest(stretch.step, stretch.phase, size, total)
            total += size if event >= 0 else -size
