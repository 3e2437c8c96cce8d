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
_TO_GIB = 1 / GIB  # one shared object: repeated numbers stay in the caches


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


def _gib(name: str, tag: str, meaning: str, **more: str) -> Metric:
    return Metric(name=name, tag=tag, factor=_TO_GIB, unit="GiB", meaning=meaning, **more)


def _pct(name: str, tag: str, meaning: str, **more: str) -> Metric:
    return Metric(name=name, tag=tag, factor=100.0, unit="%", meaning=meaning, **more)


def _count(name: str, tag: str, meaning: str, **more: str) -> Metric:
    return Metric(name=name, tag=tag, factor=1.0, unit="count", meaning=meaning, **more)


def _time(name: str, tag: str, factor: float, unit: str, meaning: str, **more: str) -> Metric:
    return Metric(name=name, tag=tag, factor=factor, unit=unit, meaning=meaning, **more)


METRICS: tuple[Metric, ...] = (
    _gib("host/rss_bytes", "host/rss_gib", "Resident memory of this process (/proc/self/statm, resident)."),
    _gib(
        "host/rss_peak_bytes",
        "host/rss_peak_gib",
        "Highest resident memory of this run so far; our own maximum, which no reset of the kernel's mark affects.",
        running="max",
    ),
    _gib(
        "host/anon_bytes",
        "host/anon_gib",
        "Anonymous resident memory (statm resident - shared): neither mapped files nor shared memory, see shmem.",
    ),
    _pct(
        "host/limit_used_frac",
        "host/limit_used_pct",
        "Used share of the limit that leaves the least: of any control group above (v1 or v2, without inactive_file), "
        "the machine, or this process (RLIMIT_AS, RLIMIT_DATA).",
        cadence="slow",
    ),
    _gib(
        "host/available_bytes",
        "host/available_gib",
        "The least that any limit leaves: a control group's, the machine's MemAvailable, or this process's own. All "
        "processes under that limit share it.",
        cadence="slow",
    ),
    _gib(
        "host/children_pss_bytes",
        "host/children_gib",
        "Proportional set size of all child processes: shared pages are counted once. Read within a time budget.",
        cadence="slow",
    ),
    _gib(
        "host/other_children_pss_bytes",
        "host/other_children_gib",
        "The part of it in children that are not data workers: torch.compile's pool, loggers, your own pools.",
        cadence="slow",
    ),
    _count("host/other_children", "host/other_children", "Child processes that are not data workers.", cadence="slow"),
    _gib(
        "host/shm_bytes",
        "host/shm_gib",
        "Used space of /dev/shm, by whichever process of any user that sees the same one: the machine's or the "
        "container's. Data workers pass tensors there; what this process holds of it is shmem.",
        cadence="slow",
    ),
    _gib(
        "host/shmem_bytes",
        "host/shmem_gib",
        "Shared memory that this process maps and has touched (RssShmem): batches of data workers that it keeps.",
        cadence="slow",
    ),
    _gib("host/vms_bytes", "host/vms_gib", "Virtual size of this process (statm size); slow cadence.", cadence="slow"),
    _gib(
        "host/swap_bytes", "host/swap_gib", "Swapped-out memory of this process (VmSwap); slow cadence.", cadence="slow"
    ),
    _count("host/major_faults", "host/major_faults", "Page faults that read from disk (getrusage).", kind=TOTAL),
    _gib(
        "host/pss_bytes",
        "host/pss_gib",
        "Proportional set size of this process (smaps_rollup), within a time budget.",
        cadence="slow",
    ),
    _pct(
        "host/pressure_frac",
        "host/pressure_pct",
        "Share of the last 10 s in which some task waited for memory (PSI, some avg10).",
        cadence="slow",
    ),
    _gib("device/allocated_bytes", "gpu/allocated_gib", "Bytes of live tensors in the device allocator."),
    _gib("device/reserved_bytes", "gpu/reserved_gib", "Bytes the allocator holds from the driver."),
    _gib(
        "device/step_peak_bytes",
        "gpu/step_peak_gib",
        "Allocator peak since the last step (reset every step unless reset_peaks is false).",
        extreme_tag="gpu/peak_gib",
    ),
    _pct("device/reserved_frac", "gpu/reserved_pct", "reserved / total memory of the device."),
    _pct(
        "device/unused_frac",
        "gpu/unused_pct",
        "(reserved - allocated) / reserved: the allocator's cache, which later tensors use again. Not a measure of "
        "fragmentation: it is high after every large tensor that was freed.",
    ),
    _gib(
        "device/headroom_bytes",
        "gpu/headroom_gib",
        "Driver free (within set_per_process_memory_fraction) + reserved - allocated, without free blocks of private "
        "pools, at the end of a step; lowest so far. An upper bound: the next step's peak comes on top, and one large "
        "tensor may find no gap that is large enough.",
        running="min",
    ),
    _count(
        "device/alloc_retries",
        "gpu/alloc_retries",
        "Allocations that succeeded only after the cache was cleared.",
        kind=TOTAL,
    ),
    _count("device/ooms", "gpu/ooms", "Out-of-memory errors the allocator raised.", kind=TOTAL),
    _gib(
        "device/others_bytes",
        "gpu/others_gib",
        "Memory of other processes on this device (needs the nvml extra).",
        cadence="slow",
    ),
    _gib(
        "phase/host/{}_peak_bytes",
        "phase_host/{}_gib",
        "Highest resident memory while in this phase (kernel mark, opt-in).",
    ),
    _gib("phase/device/{}_peak_bytes", "phase_gpu/{}_gib", "Allocator peak while in this phase."),
    _time(
        "gc/pause_s",
        "gc/pause_ms",
        1e3,
        "ms",
        "Time inside Python's collector since the step before, all causes.",
        kind=FLOW,
    ),
    _time(
        "gc/pause_total_s",
        "gc/pause_total_s",
        1.0,
        "s",
        "Time inside Python's collector since the run began.",
        kind=TOTAL,
    ),
    _time(
        "gc/pause_max_s",
        "gc/pause_max_ms",
        1e3,
        "ms",
        "Longest single collection since the run began.",
        running="max",
    ),
    _count(
        "gc/collections",
        "gc/collections",
        "Full collections (oldest generation) since the run began.",
        kind=TOTAL,
    ),
    _time(
        "gc/tracked",
        "gc/tracked_k",
        1e-3,
        "thousand",
        "Objects that the collector tracks, frozen ones included; slow cadence.",
        cadence="slow",
    ),
    _count(
        "cache/clears",
        "cache/clears_total",
        "Device cache clears by our callbacks since the run began.",
        kind=TOTAL,
    ),
    _gib(
        "cache/freed_bytes",
        "cache/freed_gib",
        "By how much what the allocator holds from the driver shrank in the clears of this step.",
        kind=FLOW,
    ),
    _time(
        "cache/time_s",
        "cache/time_ms",
        1e3,
        "ms",
        "Time the clears of this step took. A clear first waits for the kernels that the training has queued, so most "
        "of it may be the training's own.",
        kind=FLOW,
    ),
    _gib(
        "collect/freed_bytes",
        "collect/freed_gib",
        "By how much anonymous memory shrank during our callbacks' collections of this step; what glibc keeps of what "
        "was freed is not in it.",
        kind=FLOW,
    ),
    _time("collect/time_s", "collect/time_ms", 1e3, "ms", "Time those collections took.", kind=FLOW),
    _count("collect/objects", "collect/objects", "Unreachable objects that those collections found.", kind=FLOW),
    _gib(
        "trim/freed_bytes",
        "trim/freed_gib",
        "By how much resident memory shrank during malloc_trim in this step: what other threads free and allocate "
        "meanwhile is in it, too.",
        kind=FLOW,
    ),
    _time("trim/time_s", "trim/time_ms", 1e3, "ms", "Time malloc_trim took in this step.", kind=FLOW),
    _gib(
        "tensors/parameters_bytes",
        "tensors/parameters_gib",
        "Storages of the model's parameters on this rank, each counted once; under DeepSpeed's ZeRO-3 their shards.",
        cadence="slow",
    ),
    _gib(
        "tensors/gradients_bytes",
        "tensors/gradients_gib",
        "Storages of the gradients, read before the optimizer step.",
        cadence="slow",
    ),
    _gib("tensors/optimizer_bytes", "tensors/optimizer_gib", "Tensors in the optimizer's state.", cadence="slow"),
    _gib("tensors/buffers_bytes", "tensors/buffers_gib", "The model's buffers.", cadence="slow"),
    _gib(
        "tensors/activations_bytes",
        "tensors/activations_gib",
        "What a forward pass on the host has left allocated for the backward pass, counted by the C library's "
        "allocator; the most of a step. In the first 16 steps.",
    ),
    _gib(
        "workers/own_bytes",
        "workers/own_gib",
        "Private memory of data workers that they allocated themselves.",
        cadence="slow",
    ),
    _gib(
        "workers/cow_bytes",
        "workers/cow_gib",
        "Pages of this process that workers made private by touching them (copy-on-write).",
        cadence="slow",
    ),
    _gib(
        "workers/pss_bytes",
        "workers/pss_gib",
        "Proportional set size of the data workers: shared pages are counted once.",
        cadence="slow",
    ),
    _count(
        "workers/count",
        "workers/count",
        "Data workers alive: children that run the worker loop of a torch DataLoader, and what these started.",
        cadence="slow",
    ),
    _time("step/time_s", "step/time_ms", 1e3, "ms", "Wall time since the last step's end (monotonic clock)."),
    _time(
        "step/self_s",
        "step/self_us",
        1e6,
        "us",
        "Our own time in this step: of the processor, and waits for a disk or a device.",
        kind=FLOW,
    ),
    _time(
        "step/startup_s",
        "step/startup_s",
        1.0,
        "s",
        "From the start of the process to the first step of its first training; once. A loop that knows nothing of us "
        "is heard from its first optimizer step on.",
    ),
    _gib("ranks/allocated_min_bytes", "ranks/allocated_min_gib", "Lowest device allocation over the ranks."),
    _gib("ranks/allocated_max_bytes", "ranks/allocated_max_gib", "Highest device allocation over the ranks."),
    _gib("ranks/reserved_min_bytes", "ranks/reserved_min_gib", "Lowest reserved device memory over the ranks."),
    _gib("ranks/reserved_max_bytes", "ranks/reserved_max_gib", "Highest reserved device memory over the ranks."),
    _gib("ranks/rss_min_bytes", "ranks/rss_min_gib", "Lowest resident memory over the ranks."),
    _gib("ranks/rss_max_bytes", "ranks/rss_max_gib", "Highest resident memory over the ranks."),
    _count("ranks/argmax", "ranks/argmax", "The rank with the highest resident or allocated memory."),
    _count("ranks/count", "ranks/count", "Ranks that these numbers are of: those that have written lately."),
    _gib(
        "ranks/host_sum_bytes",
        "ranks/host_sum_gib",
        "Resident memory of all ranks on rank 0's machine together; pages that they share count for each.",
    ),
    _pct(
        "ranks/host_sum_frac",
        "ranks/host_sum_pct",
        "The same / the smallest limit that applies, which all of them share.",
    ),
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
    group, _, rest = name.partition("/") if "/" in name else ("custom", "", name)
    rest = rest.replace("/", "_")  # TensorBoard groups by the first segment only: one slash
    for suffix, make, shown in (("_bytes", _gib, "_gib"), ("_frac", _pct, "_pct")):
        if rest.endswith(suffix):
            return make(name, f"{group}/{rest.removesuffix(suffix)}{shown}", "A metric of your own.")
    if rest.endswith("_s"):
        return _time(name, f"{group}/{rest[:-2]}_ms", 1e3, "ms", "A metric of your own.")
    return _count(name, f"{group}/{rest}", "A metric of your own.")


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
            return _gib(name, row.tag.format(phase), row.meaning)
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
