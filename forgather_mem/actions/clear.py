"""What does giving the device allocator's unused memory back bring, and what does it cost?"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping

from forgather_mem.probes.allocator import current_allocator, gauge
from forgather_mem.sample import Moment, Sample


class ClearCache:
    """Empties the cache of the device's allocator (CUDA, ROCm, XPU, MPS, ...).

    Gives the seconds it took and the reserved bytes it gave back to the driver. Memory of live tensors stays.
    What it costs shows mostly in the next steps, which allocate anew. Without an accelerator, and before the
    training has used it, nothing is done and nothing given.

    Args:
        garbage_collection: Collect Python's garbage first, so that tensors in dropped cycles are given back
            too; its time is part of the time given. This happens also without an accelerator.
    """

    books = "clear"
    names = ("cache/freed_bytes", "cache/time_s")

    def __init__(self, garbage_collection: bool = False) -> None:
        self.garbage_collection = garbage_collection

    @property
    def available(self) -> bool:
        """Whether there is an accelerator in use whose cache can be cleared."""
        return current_allocator() is not None

    def unused_bytes(self) -> float | None:
        """What the allocator holds beyond live tensors, whether or not a clear would free it; None without one."""
        allocator = current_allocator()
        if allocator is None:
            return None
        stats = allocator.stats()
        reserved, allocated = gauge(stats, "reserved_bytes"), gauge(stats, "allocated_bytes")
        return None if reserved is None or allocated is None else float(reserved - allocated)

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        return clear_cache(garbage_collection=self.garbage_collection)


def clear_cache(*, garbage_collection: bool = False) -> dict[str, float]:
    """Clears the cache, and says what came of it under the names of `ClearCache`."""
    began_s = time.perf_counter()
    if garbage_collection:
        gc.collect()
    allocator = current_allocator()
    if allocator is None:
        return {}
    before = gauge(allocator.stats(), "reserved_bytes")
    allocator.empty_cache()
    after = gauge(allocator.stats(), "reserved_bytes")
    values = {"cache/time_s": time.perf_counter() - began_s}
    if before is not None and after is not None:
        values["cache/freed_bytes"] = float(max(0, before - after))
    return values
