"""What does a collection by Python's collector bring, and what does it cost?"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping

from forgather_mem.probes.procfs import own_memory
from forgather_mem.sample import Moment, Sample


class Collect:
    """Runs `gc.collect(generation)`.

    Gives the seconds it took, the objects it found unreachable, and by how much the process's anonymous
    memory shrank (floor 0). Memory that goes back to the C allocator only, or to the device's, does not show.

    Args:
        generation: The oldest generation to collect. Below 2, cycles that have survived one collection are
            never freed: on its own that is a leak.

    Raises:
        ValueError: for a generation that does not exist.
    """

    books = "collect"
    names = ("collect/",)

    def __init__(self, generation: int = 2) -> None:
        check_generation("Collect", generation)
        self.generation = generation

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        return collect(self.generation)


def check_generation(owner: str, generation: int) -> None:
    """Refuses what is no generation of the collector.

    Raises:
        ValueError: naming the owner and the value.
    """
    if type(generation) is not int or generation not in (0, 1, 2):  # True is 1, and gc.collect() takes no 1.0
        raise ValueError(f"{owner}(generation={generation!r}): the generations are 0, 1 and 2")


def collect(generation: int = 2) -> dict[str, float]:
    """Collects, and says what came of it under the names of `Collect`."""
    before = own_memory().anonymous_bytes
    began_s = time.perf_counter()
    num_objects = gc.collect(generation)
    took_s = time.perf_counter() - began_s
    return {
        "collect/time_s": took_s,
        "collect/freed_bytes": max(0, before - own_memory().anonymous_bytes),
        "collect/objects": num_objects,
    }
