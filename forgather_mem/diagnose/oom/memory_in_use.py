"""What was in memory when it ran out, under which limit, and what was left."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Mapping

from forgather_mem.diagnose.oom.batch_uses import HostMeasure
from forgather_mem.diagnose.oom.context import FREE_HEAP, UNSEEN, WORKERS, trained_parameters
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.messages import OF_TORCH, SHM_KINDS
from forgather_mem.errors import missing
from forgather_mem.heap.census import model_parameters
from forgather_mem.probes.tensors import tensor_bytes
from forgather_mem.system.allocator import allocator_of, driver_memory, gauge
from forgather_mem.system.headroom import host_rooms, private_bytes
from forgather_mem.system.native_heap import beyond_heap_bytes, unused_heap_bytes
from forgather_mem.system.procfs import kib_fields, own_memory, read_once
from forgather_mem.telemetry.report import PYTHON, TENSORS, THERE_BEFORE

# What a phase adds while it runs, by its common name.
_OF_PHASE = {"forward": "activations", "backward": "activations", "evaluate": "evaluation", "generate": "generation"}

# Functions of trainers, and of the user's, in which an evaluation runs
_EVALUATES = "evaluate", "predict", "evaluation_loop", "prediction_loop", "validation_step", "test_step", "predict_step"
# What was being created and is gone with the error.
_UNFINISHED = {"startup": "being made", "data": "the batch", "save": "copies being made", "resume": "copies being made"}


def look_at_memory(
    failure: Failure,
    model: object = None,
    optimizer: object = None,
    *,
    before_bytes: int | None = None,
    between_bytes: int | None = None,
    workers_bytes: int = 0,
    reserve_bytes: int = 0,
) -> None:
    """Write down what is in memory now, while the failed call's frames are still alive.

    Args:
        failure: Its error, phase and census are known.
        model, optimizer: Those being trained, if known.
        before_bytes: Anonymous host memory before the first step.
        between_bytes: Bytes in use at the end of the last step.
        workers_bytes: Memory of the data workers.
        reserve_bytes: Our reserved addresses, which were taken at the failure and are free now.
    """
    parts = Counter(_tensors_of(failure, model, optimizer))
    functions = failure.functions if failure.phase == "evaluate" else ()
    inner = tuple(f" of {name}()" for name in itertools.dropwhile(lambda name: name not in _EVALUATES, functions))
    for held in failure.census:
        if held.kind in ("due", "vain"):  # among the gradients, or to come
            continue
        if held.kind == "activations" and not held.num_passes:  # no graph keeps them
            parts[_OF_PHASE.get(failure.phase, held.part)] += held.num_bytes
            continue
        named = "evaluation" if held.part.endswith("<genexpr>()") else f"evaluation ({held.part})"
        parts[named if held.part.endswith(inner) else held.part] += held.num_bytes
    if failure.found.where == "device":
        _on_device(failure, parts, between_bytes)
    elif failure.found.kind in SHM_KINDS:
        _in_shm(failure)
    else:
        if before_bytes is not None:  # what has an owner may have been there then, or come later: nobody knows
            before_bytes = max(0, before_bytes - parts.get("parameters", 0))
        _on_host(failure, parts, before_bytes, workers_bytes, reserve_bytes)
    failure.in_use = {part: size for part, size in failure.in_use.items() if size}


def _tensors_of(failure: Failure, model: object, optimizer: object) -> dict[str, int]:
    """Sizes of the model's tensors, if they are in the memory that ran out."""
    first = next(iter((*model_parameters(model), *trained_parameters(None, optimizer))), None)
    if first is None or (first.device.type == "cpu") != (failure.found.where == "host"):
        return {}
    sizes = tensor_bytes(model, optimizer)
    return {name: int(sizes.get(f"tensors/{name}_bytes", 0)) for name in TENSORS}


def _on_host(
    failure: Failure, parts: dict[str, int], before_bytes: int | None, workers_bytes: int, reserve_bytes: int
) -> None:
    failure.in_use = parts
    rooms = host_rooms()
    if not rooms:
        return
    room, measure = rooms[0], HostMeasure()
    used_bytes, anonymous_bytes = measure.read(), own_memory().anonymous_bytes
    whole = measure.name != "anonymous"  # the limit counts this process alone
    reserve_bytes *= whole  # for others it had no memory behind it
    failure.limit, failure.limit_bytes = room.limit, max(room.limit_bytes, room.used_bytes)
    failure.used_bytes = used_bytes = min(used_bytes + reserve_bytes, failure.limit_bytes)
    failure.free_bytes = max(0, room.free_bytes - reserve_bytes)
    name = _OF_PHASE.get(failure.phase) if before_bytes is not None else None
    beside = _beside(parts, name, anonymous_bytes, before_bytes, not failure.census)
    in_use = failure.in_use = Counter(parts) + Counter(beside)
    if (wanted := failure.found.requested_bytes) is not None:
        # What this process had more at its highest: of its addresses, or of its resident memory
        status, now = kib_fields(read_once("/proc/self/status")), own_memory()
        size, highest = (now.address_bytes, b"VmPeak") if whole else (now.resident_bytes, b"VmHWM")
        failure.freed_bytes = freed_bytes = max(0, min(failure.free_bytes - wanted, status.get(highest, 0) - size))
        # Temporaries of a pass are freed with its C++ frames, a half-built object with its builder
        gone = name or _UNFINISHED.get(failure.phase, "temporary")
        if (twice := failure.twice) is not None:
            in_use["gradients"] = in_use.get("gradients", 0) + twice.num_bytes
            freed_bytes -= twice.num_bytes
        gone += f" ({failure.line})" if gone.endswith("being made") and failure.line else ""
        in_use[gone] = in_use.get(gone, 0) + freed_bytes
    if whole:
        in_use["reserved address space"] = max(0, used_bytes - max(anonymous_bytes, sum(parts.values())))
    else:
        in_use[WORKERS] = workers_bytes
        failure.others_bytes = max(0, room.used_bytes - anonymous_bytes - workers_bytes)


def _beside(
    parts: Mapping[str, int], name: str | None, anonymous_bytes: int, before_bytes: int | None, unseen: bool
) -> dict[str, int]:
    """What else this process has: what was there before the first step or is no heap, free heap, and the rest.

    Where the census has not seen what the phase keeps, as in compiled code, the rest counts for the phase. Before the
    first step nothing has come since then: what is no tensor, array or object is Python's and the libraries', unless
    there was no memory to look for these. Then what was there before the first step may be the script's, too.
    """
    rest = max(0, anonymous_bytes - sum(parts.values()))
    unused = min(rest, unused_heap_bytes())
    libraries = rest - unused
    if before_bytes is not None or unseen:
        libraries = min(libraries, max(beyond_heap_bytes(anonymous_bytes), before_bytes or 0))
    there = THERE_BEFORE if unseen and before_bytes is not None else PYTHON
    found = {there: libraries, FREE_HEAP: unused}
    is_known = name is None or (name == "activations" and name in parts)
    rest_of = UNSEEN if unseen else "other" if is_known else str(name)
    return {**found, rest_of: rest - unused - libraries}


def _in_shm(failure: Failure) -> None:
    """/dev/shm after the error, when the file that could not be made is gone. No phase's memory includes it."""
    with missing(OSError):
        total_bytes, used_bytes, free_bytes = shutil.disk_usage("/dev/shm")
        failure.limit, failure.limit_bytes, failure.free_bytes = "/dev/shm", total_bytes, free_bytes
        if failure.found.requested_bytes is not None:
            failure.freed_bytes = max(0, free_bytes - failure.found.requested_bytes)
        failure.in_use = {"files in /dev/shm": used_bytes}


def _on_device(failure: Failure, parts: dict[str, int], between_bytes: int | None) -> None:
    """The error's own numbers first: they are from that very moment."""
    found = failure.found
    allocator = allocator_of(found.device)
    stats = allocator.stats() if allocator is not None else {}
    driver = (driver_memory(allocator) if allocator is not None else None) or (None, None)
    pools = found.private_pools_bytes or 0
    is_torchs = found.kind.endswith(OF_TORCH)  # what another library has allocated is beside it
    said = max(0, found.allocated_bytes - pools) if found.allocated_bytes is not None and is_torchs else None
    allocated = gauge(stats, "allocated_bytes") if said is None else said
    reserved = gauge(stats, "reserved_bytes")
    unused, private = found.reserved_unused_bytes, 0
    if unused is None and reserved is not None and allocated is not None:
        unused = max(0, reserved - allocated)
    if not pools and allocator is not None and reserved and unused:  # else torch has left them out of what is unused
        private = private_bytes(allocator, reserved, unused)
    free = driver[0] if found.free_bytes is None else found.free_bytes
    total = driver[1] if found.total_bytes is None else found.total_bytes
    in_use = dict(parts)
    if allocated is not None:
        rest = max(0, allocated - sum(parts.values()))
        name = _OF_PHASE.get(failure.phase)
        if name is not None and name not in parts:
            kept = parts.get("parameters", 0) + parts.get("optimizer", 0)
            other = min(rest, max(0, (between_bytes or 0) - kept))
            in_use[name], rest = rest - other, other
        in_use |= {"other": rest, "private pools": pools, "kept by the allocator": unused or 0}
        if found.process_bytes is not None:
            in_use["CUDA and libraries"] = max(0, found.process_bytes - allocated - pools - (unused or 0))
    if found.process_bytes is not None and total is not None and free is not None:
        # Only where the error has this process's share: the driver's part is not known otherwise
        failure.others_bytes = max(0, total - free - found.process_bytes)
    number = found.device if found.device is not None else allocator.index if allocator is not None else 0
    failure.used_bytes, failure.in_use = allocated, in_use
    failure.free_bytes = None if free is None else free + ((unused or 0) - private) * is_torchs
    failure.limit, failure.limit_bytes, failure.reserved_unused_bytes = f"GPU {number}", total, unused
