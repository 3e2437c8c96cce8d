"""The messages with which libraries report that memory ran out, and where the numbers are in them.

Everything known is in these tables: a new form of message is a new row. Every row is tested with messages that people
posted (tests/diagnose/oom/messages.yaml), or with one that is about something else. A pattern is compiled when an error
is looked at: most trainings have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import Literal

Where = Literal["host", "device"]
RoomIn = Literal["device", "/dev/shm"]


@dataclass(frozen=True, slots=True)
class MessageShape:
    """One form of message.

    Attributes:
        kind: The source of the message.
        where: Which memory ran out; None where the library works on both: an accelerator's, if one is in use.
        pattern: Searched for anywhere in the message, by lines; the first matching row counts.
        only_when_full: The message has other causes too: it counts only if the device is full.
        unless_room_in: The message has other causes too, but this one is by far the most frequent: it counts unless
            there is room, on the device or in /dev/shm.
    """

    kind: str
    where: Where | None
    pattern: str
    only_when_full: bool = False
    unless_room_in: RoomIn | None = None


# Kinds that other modules name: page-locked host memory, and the two users of /dev/shm.
PINNED = "pinned memory"
NCCL_SHM = "NCCL shared memory"
SHM_KINDS = frozenset({NCCL_SHM, "shared memory"})
# How the kinds of torch's own allocators end; all others allocate beside its cache and can't use what it keeps.
OF_TORCH = " allocator"


# A quoted error (in a worker's traceback, in a wrapper) begins a line, after the name of the error's type.
_START = r"^(?:[\w.\[\]() ]*: )?"

_ROWS = (
    # ---- allocators of torch ----
    ("CUDA allocator", "device", _START + r"CUDA out of memory\."),
    ("HIP allocator", "device", _START + r"HIP out of memory\."),
    ("XPU allocator", "device", _START + r"XPU out of memory\."),
    ("MPS allocator", "device", _START + r"MPS backend out of memory"),
    ("device allocator", "device", _START + r"(?:NPU|MUSA|MLU|SDAA|MTIA|GCU) out of memory\."),
    ("HPU allocator", "device", r"MODULE:PT_DEVMEM Allocation failed"),
    ("CUDA allocator", "device", _START + r"Allocation on device\b.*\n?.*(?:out of|exceed allowed) memory"),
    ("CPU allocator", "host", r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"),
    # ---- the host's, in words about a device ----
    # The thread calls the driver for nothing but page-locked memory
    (PINNED, "host", r"in pin memory thread for device[\s\S]*\b(?:CUDA|HIP) error: out of memory"),
    (PINNED, "host", r"Failed to CUDA host alloc \d+ bytes"),
    (PINNED, "host", r"failed to alloc \d+ bytes on host: CUDA_ERROR_OUT_OF_MEMORY"),
    ("cuDNN", "host", r"\b(?:CU|HIP)DNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED\b"),
    (NCCL_SHM, "host", r"/dev/shm/nccl-\S+ .*No space left on device"),
    (NCCL_SHM, "host", r"Error while creating shared memory segment \S*nccl-\S+ \(size \d+\)\s*$", False, "/dev/shm"),
    # ---- libraries on a device ----
    ("Triton", "device", r"Triton Error \[\w+\]: out of memory"),
    ("NCCL", "device", r"(?:Cuda|HIP) failure (?:\d+ )?'(?:out of memory|hipErrorOutOfMemory)'"),
    ("NCCL", "device", r"Failed to CUDA (?:calloc(?: async)?|malloc) \d+ bytes", False, "device"),
    ("cuBLAS", "device", r"\b(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED\b"),
    ("cuDNN", "device", r"DNN_STATUS_(?:INTERNAL_ERROR_DEVICE_ALLOCATION|ALLOC)_FAILED|\bmiopenStatusAllocFailed\b"),
    ("flash-attn", "device", r"\bCUDA error \(\S*flash_\w+\.(?:h|cu|cuh):\d+\): out of memory"),
    ("CUDA library", "device", r"\b(?:CUSOLVER_STATUS|CUSPARSE_STATUS|CUFFT|CURAND_STATUS)_ALLOC\w*_FAILED\b"),
    ("XLA", None, r"RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory|Ran out of|Attempting to (?:reserve|allocate))"),
    ("CuPy", "device", _START + r"Out of memory allocating [\d,]+ bytes \(allocated so far"),
    ("ONNX Runtime", None, r"allocate memory for requested buffer of size \d|smaller than requested bytes of \d"),
    # ---- drivers ----
    ("driver", "device", r"\b(?:CUDA|HIP)(?: runtime| driver)? error(?: \([^ )]+\))?\s?: out of memory"),
    ("driver", "device", r"\bcuda (?:runtime error \(2\) :|failed with error 2) out of memory"),
    ("driver", "device", r"\b(?:CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation: out|hipErrorOutOfMemory)\b"),
    ("driver", "device", r"\b(?:UR|PI)_(?:RESULT_)?ERROR_OUT_OF_(?:DEVICE_MEMORY|HOST_MEMORY|RESOURCES)\b"),
    # ---- the host ----
    ("bad_alloc", "host", _START + r"(?:std::bad_alloc|bad allocation)\s*$"),
    ("shared memory", "host", r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Bus error"),
    ("shared memory", "host", r"unable to (?:write|resize|allocate shared).* file </torch_\w+>.*\((?:12|28)\)"),
    ("killed worker", "host", r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed"),
    ("killed worker", "host", r"exit codes of the workers are \{.*SIGKILL\(-9\)"),
    ("killed worker", "host", r"^process \d+ terminated with signal SIGKILL$"),
    ("ENOMEM", "host", r"unable to mmap \d+ bytes from file .*Cannot allocate memory"),
    ("ENOMEM", "host", r"\[Errno 12\] Cannot allocate memory|\(os error 12\)|\bcode: 12, kind: OutOfMemory\b"),
    ("MemoryError", "host", r"^(?:[\w.]*\.)?_?(?:Array|Arrow)?MemoryError(?:: |\s*$)"),
    # ---- also caused by a full device ----
    ("cuBLAS", "device", r"\b(?:CU|HIP)BLAS_STATUS_NOT_INITIALIZED\b", True),
    ("cuDNN", "device", r"\bCUDNN_STATUS_(?:NOT_\w+ED|INTERNAL_ERROR)\b", True),
    ("cuDNN", "device", r"unable to find an engine to execute this computation", True),
    ("NCCL", "device", r"NCCL error .*unhandled cuda error", True),
)
SHAPES = tuple(starmap(MessageShape, _ROWS))

# By type, where there is one: the name of a class among the error's bases.
TYPES: dict[str, tuple[str, Where | None]] = {
    "torch.OutOfMemoryError": ("device allocator", "device"),
    "cupy.cuda.memory.OutOfMemoryError": ("CuPy", "device"),
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError": ("TensorFlow", None),
    "builtins.MemoryError": ("MemoryError", "host"),
}

# Errors of these types concern the program, whatever they quote; their causes are still examined.
NEVER = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError,
    ValueError, Warning,
)  # fmt: skip

# Of every number, whether its library writes "1.5 MiB" or plain bytes: then without a unit.
_SIZE = r"(\d[\d.,]*)(?: ?(bytes|(?:[kKMGT]i?)?B))?"


# Field of `OutOfMemory` to the patterns of its number.
NUMBERS = {
    "requested_bytes": (
        rf"(?:[Tt]ried|while trying) to allocate {_SIZE}",
        rf"Unable to allocate {_SIZE} for an array",
        rf"unable to mmap {_SIZE}",
        rf"(?:Requested\s*:|requested (?:buffer of size|bytes of)) {_SIZE}",
        rf"Out of memory allocating {_SIZE}",
        rf"PT_DEVMEM Allocation failed for size::{_SIZE}",
        rf"(?:m|re)alloc of size {_SIZE}",
        rf"shared memory segment \S+ \(size {_SIZE}\)",
        rf"failed to extend \S+ to {_SIZE}",
        rf"Failed to CUDA (?:calloc(?: async)?|malloc|host alloc) {_SIZE}",
        rf"failed to alloc {_SIZE} on host",
    ),
    "free_bytes": (rf"of (?:which )?{_SIZE} is (?:free|smaller)", rf"{_SIZE} free;", rf"to CUDA\): {_SIZE}"),
    "total_bytes": (
        rf"total capaci?ty of {_SIZE}",
        rf"{_SIZE} total capacity",
        rf"(?:Device limit\s*|max allowed): {_SIZE}",
    ),
    "allowed_bytes": (rf"{_SIZE} allowed;",),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
    "private_pools_bytes": (rf"with {_SIZE} allocated in private pools",),
    "allocated_bytes": (
        rf"allocated memory {_SIZE} is allocated by PyTorch",
        rf"{_SIZE} already allocated",
        rf"Currently allocated\s*: {_SIZE}",
        rf"MPS allocated: {_SIZE}",
    ),
    "other_bytes": (rf"other allocations: {_SIZE}",),
    "reserved_bytes": (rf"{_SIZE} reserved in total by PyTorch",),
    "reserved_unused_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
}
# A process by its number on the machine. In a container one's own has another one there, so it isn't "this process".
PROCESSES = rf"Process \d+ has {_SIZE} memory in use"
DEVICE = r"\bGPU (\d+)|\((?:NPU|MUSA|MLU|SDAA) (\d+);|Allocation on device (\d+)"
