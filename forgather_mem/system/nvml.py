"""Memory of other processes on our device, from NVML (installed by the nvml extra)."""

from __future__ import annotations

import functools
import os

from forgather_mem.errors import missing
from forgather_mem.system.allocator import Allocator


def other_processes_bytes(allocator: Allocator) -> int | None:
    """Bytes that processes other than this one hold on the device.

    None without the extra or without an NVIDIA device, or if NVML does not list this process under its own PID, as in a
    container with its own PID namespace: then ours can't be distinguished from theirs.
    """
    handle = _handle(allocator)
    if handle is None:
        return None
    import pynvml

    try:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return None
    used: dict[int, int | None] = {process.pid: process.usedGpuMemory for process in processes}
    if os.getpid() not in used:
        return None
    others = [size for pid, size in used.items() if pid != os.getpid()]
    return None if None in others else sum(size or 0 for size in others)  # None: the driver does not report it


@functools.cache
def _handle(allocator: Allocator) -> object:
    with missing(ImportError):
        import pynvml

        # Our device 0 need not be NVML's (CUDA_VISIBLE_DEVICES); the UUID is the same for both.
        uuid = allocator.device().uuid if allocator.kind == "cuda" else None
        with missing(pynvml.NVMLError):
            pynvml.nvmlInit()
            return None if uuid is None else pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return None
