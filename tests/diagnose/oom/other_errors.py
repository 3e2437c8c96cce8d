# ruff: noqa: E501  # words of others stay as they were written
"""Errors that are about something else, many of them easily taken for out of memory."""

from __future__ import annotations

import errno
import pickle
import queue
import socket
import subprocess
import zipfile
from collections.abc import Iterator

from torch.distributed import DistBackendError

from tests.diagnose.oom.oom_messages import raised


def _suppressed() -> None:
    try:
        raise MemoryError
    except MemoryError:
        raise KeyError("best_params") from None


def _others() -> Iterator[BaseException]:
    yield RuntimeError(
        "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported ..."
    )
    yield RuntimeError("CUDA error: an illegal memory access was encountered")
    yield RuntimeError("CUDA error: no kernel image is available for execution on the device")
    yield RuntimeError("CUDA error: invalid device ordinal")
    yield RuntimeError("CUDA driver error: invalid argument")
    yield RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`")
    yield RuntimeError(
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    )  # no device here
    yield RuntimeError(
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input."
    )
    yield RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM")
    yield RuntimeError("GET was unable to find an engine to execute this computation")
    yield RuntimeError("Triton Error [CUDA]: device kernel image is invalid")
    yield RuntimeError(
        "out of resource: shared memory, Required: 98304, Hardware limit: 65536. Reducing block sizes ..."
    )
    yield RuntimeError("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)")
    yield DistBackendError(
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with NCCL_DEBUG=INFO "
        "for details), NCCL version 2.20.5\nLast error:\nCuda failure 1 'invalid argument'"
    )
    yield RuntimeError("No executable batch size found, reached zero.")  # accelerate: it has given up
    yield RuntimeError("DataLoader worker (pid 321) is killed by signal: Segmentation fault. ")
    yield RuntimeError("DataLoader worker (pid 23616) is killed by signal: Terminated. ")
    yield RuntimeError("DataLoader worker (pid(s) 3216) exited unexpectedly")
    yield RuntimeError("can't start new thread")
    yield RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)")
    yield RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")
    yield RuntimeError("Trying to backward through the graph a second time ...")
    yield RuntimeError("[enforce fail at inline_container.cc:337] . unexpected pos 64 vs 0")
    yield RuntimeError("unable to open shared memory object </torch_2276740_2849291446> in read-write mode")
    yield RuntimeError("PytorchStreamReader failed reading zip archive: failed finding central directory")
    yield RuntimeError("Cannot access accelerator device when none is available.")
    yield ValueError(
        "use a smaller batch: at 64 this ended with RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"
    )
    yield AssertionError("Torch not compiled with CUDA enabled")
    yield KeyError("CUDA out of memory")
    yield ImportError("libgomp.so.1: cannot allocate memory in static TLS block")
    yield OSError(errno.ENOSPC, "No space left on device", "checkpoint-500/optimizer.pt")
    yield OSError(errno.EMFILE, "Too many open files")
    yield FileNotFoundError(errno.ENOENT, "No such file or directory", "train.json")
    yield ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    yield RecursionError("maximum recursion depth exceeded")
    yield OverflowError("cannot fit 'int' into an index-sized integer")
    yield queue.Empty()
    yield socket.gaierror(-2, "Name or service not known")
    yield EOFError("Ran out of input")
    yield pickle.UnpicklingError("pickle data was truncated")
    yield zipfile.BadZipFile("File is not a zip file")
    yield subprocess.CalledProcessError(1, ["ninja", "-v"])
    yield KeyboardInterrupt()
    yield ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("out of range"), OSError(2, "no such file")])
    yield raised(_suppressed)  # `from None`: whoever wrote it says that the first one does not matter


OTHERS = list(_others())
