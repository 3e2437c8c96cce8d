"""How much larger the batch could have been in a successful run."""

from __future__ import annotations

from forgather_mem.diagnose.oom.advice import room
from forgather_mem.diagnose.oom.batch_uses import BatchUses
from forgather_mem.diagnose.oom.context import RunSettings
from forgather_mem.probes.tensors import tensor_bytes
from forgather_mem.system.allocator import current_allocator, gauge
from forgather_mem.system.headroom import device_room, host_rooms
from forgather_mem.system.procfs import KernelFile, kib_fields
from forgather_mem.telemetry.report import Change


def room_left(
    uses: BatchUses, settings: RunSettings, began_bytes: int | None, model: object, optimizer: object
) -> Change | None:
    """The result of `room` for this run; None if a limit, a peak or enough steps are missing.

    Args:
        uses: Memory use of its steps; still open.
        settings: The run's settings.
        began_bytes: Bytes in use before the first step: the model, and what exists without a training.
        model, optimizer: Those being trained.
    """
    used = uses.read()
    on_device = current_allocator() is not None
    limit = device_room() if on_device else next(iter(host_rooms()), None)
    peak = _peak_bytes(uses) if used is not None else None
    seen = max((size for use in uses.uses for size in use.phases.values()), default=0)
    if used is None or limit is None or peak is None or began_bytes is None or not seen:
        return None
    state = tensor_bytes(model, optimizer).get("tensors/optimizer_bytes", 0.0) if model is not None else 0.0
    return room(
        settings,
        uses.uses,
        used + limit.free_bytes,
        began_bytes + (settings.trained_bytes or 0) + int(state),
        unseen_bytes=max(0, peak - seen),
        retains=not on_device,
    )


def _peak_bytes(uses: BatchUses) -> int | None:
    """The highest use of the whole process so far, in the measure of the uses; None if nothing counts it."""
    allocator = current_allocator()
    if allocator is not None:
        return gauge(allocator.stats(), "allocated_bytes", "peak")
    status = KernelFile("/proc/self/status")
    try:
        fields = kib_fields(status.read())
    except OSError:
        return None
    finally:
        status.close()
    if uses.host.name == "address space":
        return fields.get(b"VmPeak")
    if uses.host.name == "anonymous" and b"VmHWM" in fields:
        return fields[b"VmHWM"] - fields.get(b"RssFile", 0) - fields.get(b"RssShmem", 0)
    return None
