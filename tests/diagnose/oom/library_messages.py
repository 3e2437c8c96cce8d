# ruff: noqa: E501  # words of others stay as they were written
"""Out-of-memory errors of libraries that allocate beside torch, and of memory that is not the device's after all.

As in `oom_messages.py`, words are as posted in the thread named beside them, or as the library's source prints them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.distributed import DistBackendError
from torch.utils.data._utils.pin_memory import pin_memory

from tests.diagnose.oom.oom_messages import GIB, MIB, OutOfMemoryCase, raised

ASYNCHRONOUS = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)


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


def _in_a_line_that_pins() -> None:
    FailsToPin().pin_memory()


LIBRARY_MESSAGES = [
    OutOfMemoryCase(
        "cuDNN 9, the device's",
        "a YOLO test report on GitHub; the status is 4004 of cuDNN 9",
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        {"kind": "cuDNN", "where": "device"},
    ),
    OutOfMemoryCase(
        "cuDNN 9, the host's",
        "status 4003 of cuDNN 9, in torch's words for a status",
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        {"kind": "cuDNN", "where": "host"},
    ),
    OutOfMemoryCase(
        "NCCL, /dev/shm",
        "pytorch/ci-infra#490, in the frame of hiyouga/LlamaFactory#7233",
        DistBackendError(
            "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error (run with "
            "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or "
            "external library call failed or device error. \nLast error:\nError while creating shared memory segment "
            "/dev/shm/nccl-WU88OE (size 9637888), error: No space left on device (28)"
        ),
        {"kind": "NCCL shared memory", "where": "host", "requested_bytes": 9637888},
    ),
    OutOfMemoryCase(
        "NCCL, /dev/shm could not grow",
        "pytorch/ci-infra#490",
        DistBackendError(
            "Last error:\nError: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)"
        ),
        {"kind": "NCCL shared memory", "requested_bytes": 9637892},
    ),
    OutOfMemoryCase(
        "NCCL, calloc",
        "deepspeedai/DeepSpeed#3827",
        RuntimeError(
            "NCCL error in: /opt/conda/conda-bld/pytorch_1670525541990/work/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1269, "
            "internal error, NCCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\n"
            "Failed to CUDA calloc async 1920 bytes"
        ),
        {"kind": "NCCL", "where": "device", "requested_bytes": 1920},
    ),
    OutOfMemoryCase(
        "NCCL, calloc, older",
        "NVIDIA/nccl#1235",
        DistBackendError("Last error:\nFailed to CUDA calloc 6291456 bytes"),
        {"kind": "NCCL", "where": "device", "requested_bytes": 6291456},
    ),
    OutOfMemoryCase(
        "NCCL, page-locked",
        "nccl/src/include/alloc.h",
        DistBackendError("Last error:\nFailed to CUDA host alloc 4194304 bytes"),
        {"kind": "pinned memory", "where": "host", "requested_bytes": 4194304},
    ),
    OutOfMemoryCase(
        "the thread that pins batches",
        "this torch; mittagessen/kraken#642 for the frame",
        raised(_in_the_thread_that_pins),
        {"kind": "pinned memory", "where": "host", "device": None},
    ),
    OutOfMemoryCase(
        "a line that pins",
        "this torch's class; jacobgil/pytorch-pruning#16 is such a one",
        raised(_in_a_line_that_pins),
        {"kind": "pinned memory", "where": "host", "message": "CUDA error: out of memory"},
    ),
    OutOfMemoryCase(
        "pinned memory, TensorFlow",
        "talmolab/sleap#2001",
        RuntimeError("failed to alloc 34359738368 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
        {"kind": "pinned memory", "where": "host", "requested_bytes": 34359738368},
    ),
    OutOfMemoryCase(
        "flash-attn's launch template",
        "hopper/cuda_check.h of flash-attention; its frame as in posts about xformers",
        RuntimeError(
            "CUDA error (/__w/xformers/xformers/third_party/flash-attention/hopper/flash_fwd_launch_template.h:180): out of memory"
        ),
        {"kind": "flash-attn", "where": "device"},
    ),
    OutOfMemoryCase(
        "in a container, where one's own process has another number",
        "a training log on GitHub (qwen2_5_vl)",
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.03 GiB. GPU 0 has a total capacity of 47.50 GiB of which 748.56 MiB is "
            "free. Process 137263 has 46.77 GiB memory in use. Of the allocated memory 45.13 GiB is allocated by PyTorch, and "
            "1.16 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting ..."
        ),
        {"process_bytes": int(46.77 * GIB), "allocated_bytes": int(45.13 * GIB)},
    ),
    OutOfMemoryCase(
        "two in a container: only one can hold what torch has allocated",
        "a note on vLLM on GitHub (Qwen2.5-32B GPTQ)",
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 270.00 MiB. GPU 0 has a total capacity of 21.67 GiB of which 255.75 MiB is "
            "free. Process 2109 has 344.00 MiB memory in use. Process 1448259 has 21.07 GiB memory in use. Of the allocated "
            "memory 20.08 GiB is allocated by PyTorch, with 328.00 MiB allocated in private pools (e.g., CUDA Graphs), and "
            "56.49 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting ..."
        ),
        {"process_bytes": int(21.07 * GIB), "private_pools_bytes": 328 * MIB},
    ),
    OutOfMemoryCase(
        "a neighbour's number beside one's own",
        "awslabs/keys_values#92",
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 572.00 MiB. GPU 0 has a total capacity of 39.49 GiB of which 321.31 MiB is "
            "free. Process 3721648 has 414.00 MiB memory in use. Including non-PyTorch memory, this process has 37.46 GiB "
            "memory in use. Process 1374765 has 414.00 MiB memory in use. Of the allocated memory 36.04 GiB is allocated by "
            "PyTorch, and 321.37 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large ..."
        ),
        {"process_bytes": int(37.46 * GIB)},
    ),
    OutOfMemoryCase(
        "a neighbour's number alone",
        "a replication log on GitHub (Nougat)",
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of 79.25 GiB of which 55.38 MiB is "
            "free. Process 762263 has 17.69 GiB memory in use. Of the allocated memory 60.80 GiB is allocated by PyTorch, and "
            "12.00 MiB is reserved by PyTorch but unallocated."
        ),
        {"process_bytes": None},
    ),
    OutOfMemoryCase(
        "private pools",
        "a notebook on GitHub (Cassava leaf disease)",
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 47.53 GiB of which 896.00 KiB is "
            "free. Process 1686436 has 47.51 GiB memory in use. Of the allocated memory 47.00 GiB is allocated by PyTorch, "
            "with 46.22 GiB allocated in private pools (e.g., CUDA Graphs), and 149.10 MiB is reserved by PyTorch but ..."
        ),
        {"private_pools_bytes": int(46.22 * GIB), "process_bytes": int(47.51 * GIB)},
    ),
]
