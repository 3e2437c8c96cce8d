"""What a plan takes on a card, as an interval, and what is said of that: computed, not measured.

Beside its tensors a card holds the context and what libraries keep, and torch's allocator takes memory from it in
segments, which it splits, and gives back unsplit when there is no more. Sizes: c10/cuda/CUDACachingAllocator
(kSmallSize, kMinLargeAlloc, ...); cuBLAS's workspaces: aten/src/ATen/cuda/CublasContext.

Most of the context are kernels, and stacks for each multiprocessor, so that a larger card has a larger one. What
messages of the allocator say is in use beside what it has reserved, in MiB, most of them of processes that infer:

| card | context |
|---|---|
| T4, 14.6 to 14.8 GiB | 99 (hpcaitech/Open-Sora#697), 135 (Zheng-Chong/CatVTON#133) |
| 10.7, 11.7, 15.7 GiB | 197 (lllyasviel/FramePack#369), 287 (FireRedTeam/FireRedTTS2#17), 349 (qingze-bai/VSmTrans#3) |
| RTX 3090, 24 GiB | 256 before the first kernel (invoke-ai/InvokeAI#9413) |
| 39.5 GiB | 501 (TianheWu/CoSeR#10) |
| 47.5 GiB | 373 (tests/diagnose/oom/messages.yaml), 426 before the first kernel (unslothai/unsloth-zoo#1053) |
| 79.1, 79.3 GiB | 503 (lianqi1008/Control-GIC#6), 512 (Tianhao-Qi/Mask2DiT#4) |
| 79.3 GiB, one of four ranks | 1,464 (wbfwonderful/Vad-R1#11) |
"""

from __future__ import annotations

import textwrap
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from forgather_mem.planning.storage_log import Trace
from forgather_mem.units import GIB, MIB, format_bytes

# cuBLAS's for two threads, of 8 MiB or on Hopper 32; as much for cuDNN is a guess, no measurement
_WORKSPACES = 16 * MIB, 128 * MIB
_OF_RANKS = 0, 1024 * MIB  # NCCL's buffers
# Up to a card of so much, the least and the most: the table above with some room
_CONTEXTS = ((17 * GIB, 90, 400), (36 * GIB, 250, 500), (1024 * GIB, 350, 650))


class CardUse(NamedTuple):
    """The least and the most that a training takes of a card's memory, in bytes."""

    low_bytes: int
    high_bytes: int


def context_of(card_bytes: int, ranks: int = 1) -> CardUse:
    """What a card of this size holds beside tensors: the context, and libraries' workspaces."""
    of_card = next(row[1:] for row in _CONTEXTS if card_bytes <= row[0] or row is _CONTEXTS[-1])
    low, high = (MIB * context + more for context, more in zip(of_card, _WORKSPACES, strict=True))
    return CardUse(low, high + _OF_RANKS[ranks > 1])


def use_of_card(peak_bytes: int, reserved_bytes: int, trace: Trace, card_bytes: int, context: CardUse) -> CardUse:
    """From the tensors alone to the least with which torch's allocator gets through.

    Whether the card is enough is told exactly, and if so, or by how much it is not, within 2 %.

    Args:
        peak_bytes: Of tensors.
        reserved_bytes: Of the simulated allocator, if it never gives anything back.
        trace: Of the tensors.
        card_bytes: Of the card.
        context: What else it holds.
    """
    low, high, room = peak_bytes, max(peak_bytes, reserved_bytes), card_bytes - context.high_bytes
    while high - low > high // 50:
        if not low < room < high:
            room = (low + high) // 2
        enough = reserved_by_allocator(*trace[:2], room)
        low, high = (room, high) if enough is None else (low, enough)
    return CardUse(peak_bytes + context.low_bytes, high + context.high_bytes)


class _Pool:
    """Segments of one kind, of sizes from `c10/cuda/CUDACachingAllocator.cpp`; there is a gap after each.

    Attributes:
        reserved_bytes: Of all segments.
    """

    rounded, small, small_segment = 512, MIB, 2 * MIB  # sizes are multiples of the first; up to `small` in one pool
    middle, middle_segment, step = 10 * MIB, 20 * MIB, 2 * MIB  # below `middle` of such a segment, else of their own

    def __init__(self, is_small: bool) -> None:
        self._is_small = is_small
        self._by_size: list[tuple[int, int]] = []  # of free blocks: size and address
        self._sizes: dict[int, int] = {}  # of free blocks by their address
        self._addresses: dict[int, int] = {}  # of free blocks by their end
        self._segments: dict[int, int] = {}
        self._next = self.reserved_bytes = 0

    def lacks(self, size: int) -> int:
        """The segment that a block of this size would take from the card."""
        if self._by_size and self._by_size[-1][0] >= size:
            return 0
        if self._is_small:
            return self.small_segment
        return self.middle_segment if size < self.middle else -(-size // self.step) * self.step

    def take(self, size: int) -> tuple[int, int]:
        """Address and size of a block."""
        if segment := self.lacks(size):
            self._segments[self._next] = segment
            self._free(self._next, segment)
            self._next += segment + 1
            self.reserved_bytes += segment
        found, address = self._by_size[bisect_left(self._by_size, (size, 0))]
        self._use(address)
        left = found - size
        if left >= self.rounded if self._is_small else left > self.small:
            self._free(address + size, left)
            found = size
        return address, found

    def give_back(self, address: int, size: int) -> None:
        """A block, which is joined with its free neighbours."""
        if (before := self._addresses.get(address)) is not None:
            address, size = before, size + self._use(before)
        if address + size in self._sizes:
            size += self._use(address + size)
        self._free(address, size)

    def give_back_segments(self) -> None:
        """Those that are free as a whole, to the card."""
        for address in [one for one, size in self._segments.items() if self._sizes.get(one) == size]:
            self._use(address)
            self.reserved_bytes -= self._segments.pop(address)

    def _free(self, address: int, size: int) -> None:
        insort(self._by_size, (size, address))
        self._sizes[address], self._addresses[address + size] = size, address

    def _use(self, address: int) -> int:
        size = self._sizes.pop(address)
        del self._addresses[address + size], self._by_size[bisect_left(self._by_size, (size, address))]
        return size


def reserved_by_allocator(events: Iterable[int], sizes: Sequence[int], room_bytes: int | None = None) -> int | None:
    """The most that torch's allocator reserves, if it gives nothing back before it must.

    >>> reserved_by_allocator([0, 1, ~0, 2], [3 * MIB, 4096, 2 * MIB]) // MIB
    22

    Args:
        events: As in `StorageLog`.
        sizes: Of the storages.
        room_bytes: What it can have; None is no bound.

    Returns:
        Bytes; None if the room is not enough.
    """
    small, large = _Pool(True), _Pool(False)
    held: dict[int, tuple[int, int]] = {}
    most_bytes = 0
    for event in events:
        number = event if event >= 0 else ~event
        pool = small if sizes[number] <= _Pool.small else large
        if event < 0:
            if number in held:
                pool.give_back(*held.pop(number))
        elif sizes[number]:
            size = -(-sizes[number] // _Pool.rounded) * _Pool.rounded
            wanted = pool.lacks(size)
            if room_bytes is not None and small.reserved_bytes + large.reserved_bytes + wanted > room_bytes:
                small.give_back_segments()
                large.give_back_segments()
                if small.reserved_bytes + large.reserved_bytes + wanted > room_bytes:
                    return None
            held[number] = pool.take(size)
            most_bytes = max(most_bytes, small.reserved_bytes + large.reserved_bytes)
    return most_bytes


# ---- what is said of a card, in at most 80 columns ----


class Most(NamedTuple):
    """The largest size that fits, rows or their length, with its use of the card."""

    size: int
    use: CardUse
    is_all: bool = False  # no larger one is possible
    accumulation: int = 0  # batches in a step


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """What is said of a card: each use is an interval, least and most bytes.

    Attributes:
        card_bytes: The card's memory.
        use: What the training takes.
        context: What of it is an estimate: what a context and libraries take beside tensors.
        most_rows: The largest batch that fits; None if there is none.
        tried_rows: Whether batches of other sizes could be planned, down to 1 where none fits.
        most_length: The greatest length that fits; the same.
        smaller: Where the training does not fit, the batches that do, with as many rows in a step.
        instead: Other ways to train the same batch.
    """

    card_bytes: int
    use: CardUse
    context: CardUse
    most_rows: Most | None
    tried_rows: bool
    most_length: Most | None
    smaller: Most | None
    instead: tuple[tuple[str, CardUse], ...]

    @property
    def fits(self) -> bool:
        """Whether it fits for certain."""
        return self.use.high_bytes <= self.card_bytes


def card_text(card: CardPlan, until_then: str = "") -> str:
    """Whether it fits and what would, then what is the most that does, and what else there is.

    Args:
        card: The same.
        until_then: Where the plan ends too early, until when that is so, as of `where_it_ends`.
    """
    lines = textwrap.wrap(f"{_verdict(card, until_then)} Computed, not measured.", 80, subsequent_indent="  ")
    lines.append(f"  of it estimated {_interval(card.context)}, the context and libraries' workspaces")
    for name, found, all_of in (
        ("largest batch", card.most_rows, "all rows of the data set"),
        ("largest length", card.most_length, "the model's configured length"),
    ):
        if found is not None:
            lines.append(f"  {name:<14}  {found.size:,}: {_interval(found.use)}{f', {all_of}' * found.is_all}")
            lines[-1] += ", of several in a step" * (card.smaller is not None and found is card.most_rows)
    if card.instead:
        lines.append("  the same batch with")
        width = max(len(name) for name, _ in card.instead)
        for name, use in card.instead:
            lines.append(f"    {name:<{width}}  {_interval(use)}{'' if card.fits else f', {_word(use, card)}'}")
    return "\n".join(lines)


def _verdict(card: CardPlan, until_then: str) -> str:
    of_card = f"{_interval(card.use)} of {format_bytes(card.card_bytes)}"
    if card.fits:
        return f"Fits{f', but {until_then}' if until_then else ': '}{of_card}."
    others = [name for name, use in card.instead if use.high_bytes <= card.card_bytes]
    if card.smaller is not None:
        others.insert(0, f"batch {card.smaller.size:,} with accumulation {card.smaller.accumulation}")
    elif card.most_rows is not None:  # in a loop of the script's own
        others.append(f"batch {card.most_rows.size:,}")
    nothing = f"nothing planned surely fits{', not even a batch of 1' * card.tried_rows}"
    others.append(nothing if card.tried_rows or card.instead else "no other batch or setting could be planned")
    return f"{_word(card.use, card).capitalize()}: {of_card}; {others[0]}{' fits' * (len(others) > 1)}."


def _word(use: CardUse, card: CardPlan) -> str:
    sure = "does not fit" if use.low_bytes > card.card_bytes else "may or may not fit"
    return sure if use.high_bytes > card.card_bytes else "fits"


def _interval(use: CardUse) -> str:
    return f"{format_bytes(use.low_bytes)} to {format_bytes(use.high_bytes)}"
