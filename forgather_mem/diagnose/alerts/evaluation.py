"""What an evaluation keeps of each batch, and whether that will fit until its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forgather_mem.diagnose.alerts.foretold import Foretold, left_in, left_text
from forgather_mem.system.allocator import gauge_now
from forgather_mem.system.headroom import Room, device_room, host_rooms
from forgather_mem.system.native_heap import allocated_natively_bytes
from forgather_mem.units import format_bytes

Size = tuple[float, float]  # bytes in use on the host, and on the device


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """When what an evaluation keeps is told. Measured by benchmarks/late_failures.py.

    Attributes:
        judged_after_frac: Of the batches.
        first: The first batch that is read: of a Trainer's first two the second is kept twice.
        fewest: Batches: of an interval alone nobody knows whether it goes on.
        fewest_of_unknown: The same in a loop of one's own, which may keep some to show.
        unknown_frac: Of the way to its end, in such a loop: it may write what it has kept to a file now and then.
        least_a_batch_bytes: Less is nothing that is kept.
        steady_frac: Of what the earlier half of the intervals has grown by: a cache grows less and less.
        expensive_s: After an account of the C library's heap that took longer there is none.
    """

    judged_after_frac: float = 0.008
    first: int = 2
    fewest: int = 4
    fewest_of_unknown: int = 16
    unknown_frac: float = 1 / 4
    least_a_batch_bytes: int = 4096
    steady_frac: float = 0.7
    expensive_s: float = 0.005


_WHEN = EvaluationLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How an evaluation keeps what it has predicted.

    Attributes:
        is_known: Whether all batches are kept alike, as in a Trainer; in a loop of one's own nobody knows.
        joins: Whether each batch is joined with those before in a new array, so that all are there twice for a moment.
        moves_every: After how many batches a device's tensors are moved to the host; None for at the end.
        moves: Whether what is kept on a device comes to the host at all.
        kept_bytes: Returns the bytes that are kept now, of tensors and arrays; None where only growth tells of it.
        advice: What to do about it.
    """

    is_known: bool = False
    joins: bool = False
    moves_every: int | None = None
    moves: bool = False
    kept_bytes: Callable[[], int] | None = None
    advice: str = "keep only what the metrics need of a batch: numbers or argmax(-1), not all outputs"


class EvaluationGrowth:
    """Sizes after the first batches of one evaluation.

    Args:
        ask: Tells from the bytes that have grown how it keeps what it has predicted; called once, when something grows.
    """

    def __init__(self, ask: Callable[[float], Keeping]) -> None:
        self._ask = ask
        self._keeping: Keeping | None = None
        self._num_batches = 0
        self._next = _WHEN.first
        self._seen: list[tuple[int, Size]] = []
        self._is_judged = False

    def batch_done(self, num_batches: Callable[[], int | None]) -> Foretold | None:
        """Note that a batch has been predicted; what will not fit, found once.

        Args:
            num_batches: Returns how many there are; asked only when something is kept.
        """
        self._num_batches += 1
        if self._is_judged or self._num_batches < self._next:
            return None
        self._next = self._num_batches + max(1, self._num_batches // 8)
        size = _size_now()
        if size is None:
            self._is_judged = True
            return None
        self._seen.append((self._num_batches, size))
        if len(self._seen) < _WHEN.fewest - 1:
            return None
        grown = _growth(self._seen)
        if sum(grown) < _WHEN.least_a_batch_bytes:
            self._is_judged = self._num_batches > 64
            return None
        whole = num_batches()
        self._is_judged = whole is None or whole <= self._num_batches
        return None if whole is None or self._is_judged else self._judge(grown, whole)

    def _judge(self, grown: Size, num_batches: int) -> Foretold | None:
        done = self._num_batches
        keeping = self._keeping = self._keeping or self._ask(sum(grown) * done)
        found = _outlook(keeping, grown, done, num_batches)
        at_batch = (found.at_batch if found is not None else None) or num_batches
        fewest: float = _WHEN.fewest
        if not keeping.is_known:
            fewest = max(_WHEN.fewest_of_unknown, _WHEN.unknown_frac * at_batch)
        if at_batch >= 2 * done and done < max(fewest, _WHEN.judged_after_frac * num_batches):
            return None
        if found is not None and keeping.kept_bytes is not None:  # of what has grown that alone goes on
            a_batch = keeping.kept_bytes() / done
            found = _outlook(keeping, (min(grown[0], a_batch), min(grown[1], a_batch)), done, num_batches)
        self._is_judged = found is not None or done > num_batches // 2
        return found


def _growth(seen: Sequence[tuple[int, Size]]) -> Size:
    """Bytes a batch on the host and on the device; 0 where it slows down.

    >>> _growth([(2, (100, 0)), (3, (150, 0)), (4, (200, 0))])
    (50.0, 0.0)
    >>> _growth([(2, (100, 0)), (3, (150, 0)), (4, (160, 0))])
    (0.0, 0.0)
    """
    (first, sizes), (middle, between), (last, now) = seen[0], seen[len(seen) // 2], seen[-1]
    grown = []
    for before, halfway, after in zip(sizes, between, now, strict=True):
        early, late = (halfway - before) / (middle - first), (after - halfway) / (last - middle)
        steady = early > 0 and late >= _WHEN.steady_frac * early
        grown.append((after - before) / (last - first) if steady else 0.0)
    return grown[0], grown[1]


def _outlook(keeping: Keeping, grown: Size, done: int, num_batches: int) -> Foretold | None:
    """What will not fit, the device first: there it fails first."""
    on_host, on_device = grown
    on_host = max(on_host, on_device) if keeping.moves or keeping.moves_every else on_host
    window = min(num_batches, keeping.moves_every or num_batches)
    host = next(iter(host_rooms()), None), on_host, num_batches
    for room, a_batch, kept_batches in ((device_room() if on_device else None, on_device, window), host):
        found = _against(room, a_batch, done, kept_batches, keeping) if room is not None and a_batch > 0 else None
        if found is not None:
            return found
    return None


def _against(room: Room, a_batch: float, done: int, kept_batches: int, keeping: Keeping) -> Foretold | None:
    """What will not fit into this room; so many batches are there at the most at once."""
    # Where they are joined: the new array beside the old one, and of these what is there now
    held = 2 * kept_batches - 1 - done if keeping.joins else kept_batches - done
    needed, left = held * a_batch, left_in(room)
    if kept_batches <= done or needed <= left:
        return None
    until = (left / a_batch + 1 + done) / 2 if keeping.joins else left / a_batch + done
    at_batch = min(kept_batches, max(done + 1, math.ceil(until)))
    whole = a_batch * kept_batches
    twice = f", {format_bytes(2 * whole)} while they are joined" if keeping.joins else ""
    text = (
        f"the evaluation keeps {format_bytes(a_batch)} of each batch on the {room.where}: {format_bytes(whole)} after "
        f"{kept_batches:,} batches{twice}. {left_text(left, room.limit)}, which batch {at_batch:,} exceeds: "
        f"{keeping.advice}"
    )
    return Foretold(name="evaluation", text=text, needed_bytes=round(needed), left_bytes=left, at_batch=at_batch)


def _size_now() -> Size | None:
    """Bytes in use by tensors and arrays; None if that can't be measured."""
    on_device = gauge_now("allocated_bytes")
    began_s = time.thread_time()  # on a busy machine other processes run meanwhile
    on_host = allocated_natively_bytes()
    if on_host is None or time.thread_time() - began_s > _WHEN.expensive_s:
        return None if on_device is None else (0, on_device)
    return on_host, on_device or 0
