"""What tensors take of the host's memory with the gaps between them: the C library itself is asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from forgather_mem.planning.isolation.child import in_a_child
from forgather_mem.planning.storage_log import Trace
from forgather_mem.system.procfs import own_memory
from forgather_mem.units import MIB

# Of all batches the largest, as the first and at the end: what lies between was made by others. Gaps grow until then.
# Set on two trainings of our own: a GPT-2 with equal batches took up to 752 MiB for 566, tried so 694 to 715.
_OF_SEVERAL = 1.0, 0.5, 0.8, 0.3, 0.7, 1.0, 0.4, 0.9, 0.2, 0.6, 1.0, 0.35, 0.75, 0.55, 1.0
_OF_ONE_SIZE = 1.0, 1.0, 1.0, 1.0
_MAPPED_BYTES = 32 * MIB  # DEFAULT_MMAP_THRESHOLD_MAX of malloc.c
_LEAST_FRAC = 1000  # of the largest; a smaller one asks for no new memory that counts


class Taken(NamedTuple):
    """Once a storage is made.

    Attributes:
        size: Its bytes.
        before_bytes: Of all tensors there were then.
        had_bytes: What the process had taken of the system for those.
        bytes: The same with it.
        mapped_bytes: Of these what is mapped by itself, so that there are no gaps, however large the others are.
        is_refused: Whether a limit of this process, which nobody could raise, leaves no addresses for it.
    """

    size: int
    before_bytes: int
    had_bytes: int
    bytes: int
    mapped_bytes: int
    is_refused: bool = False


def taken_of_host(trace: Trace, *, of_several_sizes: bool) -> list[list[Taken]]:
    """For each of several rounds what the larger storages come to, made in a child as the training would make them.

    Nothing is written into them, so that they take no memory. They end with the first that is refused.

    Args:
        trace: Of two steps.
        of_several_sizes: Whether batches differ: then those between the first and the last are smaller.
    """
    return in_a_child(lambda: list(_rounds(trace, _OF_SEVERAL if of_several_sizes else _OF_ONE_SIZE)))


def _rounds(trace: Trace, scales: Sequence[float]) -> list[list[Taken]]:
    held: dict[int, torch.Tensor] = {}
    goes = {~event for event in trace.events if event < 0}
    # Gradients, and what an optimizer works with, are as large as weights, whatever the batch
    fixed = {size for number, size in enumerate(trace.sizes) if number not in goes}
    least, began = max(trace.sizes, default=0) // _LEAST_FRAC, own_memory().address_bytes
    found: list[list[Taken]] = [[] for _ in scales]
    total = mapped = 0
    for scale, taken in zip(scales, found, strict=True):
        for event in trace.events:
            number = event if event >= 0 else ~event
            if event < 0:
                size = held.pop(number).nbytes if number in held else 0
                total -= size
                mapped -= size if size >= _MAPPED_BYTES else 0
            elif number not in held:
                size = trace.sizes[number]
                size = size if size in fixed else int(size * scale)
                counts = size > least
                had = own_memory().address_bytes - began if counts else 0
                mapped += size if size >= _MAPPED_BYTES else 0
                try:
                    held[number] = torch.empty(size, dtype=torch.uint8)
                except RuntimeError:
                    taken.append(Taken(size, total, had, had + size, mapped, is_refused=True))
                    return found
                if counts:
                    taken.append(Taken(size, total, had, own_memory().address_bytes - began, mapped))
                total += size
    return found
