"""How much larger the batch could have been in a successful run."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from forgather_mem.diagnose.oom.batch_uses import BatchUses
from forgather_mem.diagnose.oom.batches import KEPT_FREE_FRAC
from forgather_mem.diagnose.oom.context import RunSettings
from forgather_mem.diagnose.oom.shapes.larger_batch import room
from forgather_mem.errors import ours
from forgather_mem.probes.tensors import tensor_bytes
from forgather_mem.system.allocator import current_allocator, gauge
from forgather_mem.system.headroom import Room, device_room, device_rooms, host_rooms
from forgather_mem.system.procfs import kib_fields, read_once
from forgather_mem.telemetry.report import Change

# Whose memory it is that a larger batch would fill; other limits are named as they are.
_WHOSE = {
    "container": "the container's memory",
    "container (memory.high)": "the container's memory (memory.high)",
    "host": "this machine's memory",
    "address space (RLIMIT_AS)": "this process's limit on address space (ulimit -v)",
    "data (RLIMIT_DATA)": "this process's limit on data (ulimit -d)",
}


def room_left(
    uses: BatchUses,
    settings: RunSettings,
    began_bytes: int | None,
    model: object,
    optimizer: object,
    rss_peak_bytes: int | None = None,
) -> Change | None:
    """The largest batch that would still fit in this run; None if a limit, a peak or enough steps are missing.

    What is predicted is comparable with the peak in the run's report: on the host, resident memory with the pages of
    files, which the uses don't count.

    Args:
        uses: Memory use of its steps; still open.
        settings: The run's settings.
        began_bytes: Bytes in use before the first step: the model, and what exists without a training.
        model, optimizer: Those being trained.
        rss_peak_bytes: The run's highest resident memory; default: the kernel's mark, which others may have reset.
    """
    used = uses.read()
    on_device = current_allocator() is not None
    limit = device_room() if on_device else next(iter(host_rooms()), None)
    peak = _peak_bytes(uses, rss_peak_bytes) if used is not None else None
    seen = max((size for use in uses.uses for size in use.phases.values()), default=0)
    if used is None or limit is None or peak is None or began_bytes is None or not seen:
        return None
    others = [other for other in device_rooms() if other.limit != limit.limit] if on_device else []
    state = tensor_bytes(model, optimizer).get("tensors/optimizer_bytes", 0.0) if model is not None else 0.0
    found = room(
        settings,
        uses.uses,
        used + limit.free_bytes,
        began_bytes + (settings.trained_bytes or 0) + int(state),
        unseen_bytes=max(0, peak.bytes - seen),
        uncounted_bytes=peak.reported_bytes - peak.bytes,
        least_bytes=peak.reported_bytes,
        between_bytes=uses.between_bytes,
        saved_bytes=uses.saved_bytes,
        limit=_WHOSE.get(limit.limit, f"the memory of {limit.limit}"),
        retains=not on_device,
    )
    for other in others:
        found = found and _within(other, found, int(settings.arguments["per_device_train_batch_size"]))
    return found


def _within(other: Room, found: Change, rows: int) -> Change | None:
    """The same on a device whose steps were not measured by phase: all that passes there is taken to grow with the
    batch. The smaller of the two, and which device limits it; None if nothing larger fits there."""
    if not other.passing_bytes:  # no activations come and go there
        return found
    capacity = (1 - KEPT_FREE_FRAC) * (other.used_bytes + other.free_bytes)
    count = int(rows * (capacity - other.used_bytes) / other.passing_bytes)
    if count >= found.set["per_device_train_batch_size"]:  # type: ignore[operator]  # a number: `room` has made it
        return found
    if count <= rows:
        return None
    return replace(
        found,
        text=f"batch {count} would still fit (now {rows}), limited by the memory of {other.limit}",
        set={"per_device_train_batch_size": count},
        predicted_bytes=round(other.used_bytes + other.passing_bytes * count / rows),
        interval=None,
        binds=None,
    )


class _Peak(NamedTuple):
    """The highest use of the process so far: in the measure of the uses, and as the report has it."""

    bytes: int
    reported_bytes: int


def _peak_bytes(uses: BatchUses, rss_peak_bytes: int | None) -> _Peak | None:
    """The peak so far; None if it is not measured."""
    allocator = current_allocator()
    if allocator is not None:
        peak = gauge(allocator.stats(), "allocated_bytes", "peak")
        return None if peak is None else _Peak(*[max(peak, uses.highest_bytes)] * 2)
    try:
        fields = kib_fields(read_once("/proc/self/status"))
    except ours(OSError):
        return None
    resident = max(rss_peak_bytes or 0, fields.get(b"VmHWM", 0))
    if uses.host.name == "address space" and b"VmPeak" in fields:
        return _Peak(fields[b"VmPeak"], resident)
    if uses.host.name == "anonymous" and resident:
        return _Peak(resident - fields.get(b"RssFile", 0) - fields.get(b"RssShmem", 0), resident)
    return None
