# ruff: noqa: E501  # words of others stay as they were written
"""Out-of-memory errors as people met them.

Words are as posted in the thread named beside them (shortened where `...` stood or the advice began), or
raised by this machine's own libraries. `expected` are fields of `OutOfMemory`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed import DistBackendError
from torch.multiprocessing import ProcessExitedException

GIB, MIB, KIB = 2**30, 2**20, 2**10


class OutOfMemoryCase(NamedTuple):
    name: str
    source: str
    error: BaseException
    expected: dict[str, Any]


def _mib(number: float) -> int:
    return int(number * MIB)


def _gib(number: float) -> int:
    return int(number * GIB)


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


def _in_a_group() -> None:
    tasks = [ValueError("a"), torch.OutOfMemoryError("HIP out of memory. Tried to allocate 3.31 GiB. GPU 0 has ...")]
    raise ExceptionGroup("unhandled errors in a TaskGroup", [ExceptionGroup("inner", tasks)])


def _from_a_worker() -> None:
    """As torch.utils.data raises again in the parent what a worker raised."""
    from torch._utils import ExceptionWrapper

    try:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)"
        )
    except RuntimeError:
        ExceptionWrapper(where="in DataLoader worker process 0").reraise()


OUT_OF_MEMORY = [
    OutOfMemoryCase(
        "CUDA, now",
        "qingze-bai/VSmTrans#3",
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 226.00 MiB. GPU 0 has a total capacity of 15.70 GiB of which 210.38 MiB "
            "is free. Including non-PyTorch memory, this process has 15.48 GiB memory in use. Of the allocated memory "
            "14.81 GiB is allocated by PyTorch, and 336.73 MiB is reserved by PyTorch but unallocated. If reserved but ..."
        ),
        {
            "kind": "CUDA allocator",
            "where": "device",
            "device": 0,
            "requested_bytes": _mib(226),
            "free_bytes": _mib(210.38),
            "total_bytes": _gib(15.70),
            "process_bytes": _gib(15.48),
            "allocated_bytes": _gib(14.81),
            "reserved_unused_bytes": _mib(336.73),
        },
    ),
    OutOfMemoryCase(
        "CUDA, torch 1",
        "rshaojimmy/MADDoG#11",
        RuntimeError(
            "CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity; 8.77 GiB already allocated; "
            "19.75 MiB free; 13.71 GiB reserved in total by PyTorch)"
        ),
        {
            "kind": "CUDA allocator",
            "device": 0,
            "requested_bytes": _gib(2.87),
            "free_bytes": _mib(19.75),
            "total_bytes": _gib(14.76),
            "reserved_unused_bytes": _gib(13.71) - _gib(8.77),
        },
    ),
    OutOfMemoryCase(
        "CUDA, a capacty and a share",
        "wxian3/NeuroLens#2; ROCm/TheRock#2118 has the share",
        torch.OutOfMemoryError(
            "HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacty of 255.98 GiB of which 244.65 GiB is "
            "free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, with 17.00 MiB allocated "
            "in private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch but unallocated."
        ),
        {"kind": "HIP allocator", "total_bytes": _gib(255.98), "free_bytes": _gib(1.05) - _mib(1017.01) - _mib(54.99)},
    ),
    OutOfMemoryCase(
        "CUDA, cudaMallocAsync",
        "AIFSH/ComfyUI-ChatTTS#9",
        torch.OutOfMemoryError(
            "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 6.89 GiB\n"
            "Requested               : 320.00 MiB\nDevice limit            : 23.69 GiB\nFree (according to CUDA): 2.94 MiB\n"
            "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB"
        ),
        {
            "kind": "CUDA allocator",
            "requested_bytes": _mib(320),
            "free_bytes": _mib(2.94),
            "total_bytes": _gib(23.69),
            "device": 0,
        },
    ),
    OutOfMemoryCase(
        "HIP",
        "kyuz0/amd-strix-halo-image-video-toolboxes#3",
        torch.OutOfMemoryError(
            "HIP out of memory. Tried to allocate 3.31 GiB. GPU 0 has a total capacity of 128.00 GiB of which 780.24 MiB is "
            "free. Of the allocated memory 57.70 GiB is allocated by PyTorch, and 75.82 MiB is reserved by PyTorch but ..."
        ),
        {"kind": "HIP allocator", "where": "device", "requested_bytes": _gib(3.31), "free_bytes": _mib(780.24)},
    ),
    OutOfMemoryCase(
        "XPU",
        "intel/torch-xpu-ops#3011",
        torch.OutOfMemoryError(
            "XPU out of memory. Tried to allocate 4.66 GiB. GPU 0 has a total capacity of 5.65 GiB of which 5.65 GiB is "
            "free. Of the allocated memory 195.50 KiB is allocated by PyTorch, and 1.81 MiB is reserved by PyTorch but ..."
        ),
        {"kind": "XPU allocator", "requested_bytes": _gib(4.66), "allocated_bytes": int(195.5 * KIB)},
    ),
    OutOfMemoryCase(
        "XPU, driver",
        "intel/torch-xpu-ops#1598",
        RuntimeError("Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
        {"kind": "driver", "where": "device"},
    ),
    OutOfMemoryCase(
        "MPS",
        "Comfy-Org/ComfyUI#7440",
        RuntimeError(
            "MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 GiB). "
            "Tried to allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable ..."
        ),
        {
            "kind": "MPS allocator",
            "where": "device",
            "requested_bytes": _mib(292.5),
            "free_bytes": _gib(27.2) - _gib(9.57) - _gib(17.35),
            "total_bytes": _gib(27.2),
        },
    ),
    OutOfMemoryCase(
        "MPS, GB of 1024 and bytes",
        "pinokiocomputer/pinokio#941",
        RuntimeError(
            "MPS backend out of memory (MPS allocated: 16.00 GB, other allocations: 3.31 GB, max allowed: 18.13 GB). Tried "
            "to allocate 256 bytes on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit ..."
        ),
        {"requested_bytes": 256, "allocated_bytes": 16 * GIB, "free_bytes": 0},
    ),
    OutOfMemoryCase(
        "NPU",
        "xingchensong/TouchNet#100",
        RuntimeError(
            "NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity; 49.47 GiB already allocated; "
            "49.47 GiB current active; 1.32 GiB free; 57.55 GiB reserved in total by PyTorch) If reserved memory is >> ..."
        ),
        {"where": "device", "device": 3, "requested_bytes": _gib(5.03), "free_bytes": _gib(1.32)},
    ),
    OutOfMemoryCase(
        "HPU",
        "accelerate.utils.memory names it",
        RuntimeError("FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1073741824 (1024)MB"),
        {"kind": "HPU allocator", "requested_bytes": 1073741824},
    ),
    OutOfMemoryCase(
        "CUDA driver",
        "taohan10200/IIM#28",
        RuntimeError(
            "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call,so the "
            "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1."
        ),
        {"kind": "driver", "where": "device", "requested_bytes": None, "message": "CUDA error: out of memory"},
    ),
    OutOfMemoryCase(
        "CUDA driver, old",
        "rowanz/neural-motifs#58",
        RuntimeError("cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCTensorRandom.cu:25"),
        {"kind": "driver"},
    ),
    OutOfMemoryCase(
        "an extension's words for the driver's error",
        "junjie18/CMT#15",
        RuntimeError(
            "TensorStorage /io/include/tensorview/tensor.h 168\ncuda failed with error 2 out of memory. use ..."
        ),
        {"kind": "driver"},
    ),
    OutOfMemoryCase(
        "cuBLAS",
        "QwenLM/Qwen3#873",
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        {"kind": "cuBLAS", "where": "device"},
    ),
    OutOfMemoryCase(
        "cuDNN",
        "KupynOrest/DeblurGAN#128",
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        {"kind": "cuDNN", "where": "device"},
    ),
    OutOfMemoryCase(
        "NCCL",
        "pytorch/pytorch#152302, NVIDIA/nccl#1410 for the frame",
        DistBackendError(
            "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with "
            "NCCL_DEBUG=INFO for details), NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
            "Last error:\nCuda failure 2 'out of memory'"
        ),
        {"kind": "NCCL", "where": "device"},
    ),
    OutOfMemoryCase(
        "Triton",
        "wtdcode/vllm-backport#18",
        RuntimeError("Triton Error [CUDA]: out of memory"),
        {"kind": "Triton", "where": "device"},
    ),
    OutOfMemoryCase(
        "XLA",
        "google-deepmind/alphafold#1023",
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes."),
        {"kind": "XLA", "requested_bytes": 7406166528},
    ),
    OutOfMemoryCase(
        "CPU allocator",
        "mxfold/mxfold2#20",
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
            "132426121216 bytes. Error code 12 (Cannot allocate memory)"
        ),
        {"kind": "CPU allocator", "where": "host", "device": None, "requested_bytes": 132426121216},
    ),
    OutOfMemoryCase(
        "CPU allocator, Windows",
        "IvanoLauriola/MKLpy#27",
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 5077901088 bytes."),
        {"kind": "CPU allocator", "requested_bytes": 5077901088},
    ),
    OutOfMemoryCase(
        "CPU allocator, torch 1.1",
        "pytorch/pytorch#20618",
        RuntimeError("[enforce fail at CPUAllocator.cpp:56] posix_memalign(&data, gAlignment, nbytes) == 0. 12 vs 0"),
        {"kind": "CPU allocator", "requested_bytes": None},
    ),
    OutOfMemoryCase(
        "CPU allocator, torch 0.4",
        "pytorch/pytorch#5434",
        RuntimeError(
            "$ Torch: not enough memory: you tried to allocate 72GB. Buy new RAM! at ..\\aten\\src\\TH\\THGeneral.cpp:204"
        ),
        {"kind": "CPU allocator", "requested_bytes": 72 * GIB},
    ),
    OutOfMemoryCase(
        "MemoryError without words",
        "this Python: [0] * 2**62",
        raised(lambda: [0] * 2**62),
        {"kind": "MemoryError", "where": "host", "error_type": "builtins.MemoryError", "message": ""},
    ),
    OutOfMemoryCase(
        "numpy",
        "this numpy: zeros of 2**45 float64",
        raised(lambda: np.zeros(2**45)),
        {"kind": "MemoryError", "requested_bytes": 2**48},
    ),
    OutOfMemoryCase(
        "std::bad_alloc",
        "ZPdesu/Barbershop#48",
        RuntimeError("std::bad_alloc"),
        {"kind": "bad_alloc", "where": "host"},
    ),
    OutOfMemoryCase(
        "ENOMEM from fork",
        "jwyang/faster-rcnn.pytorch#550",
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        {"kind": "ENOMEM", "where": "host"},
    ),
    OutOfMemoryCase(
        "mmap of a checkpoint",
        "safetensors/safetensors#528",
        RuntimeError(
            "unable to mmap 23802932552 bytes from file <./flux1-dev.safetensors>: Cannot allocate memory (12)"
        ),
        {"kind": "ENOMEM", "requested_bytes": 23802932552},
    ),
    OutOfMemoryCase(
        "killed worker",
        "azavea/raster-vision#1071",
        RuntimeError("DataLoader worker (pid 4024) is killed by signal: Killed. "),
        {"kind": "killed worker", "where": "host"},
    ),
    OutOfMemoryCase(
        "killed process of torch.multiprocessing.spawn",
        "this torch",
        ProcessExitedException(
            "process 0 terminated with signal SIGKILL", 0, 4024, exit_code=-9, signal_name="SIGKILL"
        ),
        {"kind": "killed worker"},
    ),
    OutOfMemoryCase(
        "shared memory, bus error",
        "open-mmlab/mmsegmentation#1356",
        RuntimeError(
            "DataLoader worker (pid 7579) is killed by signal: Bus error. It is possible that dataloader's workers are out "
            "of shared memory. Please try to raise your shared memory limit."
        ),
        {"kind": "shared memory", "where": "host"},
    ),
    OutOfMemoryCase(
        "shared memory, no space",
        "idiap/ESLAM#20",
        RuntimeError("unable to write to file </torch_31911_952036340_6686>: No space left on device (28)"),
        {"kind": "shared memory", "where": "host"},
    ),
    OutOfMemoryCase(
        "CuPy",
        "cupy/cupy#2537",
        type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})(
            "Out of memory allocating 25,600,000 bytes (allocated so far: 3,635,267,072 bytes)."
        ),
        {"kind": "CuPy", "where": "device", "requested_bytes": 25_600_000},
    ),
    OutOfMemoryCase(
        "CuPy, until 6",
        "cupy/cupy#1912",
        type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})(
            "out of memory to allocate 1073741824 bytes (total 12373894656 bytes)"
        ),
        {"kind": "CuPy", "where": "device", "requested_bytes": 2**30},
    ),
    OutOfMemoryCase(
        "CUDA, until torch 1.3",
        "Tramac/awesome-semantic-segmentation-pytorch#188",
        RuntimeError(
            "CUDA out of memory. Tried to allocate 74.00 MiB (GPU 0; 1.96 GiB total capacity; 1.46 GiB already allocated; "
            "71.50 MiB free; 38.53 MiB cached)"
        ),
        {"kind": "CUDA allocator", "device": 0, "requested_bytes": 74 * MIB, "reserved_unused_bytes": _mib(38.53)},
    ),
    OutOfMemoryCase(
        "cuFFT", "pytorch/pytorch#6511", RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), {"kind": "CUDA library"}
    ),
    OutOfMemoryCase(
        "driver, from numba",
        "rapidsai/dask-cuda#225",
        RuntimeError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
        {"kind": "driver", "where": "device"},
    ),
    OutOfMemoryCase(
        "killed worker of joblib",
        "joblib/joblib#812",
        RuntimeError(
            "A worker process managed by the executor was unexpectedly terminated. This could be caused by a segmentation "
            "fault while calling the function or by an excessive memory usage causing the Operating System to kill the "
            "worker. The exit codes of the workers are {SIGKILL(-9)}"
        ),
        {"kind": "killed worker", "where": "host"},
    ),
    OutOfMemoryCase(
        "Arrow",
        "rom1504/img2dataset#443",
        type("ArrowMemoryError", (MemoryError,), {"__module__": "pyarrow.lib"})("realloc of size 2172846080 failed"),
        {"kind": "MemoryError", "where": "host", "requested_bytes": 2172846080},
    ),
    OutOfMemoryCase(
        "raised from another error",
        "this Python",
        raised(_from_a_cause),
        {"kind": "CUDA allocator", "device": 1, "requested_bytes": 20 * MIB, "error_type": "torch.OutOfMemoryError"},
    ),
    OutOfMemoryCase(
        "while it was being handled", "this Python", raised(_while_handling), {"kind": "MemoryError", "where": "host"}
    ),
    OutOfMemoryCase("in a group in a group", "this Python", raised(_in_a_group), {"kind": "HIP allocator"}),
    OutOfMemoryCase(
        "from a data worker",
        "this torch",
        raised(_from_a_worker),
        {"kind": "CPU allocator", "requested_bytes": 4294967296},
    ),
]
