"""A function that really runs out of memory, in a process of its own: `python -m tests.reclaim.retry_child CASES`.

CASES is a JSON list of: helper ("ours" or "accelerate"), limit ("AS" or "DATA"), limit_mib (room for the
function), mib_per_row, starting_batch_size, raises ("torch", "numpy", "python"). Prints a line of JSON for each:
the batch sizes tried, how many objects of failed calls were alive when each try began, and what came out.
"""

import gc
import json
import resource
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import find_executable_batch_size

from forgather_mem.reclaim.retry import retry_on_oom
from forgather_mem.units import MIB

PARTS = 8  # allocations of one call: like the layers of a forward pass


LIMITS = {"AS": resource.RLIMIT_AS, "DATA": resource.RLIMIT_DATA}


class Layer:
    """Something a failed call leaves behind, watched."""


def limit_memory(kind: str, room_mib: int) -> None:
    if kind == "AS":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    else:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
        used = int(line.split()[1]) * 1024
    resource.setrlimit(LIMITS[kind], (used + room_mib * MIB, resource.RLIM_INFINITY))


def allocate(what: str, num_bytes: int) -> Any:
    if what == "torch":
        return torch.zeros(num_bytes, dtype=torch.uint8)
    return np.ones(num_bytes, dtype=np.uint8) if what == "numpy" else bytearray(num_bytes)


def run(case: dict[str, Any]) -> dict[str, Any]:
    tried: list[int] = []
    alive: list[int] = []
    watched: list[weakref.ref[Layer]] = []

    def layer(number: int, batch_size: int) -> Any:
        activation = Layer()
        watched.append(weakref.ref(activation))
        activation.data = allocate(case["raises"], int(batch_size * case["mib_per_row"] * MIB / PARTS))  # type: ignore[attr-defined]
        return activation

    def train(batch_size: int, note: str) -> str:
        alive.append(sum(ref() is not None for ref in watched))
        tried.append(batch_size)
        activations: list[Any] = []
        problem: Exception | None = None
        try:
            for number in range(PARTS):
                activations.append(layer(number, batch_size))
        except (RuntimeError, MemoryError) as error:
            problem = error  # many loops keep it for a log line or a finally: a cycle through this very frame
            raise
        assert problem is None
        return f"{note} {batch_size}"

    helper = {
        "ours": retry_on_oom(starting_batch_size=case["starting_batch_size"]),
        "accelerate": find_executable_batch_size(starting_batch_size=case["starting_batch_size"]),
    }[case["helper"]]
    gc.collect()
    gc.disable()  # only what a helper does frees cycles
    limit_memory(case["limit"], case["limit_mib"])
    try:
        result = helper(train)("fits with")
    except (RuntimeError, MemoryError) as error:
        result = f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', []))}"
    finally:
        resource.setrlimit(LIMITS[case["limit"]], (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return {"tried": tried, "alive": alive, "result": result}


if __name__ == "__main__":
    gc.freeze()  # the helpers collect after each failed try; what was imported is not what they are to free
    for case in json.loads(sys.argv[1]):
        print(json.dumps(run(case)))
