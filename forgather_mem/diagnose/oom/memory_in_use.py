"""What was in memory when it ran out, under which limit, and what was left."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forgather_mem.diagnose.oom.batch_uses import HostMeasure
from forgather_mem.diagnose.oom.context import FREE_HEAP
from forgather_mem.diagnose.oom.messages import SHM_KINDS
from forgather_mem.diagnose.oom.recognition import OutOfMemory
from forgather_mem.errors import ours
from forgather_mem.heap.census import Holding
from forgather_mem.probes.tensors import tensor_bytes
from forgather_mem.system.allocator import allocator_of, driver_memory, gauge
from forgather_mem.system.headroom import host_rooms, private_bytes
from forgather_mem.system.native_heap import beyond_heap_bytes, unused_heap_bytes
from forgather_mem.system.procfs import own_memory

_TENSORS = ("parameters", "gradients", "optimizer")
_NAMED_FRAC = 0.02  # of what the census has found: what is less has no name of its own in the report
# What a phase adds while it runs, by its common name.
_OF_PHASE = {"forward": "activations", "backward": "activations", "evaluate": "evaluation", "generate": "generation"}

# What was being created and is gone with the error.
_UNFINISHED = {"startup": "being made", "data": "the batch", "save": "copies", "resume": "copies"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryThen:
    """The memory that ran out, at that moment. Unknown values are None.

    Attributes:
        used_bytes: In use by this process, in the measure of `StepUse.phases`.
        free_bytes: What it could allocate after the error.
        freed_bytes: Lower bound of the part that became free only when the failed call was left.
        limit_bytes: The total capacity.
        limit: The source of the limit: "address space (RLIMIT_AS)", "container", "host", "/dev/shm", "GPU 0".
        reserved_unused_bytes: Reserved by the device's allocator but not used by any tensor.
        others_bytes: In use by other processes under the same limit.
        in_use: Memory in use by this process, by category.
    """

    used_bytes: int | None = None
    free_bytes: int | None = None
    freed_bytes: int = 0
    limit_bytes: int | None = None
    limit: str | None = None
    reserved_unused_bytes: int | None = None
    others_bytes: int | None = None
    in_use: Mapping[str, int] = field(default_factory=dict)


def memory_then(
    found: OutOfMemory,
    phase: str,
    model: object = None,
    optimizer: object = None,
    census: Sequence[Holding] = (),
    *,
    before_bytes: int | None = None,
    between_bytes: int | None = None,
    workers_bytes: int | None = None,
    reserve_bytes: int = 0,
) -> MemoryThen:
    """What is in memory now, while the failed call's frames are still alive.

    Args:
        found: What the error says.
        phase: The phase in which it was raised.
        model, optimizer: Those being trained, if known.
        census: What is held beside them.
        before_bytes: Anonymous host memory before the first step.
        between_bytes: Bytes in use at the end of the last step.
        workers_bytes: Memory of the data workers.
        reserve_bytes: Our reserved addresses, which were taken at the failure and are free now.
    """
    parts = {**_tensors_of(found, model, optimizer), **_parts_of(census)}
    if found.where == "device":
        return _on_device(found, phase, parts, between_bytes)
    if found.kind in SHM_KINDS:
        return _in_shm(found.requested_bytes)
    if before_bytes is not None:  # without what was there then and has an owner
        known_bytes = sum(held.num_bytes for held in census if held.kind in ("object", "copy"))
        before_bytes = max(0, before_bytes - parts.get("parameters", 0) - known_bytes)
    return _on_host(found, phase, parts, before_bytes, workers_bytes or 0, reserve_bytes)


def _parts_of(census: Sequence[Holding]) -> dict[str, int]:
    least, parts = _NAMED_FRAC * sum(held.num_bytes for held in census), Counter[str]()
    for held in census:
        is_named = held.num_bytes >= least or held.kind in ("activations", "batch")
        parts[held.part if is_named else "small objects"] += held.num_bytes
    return dict(parts)


def _tensors_of(found: OutOfMemory, model: object, optimizer: object) -> dict[str, int]:
    """Sizes of the model's tensors, if they are in the memory that ran out."""
    first = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    if first is None or (first.device.type == "cpu") != (found.where == "host"):
        return {}
    sizes = tensor_bytes(model, optimizer)
    return {name: int(size) for name in _TENSORS if (size := sizes.get(f"tensors/{name}_bytes"))}


def _on_host(
    found: OutOfMemory,
    phase: str,
    parts: dict[str, int],
    before_bytes: int | None,
    workers_bytes: int,
    reserve_bytes: int,
) -> MemoryThen:
    rooms = host_rooms()
    if not rooms:
        return MemoryThen(in_use=parts)
    room = rooms[0]
    measure = HostMeasure()
    used_bytes = measure.read()
    measure.close()
    anonymous_bytes = own_memory().anonymous_bytes
    whole = measure.name != "anonymous"  # the limit counts this process alone
    if not whole:
        reserve_bytes = 0  # the reserve had no memory behind it
    limit_bytes = room.used_bytes + room.free_bytes
    used_bytes = min(used_bytes + reserve_bytes, limit_bytes)
    name = _OF_PHASE.get(phase) if before_bytes is not None else None
    in_use = {**parts, **_beside(parts, name, anonymous_bytes, before_bytes)}
    free_bytes = max(0, room.free_bytes - reserve_bytes)
    freed_bytes = max(0, free_bytes - found.requested_bytes) if found.requested_bytes is not None else 0
    if freed_bytes:  # temporaries of a pass are freed with its C++ frames, a half-built object with its builder
        gone = name or _UNFINISHED.get(phase, "temporary")
        in_use[gone] = in_use.get(gone, 0) + freed_bytes
    if workers_bytes and not whole:
        in_use["data workers"] = workers_bytes
    held_bytes = max(anonymous_bytes, sum(parts.values()))
    if whole and used_bytes > held_bytes:
        in_use["mapped only"] = used_bytes - held_bytes
    return MemoryThen(
        used_bytes=used_bytes,
        free_bytes=free_bytes,
        freed_bytes=freed_bytes,
        limit_bytes=limit_bytes,
        limit=room.limit,
        others_bytes=None if whole else max(0, room.used_bytes - anonymous_bytes - workers_bytes),
        in_use={part: size for part, size in in_use.items() if size},
    )


def _beside(
    parts: Mapping[str, int], name: str | None, anonymous_bytes: int, before_bytes: int | None
) -> dict[str, int]:
    """What else this process has: what was there before the first step or is no heap, free heap, and the rest.

    Where the census has not seen what the phase keeps, as in compiled code, the rest counts for the phase.
    """
    rest = max(0, anonymous_bytes - sum(parts.values()))
    unused = min(rest, unused_heap_bytes())
    libraries = min(rest - unused, max(beyond_heap_bytes(anonymous_bytes), before_bytes or 0))
    rest -= unused + libraries
    found = {"Python and libraries": libraries, FREE_HEAP: unused}
    rest_of = name if name is not None and name not in parts else "other"
    return {**found, rest_of: rest}


def _in_shm(wanted_bytes: int | None) -> MemoryThen:
    """/dev/shm after the error, when the file that could not be made is gone. No phase's memory includes it."""
    try:
        shm = os.statvfs("/dev/shm")
    except ours(OSError):
        return MemoryThen()
    used_bytes = (shm.f_blocks - shm.f_bfree) * shm.f_frsize
    free_bytes = shm.f_bavail * shm.f_frsize
    return MemoryThen(
        free_bytes=free_bytes,
        freed_bytes=0 if wanted_bytes is None else max(0, free_bytes - wanted_bytes),
        limit_bytes=shm.f_blocks * shm.f_frsize,
        limit="/dev/shm",
        in_use={"files in /dev/shm": used_bytes} if used_bytes else {},
    )


def _on_device(found: OutOfMemory, phase: str, parts: dict[str, int], between_bytes: int | None) -> MemoryThen:
    """The error's own numbers first: they are from that very moment."""
    allocator = allocator_of(found.device)
    stats = allocator.stats() if allocator is not None else {}
    driver = driver_memory(allocator) if allocator is not None else None
    pools = found.private_pools_bytes or 0
    said = None if found.allocated_bytes is None else max(0, found.allocated_bytes - pools)
    allocated = _first(said, gauge(stats, "allocated_bytes"))
    reserved = gauge(stats, "reserved_bytes")
    unused, private = found.reserved_unused_bytes, 0
    if unused is None and reserved is not None and allocated is not None:
        unused = max(0, reserved - allocated)
    if not pools and allocator is not None and reserved and unused:  # else torch has left them out of what is unused
        private = private_bytes(allocator, reserved, unused)
    free = _first(found.free_bytes, None if driver is None else driver[0])
    total = _first(found.total_bytes, None if driver is None else driver[1])
    others = _other_processes(found, total, free)
    in_use = dict(parts)
    if allocated is not None:
        rest = max(0, allocated - sum(parts.values()))
        name = _OF_PHASE.get(phase)
        if name is not None and name not in parts:
            kept = parts.get("parameters", 0) + parts.get("optimizer", 0)
            other = min(rest, max(0, (between_bytes or 0) - kept))
            in_use[name], rest = rest - other, other
        in_use["other"] = rest
        if found.process_bytes is not None:
            in_use["CUDA and libraries"] = max(0, found.process_bytes - allocated - pools - (unused or 0))
        in_use["private pools"] = pools
        in_use["kept by the allocator"] = unused or 0
    number = found.device if found.device is not None else allocator.index if allocator is not None else 0
    return MemoryThen(
        used_bytes=allocated,
        free_bytes=None if free is None else free + (unused or 0) - private,
        limit_bytes=total,
        limit=f"GPU {number}",
        reserved_unused_bytes=unused,
        others_bytes=others,
        in_use={part: size for part, size in in_use.items() if size},
    )


def _other_processes(found: OutOfMemory, total: int | None, free: int | None) -> int | None:
    """Only if the error reports this process's share: the driver's part is not known otherwise."""
    if found.process_bytes is None or total is None or free is None:
        return None
    return max(0, total - free - found.process_bytes)


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)
