"""What a plan takes on a card, as an interval: computed, not measured.

Beside its tensors a card holds the context and the libraries' workspaces, and torch's allocator takes memory from it in
segments, which it splits and seldom gives back. Sizes: c10/cuda/CUDACachingAllocator (kSmallSize, kMinLargeAlloc, ...).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from forgather_mem.units import MIB

# Context with its kernels and cuBLAS's workspaces, from a small to a large card; the latter with NCCL's buffers
CONTEXT_BYTES = 300 * MIB, 900 * MIB


@dataclass(frozen=True, slots=True)
class Segments:
    """How CUDA's caching allocator takes memory: `c10/cuda/CUDACachingAllocator.cpp`, in bytes.

    Attributes:
        rounded: A size is a multiple of it.
        small: Up to here it comes from a pool of its own.
        small_segment: What that pool takes at a time.
        middle: Below this the other pool takes `middle_segment`.
        middle_segment: See `middle`.
        step: What is larger has a segment of its own, a multiple of this.
    """

    rounded: int = 512
    small: int = MIB
    small_segment: int = 2 * MIB
    middle: int = 10 * MIB
    middle_segment: int = 20 * MIB
    step: int = 2 * MIB


_CUDA = Segments()


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
        if left >= _CUDA.rounded if self._is_small else left > _CUDA.small:
            rest = self._new(left)
            rest.before, rest.after, block.after = block, block.after, rest
            if rest.after is not None:
                rest.after.before = rest
            block.size = size
            self._release(rest)
        return block

    def give_back(self, block: _Block) -> None:
        for beside in (block.before, block.after):
            if beside is not None and beside.is_free:
                self._free.remove((beside.size, beside.number))
                low, high = (beside, block) if beside is block.before else (block, beside)
                low.size, low.after = low.size + high.size, high.after
                if low.after is not None:
                    low.after.before = low
                low.number, self._blocks[block.number] = block.number, low
                block = low
        self._release(block)

    def _release(self, block: _Block) -> None:
        block.is_free = True
        insort(self._free, (block.size, block.number))

    def _new(self, size: int) -> _Block:
        self._blocks.append(_Block(size, len(self._blocks)))
        return self._blocks[-1]

    def _segment(self, size: int) -> int:
        if self._is_small:
            return _CUDA.small_segment
        return _CUDA.middle_segment if size < _CUDA.middle else -(-size // _CUDA.step) * _CUDA.step


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
        pool = small if sizes[number] <= _CUDA.small else large
        if event < 0:
            block = held.pop(number, None)
            if block is not None:
                pool.give_back(block)
        elif sizes[number]:
            held[number] = pool.take(max(_CUDA.rounded, -(-sizes[number] // _CUDA.rounded) * _CUDA.rounded))
    return small.reserved_bytes + large.reserved_bytes
