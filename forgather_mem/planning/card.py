"""What a plan takes on a card, as an interval: computed, not measured.

Beside its tensors a card holds the context and the libraries' workspaces, and torch's allocator takes memory from it in
segments, which it splits and seldom gives back. Sizes: c10/cuda/CUDACachingAllocator (kSmallSize, kMinLargeAlloc, ...).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from forgather_mem.units import MIB

_ROUNDED = 512
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
_MIDDLE, _MIDDLE_SEGMENT = 10 * MIB, 20 * MIB
_STEP = 2 * MIB
# Context with its kernels and cuBLAS's workspaces, from a small to a large card; the latter with NCCL's buffers
CONTEXT_BYTES = 300 * MIB, 900 * MIB


class CardUse(NamedTuple):
    """The least and the most that a training takes of a card's memory, in bytes."""

    low_bytes: int
    high_bytes: int


def use_of_card(peak_bytes: int, reserved_bytes: int) -> CardUse:
    """From tensors alone, where the allocator gives back all it can, to all that it reserves if it never has to.

    Args:
        peak_bytes: Of tensors.
        reserved_bytes: Of the simulated allocator.
    """
    return CardUse(peak_bytes + CONTEXT_BYTES[0], max(peak_bytes, reserved_bytes) + CONTEXT_BYTES[1])


class _Block:
    """A piece of a segment; its neighbours are of the same one."""

    __slots__ = ("after", "before", "is_free", "number", "size")

    def __init__(self, size: int, number: int) -> None:
        self.size, self.number = size, number
        self.is_free = False
        self.before: _Block | None = None
        self.after: _Block | None = None


class _Pool:
    """Segments of one kind, and their free blocks by size."""

    def __init__(self, is_small: bool) -> None:
        self._is_small = is_small
        self._free: list[tuple[int, int]] = []  # size and number
        self._blocks: list[_Block] = []
        self.reserved_bytes = 0

    def take(self, size: int) -> _Block:
        place = bisect_left(self._free, (size, 0))
        if place < len(self._free):
            block = self._blocks[self._free.pop(place)[1]]
        else:
            block = self._new(self._segment(size))
            self.reserved_bytes += block.size
        block.is_free = False
        left = block.size - size
        if left >= _ROUNDED if self._is_small else left > _SMALL:
            rest = self._new(left)
            rest.before, rest.after, block.after = block, block.after, rest
            if rest.after is not None:
                rest.after.before = rest
            block.size = size
            self._release(rest)
        return block

    def give_back(self, block: _Block) -> None:
        before, after = block.before, block.after
        if before is not None and before.is_free:
            self._free.remove((before.size, before.number))
            block.size += before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.is_free:
            self._free.remove((after.size, after.number))
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._release(block)

    def _release(self, block: _Block) -> None:
        block.is_free = True
        insort(self._free, (block.size, block.number))

    def _new(self, size: int) -> _Block:
        self._blocks.append(_Block(size, len(self._blocks)))
        return self._blocks[-1]

    def _segment(self, size: int) -> int:
        if self._is_small:
            return _SMALL_SEGMENT
        return _MIDDLE_SEGMENT if size < _MIDDLE else -(-size // _STEP) * _STEP


def reserved_by_allocator(events: Iterable[int], sizes: Sequence[int]) -> int:
    """What torch's allocator has reserved in the end, if it never has to give anything back.

    >>> reserved_by_allocator([0, 1, ~0, 2], [3 * MIB, 4096, 2 * MIB]) // MIB
    22

    Args:
        events: As in `StorageLog`.
        sizes: Of the storages.
    """
    small, large = _Pool(True), _Pool(False)
    held: dict[int, _Block] = {}
    for event in events:
        number = event if event >= 0 else ~event
        pool = small if sizes[number] <= _SMALL else large
        if event < 0:
            block = held.pop(number, None)
            if block is not None:
                pool.give_back(block)
        elif sizes[number]:
            held[number] = pool.take(max(_ROUNDED, -(-sizes[number] // _ROUNDED) * _ROUNDED))
    return small.reserved_bytes + large.reserved_bytes
