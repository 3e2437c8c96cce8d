"""What is measured: the one table of sample names, their TensorBoard tags, units and meaning.

A sample holds bytes, seconds, fractions and counts under the names on the left (used in rules); TensorBoard shows GiB,
ms and per cent under the tags. docs/metrics.md, the tag descriptions and the checks of `Above("...")` all come from
this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from forgather_mem.errors import did_you_mean
from forgather_mem.telemetry.events import PHASES
from forgather_mem.units import GIB

# A gauge is a current value; a flow is what was added in the step (summed within a step); a total only grows.
GAUGE, FLOW, TOTAL = "gauge", "flow", "total"
_MAX_DIGITS = 4  # of a device's index


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One measured quantity.

    Attributes:
        name: Sample name, as used in rules. A `{}` stands for a phase name.
        tag: TensorBoard tag without the group prefix `mem_`; `gpu` in it becomes `gpu{i}`.
        factor: Converts the sample value to the tag's unit.
        unit: The unit on the TensorBoard page.
        kind: GAUGE, FLOW or TOTAL.
        running: "max" or "min" if the tag shows the run's extreme so far instead of the value.
        cadence: "slow" for gauges that are read only now and then, at whichever event they are due: these have one tag,
            while others have one for the steps and one for each other event at which they are read.
        extreme_tag: A second tag with the run's maximum so far, for gauges that spike (TensorBoard keeps
            1000 random points of a tag, so a spike alone would vanish).
        meaning: Formula and source, one sentence.
    """

    name: str
    tag: str
    factor: float
    unit: str
    meaning: str
    kind: str = GAUGE
    running: str = ""
    cadence: str = ""
    extreme_tag: str = ""


# By the end of a sample name: that of its tag, the factor to the tag's unit, and the unit
_UNITS = {"_bytes": ("_gib", 1 / GIB, "GiB"), "_frac": ("_pct", 100.0, "%"), "_s": ("_ms", 1e3, "ms")}


def _row(name: str, meaning: str, *, tag: str = "", factor: float = 0.0, unit: str = "", **more: str) -> Metric:
    """A metric whose tag, factor and unit follow from its name, where they are not given.

    TensorBoard groups by the first segment only: a tag has one slash.
    """
    suffix = next((one for one in _UNITS if name.endswith(one)), "")
    shown, usual_factor, usual_unit = _UNITS.get(suffix, ("", 1.0, "count"))
    group, _, rest = name.partition("/") if "/" in name else ("custom", "", name)
    usual_tag = f"{'gpu' if group == 'device' else group}/{rest.replace('/', '_').removesuffix(suffix)}{shown}"
    return Metric(
        name=name,
        tag=tag or usual_tag,
        factor=factor or usual_factor,
        unit=unit or usual_unit,
        meaning=meaning,
        **more,
    )


METRICS: tuple[Metric, ...] = (
    _row("host/rss_bytes", "Resident memory of this process (/proc/self/statm, resident)."),
    _row(
        "host/rss_peak_bytes",
        "Highest resident memory of this run so far; our own maximum, which no reset of the kernel's mark affects.",
        running="max",
    ),
    _row(
        "host/anon_bytes",
        "Anonymous resident memory (statm resident - shared): neither mapped files nor shared memory, see shmem.",
    ),
    _row(
        "host/limit_used_frac",
        "Used share of the limit that leaves the least: of any control group above (v1 or v2, without inactive_file), "
        "the machine, or this process (RLIMIT_AS, RLIMIT_DATA).",
        cadence="slow",
    ),
    _row(
        "host/available_bytes",
        "The least that any limit leaves: a control group's, the machine's MemAvailable, or this process's own. All "
        "processes under that limit share it.",
        cadence="slow",
    ),
    _row(
        "host/children_pss_bytes",
        "Proportional set size of all child processes: shared pages are counted once. Read within a time budget.",
        tag="host/children_gib",
        cadence="slow",
    ),
    _row(
        "host/other_children_pss_bytes",
        "The part of it in children that are not data workers: torch.compile's pool, loggers, your own pools.",
        tag="host/other_children_gib",
        cadence="slow",
    ),
    _row("host/other_children", "Child processes that are not data workers.", cadence="slow"),
    _row(
        "host/shm_bytes",
        "Used space of /dev/shm, by whichever process of any user that sees the same one: the machine's or the "
        "container's. Data workers pass tensors there; what this process holds of it is shmem.",
        cadence="slow",
    ),
    _row(
        "host/shmem_bytes",
        "Shared memory that this process maps and has touched (RssShmem): batches of data workers that it keeps.",
        cadence="slow",
    ),
    _row("host/vms_bytes", "Virtual size of this process (statm size); slow cadence.", cadence="slow"),
    _row("host/swap_bytes", "Swapped-out memory of this process (VmSwap); slow cadence.", cadence="slow"),
    _row("host/major_faults", "Page faults that read from disk (getrusage).", kind=TOTAL),
    _row(
        "host/pss_bytes", "Proportional set size of this process (smaps_rollup), within a time budget.", cadence="slow"
    ),
    _row(
        "host/pressure_frac",
        "Share of the last 10 s in which some task waited for memory (PSI, some avg10).",
        cadence="slow",
    ),
    _row("device/allocated_bytes", "Bytes of live tensors in the device allocator."),
    _row("device/reserved_bytes", "Bytes the allocator holds from the driver."),
    _row(
        "device/step_peak_bytes",
        "Allocator peak since the last step (reset every step unless reset_peaks is false).",
        extreme_tag="gpu/peak_gib",
    ),
    _row("device/reserved_frac", "reserved / total memory of the device."),
    _row(
        "device/unused_frac",
        "(reserved - allocated) / reserved: the allocator's cache, which later tensors use again. Not a measure of "
        "fragmentation: it is high after every large tensor that was freed.",
    ),
    _row(
        "device/headroom_bytes",
        "Driver free (within set_per_process_memory_fraction) + reserved - allocated, without free blocks of private "
        "pools, at the end of a step; lowest so far. An upper bound: the next step's peak comes on top, and one large "
        "tensor may find no gap that is large enough.",
        running="min",
    ),
    _row("device/alloc_retries", "Allocations that succeeded only after the cache was cleared.", kind=TOTAL),
    _row("device/ooms", "Out-of-memory errors the allocator raised.", kind=TOTAL),
    _row("device/others_bytes", "Memory of other processes on this device (needs the nvml extra).", cadence="slow"),
    _row(
        "phase/host/{}_peak_bytes",
        "Highest resident memory while in this phase (kernel mark, opt-in).",
        tag="phase_host/{}_gib",
    ),
    _row("phase/device/{}_peak_bytes", "Allocator peak while in this phase.", tag="phase_gpu/{}_gib"),
    _row("gc/pause_s", "Time inside Python's collector since the step before, all causes.", kind=FLOW),
    _row(
        "gc/pause_total_s",
        "Time inside Python's collector since the run began.",
        factor=1.0,
        unit="s",
        tag="gc/pause_total_s",
        kind=TOTAL,
    ),
    _row("gc/pause_max_s", "Longest single collection since the run began.", running="max"),
    _row("gc/collections", "Full collections (oldest generation) since the run began.", kind=TOTAL),
    _row(
        "gc/tracked",
        "Objects that the collector tracks, frozen ones included; slow cadence.",
        factor=1e-3,
        unit="thousand",
        tag="gc/tracked_k",
        cadence="slow",
    ),
    _row(
        "cache/clears",
        "Device cache clears by our callbacks since the run began.",
        tag="cache/clears_total",
        kind=TOTAL,
    ),
    _row(
        "cache/freed_bytes",
        "By how much what the allocator holds from the driver shrank in the clears of this step.",
        kind=FLOW,
    ),
    _row(
        "cache/time_s",
        "Time the clears of this step took. A clear first waits for the kernels that the training has queued, so most "
        "of it may be the training's own.",
        kind=FLOW,
    ),
    _row(
        "collect/freed_bytes",
        "By how much anonymous memory shrank during our callbacks' collections of this step; what glibc keeps of what "
        "was freed is not in it.",
        kind=FLOW,
    ),
    _row("collect/time_s", "Time those collections took.", kind=FLOW),
    _row("collect/objects", "Unreachable objects that those collections found.", kind=FLOW),
    _row(
        "trim/freed_bytes",
        "By how much resident memory shrank during malloc_trim in this step: what other threads free and allocate "
        "meanwhile is in it, too.",
        kind=FLOW,
    ),
    _row("trim/time_s", "Time malloc_trim took in this step.", kind=FLOW),
    _row(
        "tensors/parameters_bytes",
        "Storages of the model's parameters on this rank, each counted once; under DeepSpeed's ZeRO-3 their shards.",
        cadence="slow",
    ),
    _row("tensors/gradients_bytes", "Storages of the gradients, read before the optimizer step.", cadence="slow"),
    _row("tensors/optimizer_bytes", "Tensors in the optimizer's state.", cadence="slow"),
    _row("tensors/buffers_bytes", "The model's buffers.", cadence="slow"),
    _row(
        "tensors/activations_bytes",
        "What a forward pass on the host has left allocated for the backward pass, counted by the C library's "
        "allocator; the most of a step. In the first 16 steps.",
    ),
    _row("workers/own_bytes", "Private memory of data workers that they allocated themselves.", cadence="slow"),
    _row(
        "workers/cow_bytes",
        "Pages of this process that workers made private by touching them (copy-on-write).",
        cadence="slow",
    ),
    _row(
        "workers/pss_bytes", "Proportional set size of the data workers: shared pages are counted once.", cadence="slow"
    ),
    _row(
        "workers/count",
        "Data workers alive: children that run the worker loop of a torch DataLoader, and what these started.",
        cadence="slow",
    ),
    _row("step/time_s", "Wall time since the last step's end (monotonic clock)."),
    _row(
        "step/self_s",
        "Our own time in this step: of the processor, and waits for a disk or a device.",
        factor=1e6,
        unit="us",
        tag="step/self_us",
        kind=FLOW,
    ),
    _row(
        "step/startup_s",
        "From the start of the process to the first step of its first training; once. A loop that knows nothing of us "
        "is heard from its first optimizer step on.",
        factor=1.0,
        unit="s",
        tag="step/startup_s",
    ),
    _row("ranks/allocated_min_bytes", "Lowest device allocation over the ranks."),
    _row("ranks/allocated_max_bytes", "Highest device allocation over the ranks."),
    _row("ranks/reserved_min_bytes", "Lowest reserved device memory over the ranks."),
    _row("ranks/reserved_max_bytes", "Highest reserved device memory over the ranks."),
    _row("ranks/rss_min_bytes", "Lowest resident memory over the ranks."),
    _row("ranks/rss_max_bytes", "Highest resident memory over the ranks."),
    _row("ranks/argmax", "The rank with the highest resident or allocated memory."),
    _row("ranks/count", "Ranks that these numbers are of: those that have written lately."),
    _row(
        "ranks/host_sum_bytes",
        "Resident memory of all ranks on rank 0's machine together; pages that they share count for each.",
    ),
    _row("ranks/host_sum_frac", "The same / the smallest limit that applies, which all of them share."),
)

_BY_NAME = {metric.name: metric for metric in METRICS}
_FAMILIES = tuple(sorted({name.split("/")[0] for name in _BY_NAME}))


def every_metric() -> Iterator[Metric]:
    """The table's rows, those of phases once for each phase."""
    for row in METRICS:
        if "{}" in row.name:
            yield from (metric_of(row.name.format(phase)) for phase in PHASES)
        else:
            yield row


def metric_of(name: str) -> Metric:
    """The table's row for a sample name; a user-defined name gets a row by its suffix.

    >>> metric_of("host/rss_bytes").tag, metric_of("phase/host/save_peak_bytes").tag
    ('host/rss_gib', 'phase_host/save_gib')
    >>> metric_of("device1/headroom_bytes").tag
    'gpu1/headroom_gib'
    >>> metric_of("mine/cache_bytes").tag, metric_of("queue_len").tag
    ('mine/cache_gib', 'custom/queue_len')
    """
    found = _BY_NAME.get(name)
    if found is not None:
        return found
    other = other_device(name)
    if other is not None and (found := _BY_NAME.get(other[1])) is not None:
        tag, extreme = (one.replace("gpu/", f"gpu{other[0]}/") for one in (found.tag, found.extreme_tag))
        return replace(found, name=name, tag=tag, extreme_tag=extreme)
    phase = _phase_metric(name)
    if phase is not None:
        return phase
    return _row(name, "A metric of your own.")


def other_device(name: str) -> tuple[int, str] | None:
    """For a metric of another device than the current one: that device's index, and the current device's metric.

    >>> other_device("device1/headroom_bytes"), other_device("device/headroom_bytes")
    ((1, 'device/headroom_bytes'), None)
    """
    family, _, rest = name.partition("/")
    index = family.removeprefix("device")
    if index == family or not rest or not (index.isascii() and index.isdecimal() and len(index) <= _MAX_DIGITS):
        return None
    return int(index), f"device/{rest}"


def name_on_current(name: str) -> str:
    """The name of this metric for the current device; of anything else, its own.

    >>> name_on_current("device12/reserved_bytes"), name_on_current("host/rss_bytes")
    ('device/reserved_bytes', 'host/rss_bytes')
    """
    other = other_device(name) if name.startswith("device") else None
    return name if other is None else other[1]


def _phase_metric(name: str) -> Metric | None:
    for where in ("host", "device"):
        head, tail = f"phase/{where}/", "_peak_bytes"
        if name.startswith(head) and name.endswith(tail):
            row, phase = _BY_NAME[f"{head}{{}}{tail}"], name[len(head) : -len(tail)]
            return _row(name, row.meaning, tag=row.tag.format(phase))
    return None


def check_name(name: str) -> None:
    """Refuse a misspelt name of one of our own families; user-defined families pass.

    Raises:
        ValueError: with the closest name, or the family's names.
    """
    family = name_on_current(name).split("/")[0]
    if name_on_current(name) in _BY_NAME or family not in _FAMILIES or _phase_metric(name) is not None:
        return
    known = [known for known in _BY_NAME if known.startswith(family + "/")]
    hint = did_you_mean(name, known) or f"{family}/ has: {', '.join(known)}"
    raise ValueError(f"there is no sample named {name!r}; {hint}")
