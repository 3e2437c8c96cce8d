"""Runs Python's garbage collector, and measures its yield and cost."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Mapping
from typing import ClassVar

from forgather_mem._lazy import dataclass
from forgather_mem.system.procfs import own_memory
from forgather_mem.telemetry.records import Moment, Sample


@dataclass(unsafe_hash=True)
class Collect:
    """Runs `gc.collect(generation)`.

    Returns the seconds it took, the number of objects found unreachable, and by how much the process's anonymous memory
    shrank (at least 0). Memory returned only to the C allocator, or to the device's, is not included.

    Args:
        generation: The oldest generation to collect. Below 2, cycles that have survived one collection are never freed:
            alone, that is a leak.

    Raises:
        ValueError: for a generation that does not exist.
    """

    books: ClassVar = "collect"
    generation: int = 2

    def __post_init__(self) -> None:
        check_generation("Collect", self.generation)

    def levels(self) -> tuple[float, float]:
        """When they grow `Adaptive` collects again: anonymous memory, and the blocks of Python's allocator."""
        return own_memory().anonymous_bytes, sys.getallocatedblocks()

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        return collect(self.generation)


def check_generation(owner: str, generation: int) -> None:
    """Refuse anything that is not a generation of the collector.

    Raises:
        ValueError: with the owner and the value.
    """
    if type(generation) is not int or generation not in (0, 1, 2):  # True equals 1, and gc.collect() rejects 1.0
        raise ValueError(f"{owner}(generation={generation!r}): the generations are 0, 1 and 2")


def collect(generation: int = 2) -> dict[str, float]:
    """Collect, and return the results under the names of `Collect`."""
    before = own_memory().anonymous_bytes
    began_s = time.perf_counter()
    num_objects = gc.collect(generation)
    took_s = time.perf_counter() - began_s
    return {
        "collect/time_s": took_s,
        "collect/freed_bytes": max(0, before - own_memory().anonymous_bytes),
        "collect/objects": num_objects,
    }
