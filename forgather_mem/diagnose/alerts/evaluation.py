"""What an evaluation keeps of each batch, by how memory grows, and whether that will fit until its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forgather_mem.diagnose.alerts.alert import Alert, left_in, left_text
from forgather_mem.system.allocator import gauge_now
from forgather_mem.system.headroom import Room, device_room, host_rooms
from forgather_mem.system.native_heap import allocated_natively_bytes
from forgather_mem.units import format_bytes


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """When what an evaluation keeps is told. Measured by benchmarks/late_failures.py.

    Attributes:
        first: The first batch that is read: of a Trainer's first two the second is kept twice.
        fewest: Batches; some may be kept to show.
        way_frac: Of the way to its end: it may write what it has kept to a file now and then.
        least_a_batch_bytes: Less is nothing that is kept.
        steady_frac: Of what the earlier half of the intervals has grown by: a cache grows less and less.
        expensive_s: After an account of the C library's heap that took longer there is none.
    """

    first: int = 2
    fewest: int = 16
    way_frac: float = 1 / 4
    least_a_batch_bytes: int = 4096
    steady_frac: float = 0.7
    expensive_s: float = 0.005


_WHEN = EvaluationLimits()


class EvaluationGrowth:
    """Sizes after the first batches of one evaluation.

    Args:
        joins: Whether each batch is joined with those before in a new array, so that all are there twice for a moment.
    """

    def __init__(self, joins: bool = False) -> None:
        self._times = 2 if joins else 1
        self._num_batches = 0
        self._next: float = _WHEN.first
        self._seen: list[tuple[int, int, int]] = []  # batches, bytes on the device and on the host

    def batch_done(self, num_batches: Callable[[], int | None]) -> Alert | None:
        """Note that a batch has been predicted; what will not fit, found once, the device first: there it fails first.

        Args:
            num_batches: Returns how many there are; asked only when something is kept.
        """
        self._num_batches += 1
        if self._num_batches < self._next:
            return None
        self._next = self._num_batches + max(1, self._num_batches // 8)
        sizes = _sizes_now()
        if sizes is None:
            self._next = math.inf
            return None
        self._seen.append((self._num_batches, *sizes))
        if self._num_batches < _WHEN.fewest:
            return None
        grown = [_growth([(row[0], row[place]) for row in self._seen]) for place in (1, 2)]
        whole = num_batches() if sum(grown) >= _WHEN.least_a_batch_bytes else None
        if whole is None or whole <= 2 * self._num_batches:
            self._next = math.inf if whole is not None else self._next
            return None
        for room, a_batch in zip((device_room(), next(iter(host_rooms()), None)), grown, strict=True):
            found = self._against(room, a_batch, whole) if room is not None and a_batch > 0 else None
            if found is not None:
                self._next = math.inf
                return found
        return None

    def _against(self, room: Room, a_batch: float, num_batches: int) -> Alert | None:
        done, times, left = self._num_batches, self._times, left_in(room)
        # Where they are joined: the new array beside the old one, and of these what is there now
        needed = (times * num_batches - (times - 1) - done) * a_batch
        at_batch = min(num_batches, max(done + 1, math.ceil((left / a_batch + times - 1 + done) / times)))
        if needed <= left or done < _WHEN.way_frac * at_batch:
            return None
        whole = a_batch * num_batches
        twice = f", {format_bytes(times * whole)} while they are joined" if times > 1 else ""
        text = (
            f"the evaluation keeps {format_bytes(a_batch)} of each batch on the {room.where}: {format_bytes(whole)} "
            f"after {num_batches:,} batches{twice}. {left_text(left, room.limit)}, which batch {at_batch:,} exceeds: "
            "keep only what the metrics need of a batch: numbers or argmax(-1), not all outputs"
        )
        return Alert(name="evaluation", text=text, value=round(needed), limit=left, full_at_batch=at_batch)


def _growth(seen: Sequence[tuple[int, int]]) -> float:
    """Bytes a batch; 0 where it slows down.

    >>> _growth([(2, 100), (3, 150), (4, 200)])
    50.0
    >>> _growth([(2, 100), (3, 150), (4, 160)])
    0.0
    """
    (first, size), (middle, halfway), (last, now) = seen[0], seen[len(seen) // 2], seen[-1]
    early, late = (halfway - size) / (middle - first), (now - halfway) / (last - middle)
    return (now - size) / (last - first) if early > 0 and late >= _WHEN.steady_frac * early else 0.0


def _sizes_now() -> tuple[int, int] | None:
    """Bytes in use by tensors and arrays on the device and on the host; None if that can't be measured."""
    on_device = gauge_now("allocated_bytes")
    began_s = time.thread_time()  # on a busy machine other processes run meanwhile
    on_host = allocated_natively_bytes()
    if on_host is None or time.thread_time() - began_s > _WHEN.expensive_s:
        return None if on_device is None else (on_device, 0)
    return on_device or 0, on_host
