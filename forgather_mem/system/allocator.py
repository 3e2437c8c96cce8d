"""The accelerator's allocator, read in one call without waking an idle device.

All torch calls that differ between accelerators and torch versions are in this file. Nothing here initialises a device:
before the user's script has done so there is no allocator, and functions return None; nor after a question has failed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from types import ModuleType
from typing import Any, TypeVar

from forgather_mem.errors import missing, ours

logger = logging.getLogger(__name__)

R = TypeVar("R")
Nested = Mapping[str, Any]  # {"allocated_bytes": {"all": {"current": 0, "peak": 0, ...}, ...}, "num_ooms": 0}

# Modules that may have an `empty_cache`, besides that of the accelerator in use.
_WITH_A_CACHE = (
    "torch.cuda", "torch.cuda.memory", "torch.xpu", "torch.xpu.memory", "torch.mps", "torch.accelerator",
    "torch.accelerator.memory", "torch.npu", "torch.mlu", "torch.musa",
)  # fmt: skip

# Here the statistics of a device that was never used can be read, and don't create a context on it.
_ANSWERS_FOR_UNUSED = ("cuda", "xpu")
# An error after which a device gives no other answer; older torch has no type for it.
_LOST = re.compile(r"[A-Z]+ error: (?!out of memory)(?!.*not (supported|permitted)$).*|.*DEVICE_LOST.*")


class _Questions:
    """Asks the device until it has failed: from then on each question has the answer of a process without one.

    Attributes:
        failure: What to say of it, one sentence; nothing while the device answers.
    """

    def __init__(self) -> None:
        self.failure: list[str] = []

    def __call__(self, question: Callable[[], R], otherwise: R) -> R:
        if self.failure:
            return otherwise
        try:
            return question()
        except ours(RuntimeError) as error:
            found = _LOST.match(str(error))
            if found is None:
                raise
            self.failure = [f"the device has failed, and is asked nothing more: {found[0]}"]
            logger.warning("%s", *self.failure)
            return otherwise


# A single instance, because a process has a single context.
ASK = _Questions()


@dataclass(frozen=True, slots=True)
class Device:
    """What a device is.

    Attributes:
        label: Kind and index, such as "cuda:0".
        name: The maker's name; empty if torch does not know it.
        total_bytes: Its memory; 0 if unknown.
        uuid: What NVML knows it by; None elsewhere.
    """

    label: str
    name: str
    total_bytes: int
    uuid: str | None = None


class History:
    """The recorder of allocations of CUDA, for torch's memory viewer."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch

    def is_recording(self) -> bool:
        """Whether it runs, whoever has started it."""
        return bool(self._torch._C._cuda_isHistoryEnabled())

    def start(self, max_entries: int) -> None:
        """Remember this number of allocations and frees; of stacks Python's only: C++ stacks took minutes to write."""
        self._torch.cuda.memory._record_memory_history(max_entries=max_entries, stacks="python")

    def snapshot(self) -> object:
        """What it holds, to be pickled."""
        return self._torch.cuda.memory._snapshot()

    def stop(self) -> None:
        """Stop it and forget."""
        self._torch.cuda.memory._record_memory_history(enabled=None)


@dataclass(frozen=True, slots=True, eq=False)
class Allocator:
    """The calls of one device's caching allocator.

    Attributes:
        kind: "cuda" (ROCm too), "xpu", ...
        index: The device index.
        stats: The nested statistics, in one call.
        reset_peaks: Reset the peaks to the current values. None if the device keeps no peaks.
        memory_info: (free, total) bytes of the whole device, from the driver. None if unavailable.
        empty_cache: Give unused memory back to the driver.
        counts_retries: Whether `num_alloc_retries` and `num_ooms` are meaningful here.
        device: What the device is; asked once, when it is wanted.
        summary: torch's own table of the statistics. None if it has none.
        history: The recorder of allocations. None if there is none.
        fraction: The fraction of the device's memory that this process may reserve. None if there is no such limit.
        segments: All segments of all devices, each with its pool and its use. None if it does not tell.
    """

    kind: str
    index: int
    stats: Callable[[], Nested]
    reset_peaks: Callable[[], object] | None
    memory_info: Callable[[], tuple[int, int]] | None
    empty_cache: Callable[[], object]
    counts_retries: bool
    device: Callable[[], Device]
    summary: Callable[[], str] | None = None
    history: History | None = None
    fraction: Callable[[], float] | None = None
    segments: Callable[[], Sequence[Nested]] | None = None


def current_allocator() -> Allocator | None:
    """The allocator of this process's current device; None without an accelerator or before its first use."""
    return ASK(_current_allocator, None)


def _current_allocator() -> Allocator | None:
    torch = sys.modules.get("torch")
    # It may be missing, or still being imported
    kind = _accelerator_kind(torch) if torch is not None and hasattr(torch, "accelerator") else None
    if torch is None or kind is None or not _is_initialised(torch, kind):
        return None
    return _allocator(kind, int(getattr(getattr(torch, kind), "current_device", int)()))


def used_allocators() -> list[Allocator]:
    """The current device's allocator first, then those of other devices on which torch holds memory for this process.

    `nn.DataParallel` and `device_map="auto"` use several. Costs one reading of the statistics for each device; no
    context is made: both allocators of CUDA, and that of XPU, answer 0 for a device that was never used.
    """
    current = current_allocator()
    if current is None or current.kind not in _ANSWERS_FOR_UNUSED:
        return [] if current is None else [current]
    import torch

    others = (_allocator(current.kind, at) for at in range(torch.accelerator.device_count()) if at != current.index)
    return [current, *(other for other in others if gauge(other.stats(), "reserved_bytes"))]


def reserved_bytes() -> int | None:
    """What torch holds for this process on all its devices, as `empty_cache` clears all of them; None without one."""
    sizes = [gauge(allocator.stats(), "reserved_bytes") for allocator in used_allocators()]
    return sum(size or 0 for size in sizes) if sizes and sizes[0] is not None else None


def allocator_of(index: int | None) -> Allocator | None:
    """That of the device with this index, if torch holds memory there; else the current device's."""
    found = current_allocator()
    if found is None or index in (None, found.index):
        return found
    return next((other for other in used_allocators() if other.index == index), found)


def devices() -> list[Device]:
    """All devices that this process can use, in torch's order; none before the first use of one."""
    allocator = current_allocator()
    if allocator is None:
        return []
    import torch

    return [_device(torch, allocator.kind, index) for index in range(torch.accelerator.device_count())]


def modules_with_a_cache() -> list[str]:
    """Names of torch's modules that may have an `empty_cache`, whether or not they are loaded."""
    torch = sys.modules.get("torch")
    kind = _accelerator_kind(torch) if hasattr(torch, "accelerator") else None
    return list(dict.fromkeys([*_WITH_A_CACHE, *([f"torch.{kind}"] if kind else [])]))


def has_accelerator() -> bool:
    """Whether this torch was built for an accelerator; also True while torch is not imported."""
    torch = sys.modules.get("torch")
    return torch is None or not hasattr(torch, "accelerator") or _accelerator_kind(torch) is not None


@functools.cache  # called at each step, also without a device
def _accelerator_kind(torch: ModuleType) -> str | None:
    """The accelerator this torch was built for ("cuda", "xpu", ...), whether or not one is present."""
    with missing(RuntimeError):  # torch 2.6 raises where newer ones return None
        device = torch.accelerator.current_accelerator()
        return None if device is None else str(device.type)
    return None


def _is_initialised(torch: ModuleType, kind: str) -> bool:
    module = getattr(torch, kind, None)
    ask = getattr(module, "is_initialized", getattr(torch._C, "_accelerator_isAllocatorInitialized", bool))
    return module is not None and bool(ask())


@functools.cache
def _allocator(kind: str, index: int) -> Allocator:
    import torch

    found = _calls_of(torch, kind, index)
    try:
        found.stats()
    except ours(RuntimeError):  # a pluggable allocator of the user keeps no statistics
        return dataclasses.replace(found, stats=dict, reset_peaks=None, counts_retries=False)
    return found


def _segments(module: ModuleType) -> Callable[[], Sequence[Nested]] | None:
    ask = getattr(module, "memory_snapshot", None)
    if ask is not None and "include_traces" in inspect.signature(ask).parameters:
        return functools.partial(ask, include_traces=False)
    return ask


def _calls_of(torch: ModuleType, kind: str, index: int) -> Allocator:
    module, other, is_cuda = getattr(torch, kind), torch.accelerator, kind == "cuda"
    is_native = not is_cuda or module.get_allocator_backend() == "native"
    bound = functools.partial(_bound, index)
    # torch.cuda.memory_stats flattens and sorts some 120 keys; the first is the nested dict it starts from.
    stats = bound({}, f"_{kind}_memoryStats", torch._C) or bound({}, "memory_stats_as_nested_dict", module)
    return Allocator(
        kind=kind,
        index=index,
        stats=stats or bound({}, "_accelerator_getDeviceStats", torch._C) or dict,
        reset_peaks=bound(None, "reset_peak_memory_stats", module, other),
        memory_info=bound((0, 0), "mem_get_info", module) or bound((0, 0), "get_memory_info", other),
        # Looked up at the call, since it may be wrapped by then; in C, since the caller's line is told
        empty_cache=functools.partial(methodcaller("empty_cache"), module if hasattr(module, "empty_cache") else other),
        counts_retries=is_native,  # cudaMallocAsync leaves both counters at 0 whatever happens
        device=functools.partial(_device, torch, kind, index),
        summary=bound("", "memory_summary", module),
        history=History(torch) if is_cuda else None,
        fraction=bound(1.0, "get_per_process_memory_fraction", module),  # older torch only sets it
        segments=_segments(module) if is_cuda and is_native else None,
    )


def _bound(index: int, otherwise: object, name: str, *modules: object) -> Callable[[], Any] | None:
    """The function of this name of the first of these modules that has it, for this device; `otherwise`: see `ASK`."""
    found = next((function for module in modules if (function := getattr(module, name, None)) is not None), None)
    return None if found is None else functools.partial(ASK, functools.partial(found, index), otherwise)


def _device(torch: ModuleType, kind: str, index: int) -> Device:
    found = getattr(getattr(torch, kind), "get_device_properties", lambda index: None)(index)
    uuid = getattr(found, "uuid", None)
    name = str(getattr(found, "name", ""))
    total_bytes = int(getattr(found, "total_memory", 0))
    return Device(f"{kind}:{index}", name, total_bytes, None if uuid is None else str(uuid))


def gauge(stats: Nested, name: str, what: str = "current") -> int | None:
    """One number from the nested statistics; None if this allocator does not have it.

    >>> gauge({"allocated_bytes": {"all": {"current": 512}}}, "allocated_bytes")
    512
    >>> gauge({}, "allocated_bytes") is None
    True
    """
    try:
        return int(stats[name]["all"][what])
    except (KeyError, TypeError):
        return None


def gauge_now(name: str, allocator: Allocator | None = None) -> int | None:
    """One number of this allocator, or else of the current device's; None without a device, or if it has none such."""
    allocator = allocator or current_allocator()
    return None if allocator is None else gauge(allocator.stats(), name)


def driver_memory(allocator: Allocator) -> tuple[int, int] | None:
    """(free, total) bytes of the whole device, from the driver; None if unavailable."""
    if allocator.memory_info is None:
        return None
    with missing(RuntimeError):  # a device or driver without this query
        free, total = allocator.memory_info()
        return (int(free), int(total)) if total else None
    return None


def empty_host_cache() -> None:
    """Free the pinned host memory that torch keeps for copies to the device, if possible."""
    if current_allocator() is None:
        return
    import torch

    empty = getattr(torch.accelerator, "empty_host_cache", None) or getattr(torch._C, "_host_emptyCache", None)
    if empty is not None:
        with missing(RuntimeError):  # an accelerator without pinned memory
            empty()
