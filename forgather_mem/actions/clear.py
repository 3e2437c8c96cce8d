"""Gives the device allocator's unused memory back to the driver."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from forgather_mem.system.allocator import current_allocator, gauge_now, reserved_bytes
from forgather_mem.telemetry.records import Moment, Sample


@dataclass(unsafe_hash=True)
class ClearCache:
    """Empties the cache of the device's allocator (CUDA, ROCm, XPU, MPS, ...).

    Returns the seconds it took and the reserved bytes returned to the driver, on all devices of this process. Memory of
    live tensors stays. A clear waits for the kernels that are queued, so its seconds hold the training's own work, too.
    Its cost shows mostly in the next steps, which have to reallocate. Without an accelerator, and before the training
    has used it, nothing is done or returned.

    Args:
        garbage_collection: Collect Python's garbage first, so that tensors in dropped cycles are freed too; its time is
            included. This also happens without an accelerator.
    """

    books: ClassVar = "clear"
    garbage_collection: bool = False

    def levels(self) -> tuple[float]:
        """What decides when `Adaptive` clears again: memory that the allocator holds beyond live tensors, clearable or
        not; 0 without a device."""
        reserved, allocated = gauge_now("reserved_bytes"), gauge_now("allocated_bytes")
        return (0.0 if reserved is None or allocated is None else float(reserved - allocated),)

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        return clear_cache(garbage_collection=self.garbage_collection)


def clear_cache(*, garbage_collection: bool = False) -> dict[str, float]:
    """Clear the cache, and return the results under the names of `ClearCache`."""
    began_s = time.perf_counter()
    if garbage_collection:
        gc.collect()
    before, allocator = reserved_bytes(), current_allocator()  # in this order: the first question may fail
    if allocator is None:
        return {}
    allocator.empty_cache()
    after = reserved_bytes()
    values = {"cache/time_s": time.perf_counter() - began_s}
    if before is not None and after is not None:
        values["cache/freed_bytes"] = float(max(0, before - after))
    return values
