"""How much larger the batch could have been in a successful run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from forgather_mem.diagnose.oom.batch_uses import BatchUses
from forgather_mem.diagnose.oom.batches import KEPT_FREE_FRAC
from forgather_mem.diagnose.oom.context import RunSettings, StepUse
from forgather_mem.diagnose.oom.shapes.fit import PhaseFit, binding, fits_of, largest_that_fits
from forgather_mem.diagnose.oom.shapes.pass_peak import PASS
from forgather_mem.errors import ours
from forgather_mem.probes.tensors import tensor_bytes
from forgather_mem.system.allocator import current_allocator, gauge
from forgather_mem.system.headroom import Room, device_room, device_rooms, host_rooms
from forgather_mem.system.procfs import kib_fields, read_once
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.report import Change

# Whose memory it is that a larger batch would fill; other limits are named as they are.
_WHOSE = {
    "container": "the container's memory",
    "container (memory.high)": "the container's memory (memory.high)",
    "host": "this machine's memory",
    "address space (RLIMIT_AS)": "this process's limit on address space (ulimit -v)",
    "data (RLIMIT_DATA)": "this process's limit on data (ulimit -d)",
}
_LIMITED_BY = {
    "data": "loading data",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
}


class _Trusted:
    """A fitted line, up to this multiple of the largest batch seen; and batches of one shape, from so many on."""

    farthest_times = 4
    fewest_alike = 5


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


def room(
    settings: RunSettings,
    uses: Sequence[StepUse],
    capacity_bytes: int,
    held_bytes: int | None = None,
    *,
    unseen_bytes: int = 0,
    uncounted_bytes: int = 0,
    least_bytes: int = 0,
    between_bytes: int | None = None,
    saved_bytes: int | None = None,
    limit: str | None = None,
    retains: bool = False,
) -> Change | None:
    """The largest batch that would still fit in a successful run; None without data to predict it.

    With batches of different shapes, a line is fitted and the longest samples seen are assumed. With batches of one
    shape, everything but `held_bytes` is assumed to grow with the batch: the real growth is slower, so the batch named
    fits at least. Nothing is predicted beyond four times the largest batch seen.

    Args:
        settings: The run's settings.
        uses: Memory use of its steps.
        capacity_bytes: Total capacity, in the same measure as `StepUse.phases`.
        held_bytes: Parameters, gradients and optimizer state, which don't depend on the batch; None if unknown.
        unseen_bytes: How far the run's peak was above the highest phase of any step; assumed to grow with the batch.
        uncounted_bytes: What the reported peak counts and the capacity does not, as pages of files.
        least_bytes: The reported peak: a larger batch takes no less.
        between_bytes: In use between two steps. With batches of one shape, what a step adds to it surely grows with the
            batch: what is predicted follows that, whether a batch fits is still judged by the assumption above.
        saved_bytes: What a micro-batch saves for its backward pass, if known; that pass adds about as much at the peak.
        limit: What is full then, for people.
        retains: As for `fits_of`: whether freed memory still counts.
    """
    training = [use for use in uses if any(phase in use.phases for phase in ("forward", "backward"))]
    rows = int(settings.arguments.get("per_device_train_batch_size") or 0)
    if not training or rows < 1:
        return None
    length = max((use.width for use in training if use.width is not None), default=None)
    fits = {name: fit for name, fit in fits_of(training, retains=retains).items() if name in STEP_PHASES}
    one_shape = not any(name != "optimizer" and fit.per_token_bytes > 0 for name, fit in fits.items())
    if one_shape:
        fits = dict(_lines_from_one_shape(training, held_bytes))
    if not fits:
        return None
    most = (1 - KEPT_FREE_FRAC) * capacity_bytes

    def use_of(count: int, size: str) -> float:
        bound = binding(fits, count, length)
        assert bound is not None
        return float(getattr(bound[1], size)) + unseen_bytes * max(1.0, count * (length or 1) / seen_tokens)

    seen_tokens = max(fit.most_tokens for fit in fits.values())
    farthest = int(_Trusted.farthest_times * seen_tokens // (length or 1))
    count = largest_that_fits(lambda count: use_of(count, "high") <= most, farthest)
    bound = binding(fits, count, length)
    if count <= rows or bound is None:
        return None
    likely = use_of(count, "bytes")
    if one_shape and between_bytes is not None:
        highest = unseen_bytes + max(max(use.phases.values(), default=0) for use in training)
        likely = min(likely, _grown(likely, highest, between_bytes, saved_bytes, count / rows, retains))
    by = " and ".join(filter(None, (_LIMITED_BY[bound[0]], limit)))
    text = f"batch {count}{' or more' * (count == farthest)} would still fit (now {rows}), limited by {by}"
    return Change(
        text=text,
        set={"per_device_train_batch_size": count},
        predicted_bytes=max(least_bytes, round(likely) + uncounted_bytes),
        interval=(count, largest_that_fits(lambda count: use_of(count, "low") <= most, farthest)),
        binds=bound[0],
    )


def _grown(
    most: float, highest: int, between_bytes: int, saved_bytes: int | None, times: float, retains: bool
) -> float:
    """The likely use with a batch so many times as large as those that were all of one shape.

    Args:
        most: If all that the training has allocated grew with the batch.
        highest: The use now.
        between_bytes, saved_bytes, retains: As for `room`.
        times: How many times as large.
    """
    least = min(most, between_bytes + max(0, highest - between_bytes) * times)
    if not retains:
        return least
    if saved_bytes is not None:
        return highest + PASS.of_saved * saved_bytes * (times - 1)
    # What is in use between two steps has been of batches, too, in part. The bounds of the growth are several times
    # apart: their geometric mean has the smallest worst error
    return highest + math.sqrt(max(0, least - highest) * max(0, most - highest))


def _lines_from_one_shape(uses: Sequence[StepUse], held_bytes: int | None) -> Iterator[tuple[str, PhaseFit]]:
    """Lines from the use without a batch to the use with this one."""
    shapes = {(use.rows, use.width) for use in uses}
    later = sorted(uses, key=lambda use: use.step)[1:]  # in the first step the optimizer had no state
    if held_bytes is None or len(shapes) != 1 or len(later) < _Trusted.fewest_alike:
        return
    rows, length = shapes.pop()
    tokens = rows * (length or 1)
    for phase in ("forward", "backward"):
        sizes = [use.phases[phase] for use in later if phase in use.phases]
        if sizes and max(sizes) > held_bytes:
            slope = (max(sizes) - held_bytes) / tokens
            yield phase, PhaseFit.through(phase, held_bytes, slope, num_steps=len(sizes), most_tokens=tokens)
