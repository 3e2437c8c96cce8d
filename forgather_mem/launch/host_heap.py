"""What tensors take of the host's memory with the gaps between them: the C library itself is asked for them."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence

import torch

from forgather_mem.planning.isolation.child import in_a_child
from forgather_mem.planning.storage_log import StorageRequest, Trace
from forgather_mem.system.procfs import own_memory

# Of all batches the largest, as the first and at the end: what lies between was made by others. Gaps grow until then.
# Set on two trainings of our own.
_OF_SEVERAL = 1.0, 0.5, 0.8, 0.3, 0.7, 1.0, 0.4, 0.9, 0.2, 0.6, 1.0, 0.35, 0.75, 0.55, 1.0
_OF_ONE_SIZE = 1.0, 1.0, 1.0, 1.0
# With each tensor of which autograd keeps a graph a small object is made, its node. It lies in the bytes that alignment
# has left, and what is freed around it can't be joined. Set on a Llama with bfloat16, without, with checkpointing, with
# shorter rows, with half a batch: of 892 to 1,576 MiB of the system they come within 6 %, without them within 55 %.
# What a backward pass computes again has them only until its tensors go.
_SMALL_BYTES = 24, 224
_LEAST_FRAC = 1000  # of the largest; a smaller one asks for no new memory that counts, as results that are kept


def taken_of_host(trace: Trace, *, of_several_sizes: bool) -> list[list[StorageRequest]]:
    """For each of several rounds what the larger storages come to, made in a child as the training would make them.

    Nothing is written into them, so that they take no memory. They end with the first that is refused.

    Args:
        trace: Of two steps.
        of_several_sizes: Whether batches differ: then those between the first and the last are smaller.
    """
    return in_a_child(lambda: list(_rounds(trace, _OF_SEVERAL if of_several_sizes else _OF_ONE_SIZE)))


def _rounds(trace: Trace, scales: Sequence[float]) -> list[list[StorageRequest]]:
    held: dict[int, torch.Tensor] = {}
    goes = {~event for event in trace.events if event < 0}
    # Gradients, and what an optimizer works with, are as large as weights, whatever the batch
    fixed = {trace.sizes[event] for event in trace.events if event >= 0 and event not in goes}
    least, began, total = trace.largest_bytes() // _LEAST_FRAC, own_memory().address_bytes, 0
    library, small, again, chance = ctypes.CDLL(None), dict[int, int](), dict[int, int](), random.Random(0)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    found: list[list[StorageRequest]] = [[] for _ in scales]
    for scale, taken in zip(scales, found, strict=True):
        for stretch, events in trace.by_stretch():
            while small and stretch.phase != "backward":  # after which no graph is left
                library.free(small.popitem()[1])
            for event in events:
                number = event if event >= 0 else ~event
                if event < 0:
                    library.free(again.pop(number, None))
                    total -= held.pop(number).nbytes if number in held else 0
                elif number not in held and (trace.sizes[number] > least or stretch.phase != "evaluate"):
                    size = trace.sizes[number] if trace.sizes[number] in fixed else int(trace.sizes[number] * scale)
                    try:
                        held[number] = torch.empty(size, dtype=torch.uint8)
                    except RuntimeError:
                        taken.append(StorageRequest(*stretch[1:3], size, total, total + size, is_refused=True))
                        return found
                    if number not in trace.without_graph:
                        nodes = again if stretch.phase == "backward" else small
                        nodes[number] = library.malloc(chance.randint(*_SMALL_BYTES))
                    if size > least:
                        taken.append(StorageRequest(*stretch[1:3], size, total, own_memory().address_bytes - began))
                    total += size
    return found
