"""Out-of-memory errors as people met them (messages.yaml) or as libraries raise them here, and other errors."""

import errno
import pickle
import queue
import socket
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from torch._utils import ExceptionWrapper
from torch.distributed import DistBackendError
from torch.multiprocessing import ProcessExitedException
from torch.utils.data._utils.pin_memory import pin_memory

from forgather_mem.units import MIB
from tests.sizes import sized

_ERRORS: dict[str, type[Exception]] = {
    "MemoryError": MemoryError,
    "RuntimeError": RuntimeError,
    "OutOfMemoryError": torch.OutOfMemoryError,
    "DistBackendError": DistBackendError,
    "cupy.cuda.memory.OutOfMemoryError": type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"}),
    "pyarrow.lib.ArrowMemoryError": type("ArrowMemoryError", (MemoryError,), {"__module__": "pyarrow.lib"}),
}
ASYNCHRONOUS = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)


class OutOfMemoryCase(NamedTuple):
    """An error, and the fields of `OutOfMemory` that are read from it."""

    name: str
    source: str
    error: BaseException
    expected: dict[str, Any]


def raised(raise_it: Callable[[], object]) -> BaseException:
    """What this really raises, with its chain."""
    try:
        raise_it()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def _from_a_cause() -> None:
    try:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of ..."
        )
    except torch.OutOfMemoryError as error:
        raise ValueError("trial 7 failed") from error


def _while_handling() -> None:
    try:
        raise MemoryError
    except MemoryError:
        raise KeyError("best_params")  # noqa: B904


def _suppressed() -> None:
    try:
        raise MemoryError
    except MemoryError:
        raise KeyError("best_params") from None


def _in_a_group() -> None:
    tasks = [ValueError("a"), torch.OutOfMemoryError("HIP out of memory. Tried to allocate 3.31 GiB. GPU 0 has ...")]
    raise ExceptionGroup("unhandled errors in a TaskGroup", [ExceptionGroup("inner", tasks)])


def _from_a_worker() -> None:
    """As torch.utils.data raises again in the parent what a worker raised."""
    try:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)"
        )
    except RuntimeError:
        ExceptionWrapper(where="in DataLoader worker process 0").reraise()


class FailsToPin:
    """A batch whose page-locked copy can't be made: `cudaHostAlloc` returned cudaErrorMemoryAllocation."""

    def pin_memory(self) -> Any:
        raise getattr(torch, "AcceleratorError", RuntimeError)(f"CUDA error: out of memory{ASYNCHRONOUS}")


def _in_the_thread_that_pins() -> None:
    """Through torch's own functions: those of the thread, and the one that raises again in the loop."""
    try:
        pin_memory({"input_ids": FailsToPin()})
    except RuntimeError:
        ExceptionWrapper(where="in pin memory thread for device 0").reraise()


_WRITTEN = yaml.safe_load((Path(__file__).parent / "messages.yaml").read_text(encoding="utf-8"))


def _met(part: str) -> list[OutOfMemoryCase]:
    return [
        OutOfMemoryCase(
            row["name"], row["source"], _ERRORS[row.get("error", "RuntimeError")](row["words"]), sized(row["expected"])
        )
        for row in _WRITTEN[part]
    ]


def _here(name: str, error: BaseException, kind: str, **expected: Any) -> OutOfMemoryCase:
    return OutOfMemoryCase(name, "this Python, torch or numpy", error, {"kind": kind, **expected})


_KILLED = ProcessExitedException(
    "process 0 terminated with signal SIGKILL", 0, 4024, exit_code=-9, signal_name="SIGKILL"
)
OUT_OF_MEMORY = [
    *_met("torch"),
    _here(
        "MemoryError without words", raised(lambda: [0] * 2**62), "MemoryError",
        where="host", error_type="builtins.MemoryError", message="MemoryError",
    ),
    _here("numpy", raised(lambda: np.zeros(2**45)), "MemoryError", requested_bytes=2**48),
    # Met in jwyang/faster-rcnn.pytorch#550; mittagessen/kraken#642 and jacobgil/pytorch-pruning#16 are about pinning
    _here("ENOMEM from fork", OSError(errno.ENOMEM, "Cannot allocate memory"), "ENOMEM", where="host"),
    _here("killed process of torch.multiprocessing.spawn", _KILLED, "killed worker"),
    _here(
        "raised from another error", raised(_from_a_cause), "CUDA allocator",
        device=1, requested_bytes=20 * MIB, error_type="torch.OutOfMemoryError",
    ),
    _here("while it was being handled", raised(_while_handling), "MemoryError", where="host"),
    _here("in a group in a group", raised(_in_a_group), "HIP allocator"),
    _here("from a data worker", raised(_from_a_worker), "CPU allocator", requested_bytes=4294967296),
]  # fmt: skip
# Of libraries that allocate beside torch, and of memory that is not the device's after all
LIBRARY_MESSAGES = [
    *_met("libraries"),
    _here("the thread that pins batches", raised(_in_the_thread_that_pins), "pinned memory", where="host", device=None),
    _here(
        "a line that pins", raised(lambda: FailsToPin().pin_memory()), "pinned memory",
        where="host", message="CUDA error: out of memory",
    ),
]  # fmt: skip
OTHERS = [
    *map(RuntimeError, _WRITTEN["about_something_else"]),
    DistBackendError(
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.20.5\nLast error:\nCuda failure 1 'invalid argument'"
    ),
    ValueError("use a smaller batch: at 64 this ended with RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"),
    AssertionError("Torch not compiled with CUDA enabled"),
    KeyError("CUDA out of memory"),
    ImportError("libgomp.so.1: cannot allocate memory in static TLS block"),
    OSError(errno.ENOSPC, "No space left on device", "checkpoint-500/optimizer.pt"),
    OSError(errno.EMFILE, "Too many open files"),
    FileNotFoundError(errno.ENOENT, "No such file or directory", "train.json"),
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    RecursionError("maximum recursion depth exceeded"),
    OverflowError("cannot fit 'int' into an index-sized integer"),
    queue.Empty(),
    socket.gaierror(-2, "Name or service not known"),
    EOFError("Ran out of input"),
    pickle.UnpicklingError("pickle data was truncated"),
    zipfile.BadZipFile("File is not a zip file"),
    subprocess.CalledProcessError(1, ["ninja", "-v"]),
    KeyboardInterrupt(),
    ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("out of range"), OSError(2, "no such file")]),
    raised(_suppressed),  # whoever wrote `from None` says that the first one does not matter
]
