"""The accelerator's memory: what this process holds, its peak, and what is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass

from forgather_mem.probes.budgeted import Budgeted
from forgather_mem.system.allocator import Allocator, Nested, driver_memory, gauge, has_accelerator, used_allocators
from forgather_mem.system.headroom import room_of
from forgather_mem.system.nvml import other_processes_bytes
from forgather_mem.system.peak_windows import peaks_of
from forgather_mem.system.time_budget import BUDGET_FRAC, RareReadings, TimeBudget
from forgather_mem.telemetry.records import RISEN, Moment, RunInfo, Sample, Work

HEADROOM_EVERY_S = 1.0
OTHERS_EVERY_S = 1.0  # how often other devices are looked for


@dataclass(unsafe_hash=True)
class DeviceProbe(Budgeted):
    """The device allocator's numbers from one nested reading, and what the driver says is left.

    Returns nothing without an accelerator, or before the training has used it: a device is never initialised and never
    waited for. Numbers that an allocator does not keep (peaks on MPS, retries under cudaMallocAsync) are absent.

    `device/` is the current device. Others on which this process holds memory are looked for once a second, and then
    read as often as it, as `device1/` and so on: 15 us more for each.

    Args:
        reset_peaks: Reset the allocator's peak at every call, so that `device/step_peak_bytes` is this step's; other
            readers of the peak in this process see the reset. Without it the value is the allocator's own peak, absent
            while that may be from before the run.
        headroom: Query the driver for what is left, once a second (up to 0.1 ms).
        others: Query NVML for the memory of other processes on this device (needs the nvml extra).
        budget_frac: The fraction of the time that queries to the driver may take.

    Raises:
        ValueError: for a budget that is not positive.
    """

    reset_peaks: bool = False
    _: KW_ONLY
    headroom: bool = True
    others: bool = False
    budget_frac: float = BUDGET_FRAC

    def begin(self, run: RunInfo) -> Work:
        return _Devices(self, run)


class _Devices:
    """The probe in one run."""

    def __init__(self, probe: DeviceProbe, run: RunInfo) -> None:
        self._probe = probe
        self._run = run
        self._devices: dict[str, _Device] = {}  # by family: "device", the current one, and "device1"
        self._never = not has_accelerator()
        self._find()

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if not self._never and (not self._devices or time.perf_counter() >= self._find_at_s):
            self._find()
        values: dict[str, float] = {}
        for family, device in self._devices.items():
            new = device.read()
            values |= new if family == "device" else {family + name[len("device") :]: new[name] for name in new}
        return values

    def is_urgent(self) -> bool:
        """Whether more is allocated than at any earlier reading: one nested reading."""
        return any(device.risen() for device in self._devices.values())

    def _find(self) -> None:
        """Begin with the devices that this process has used since the last look."""
        began_s = time.perf_counter()
        known = {device.allocator.index for device in self._devices.values()}
        for allocator in used_allocators():  # the current one comes first
            if allocator.index not in known:
                family = f"device{allocator.index}" if self._devices else "device"
                self._devices[family] = _Device(self._probe, allocator, self._run)
        now_s = time.perf_counter()
        self._find_at_s = now_s + max(OTHERS_EVERY_S, (now_s - began_s) / self._probe.budget_frac)


class _Device:
    """The state of a probe during one run on one device."""

    def __init__(self, probe: DeviceProbe, allocator: Allocator, run: RunInfo) -> None:
        self.allocator = allocator
        peaks = peaks_of(allocator)
        self.held: Callable[[], AbstractContextManager[object]] = nullcontext if peaks is None else peaks.held
        self._reset = probe.reset_peaks
        self._window = None if peaks is None else peaks.open(reset=probe.reset_peaks)
        self._told_bytes = 0  # the highest peak seen here
        _, self._total_bytes = driver_memory(allocator) or (0, 0)
        self._rare = RareReadings()
        has_headroom = probe.headroom and allocator.memory_info is not None
        rare = [("what is left on the device", self._headroom)] * has_headroom
        rare += [("what other processes hold on the device", self._others)] * probe.others
        self._rare += ((what, TimeBudget(HEADROOM_EVERY_S, budget_frac=probe.budget_frac), read) for what, read in rare)
        run.at_close(lambda: self._close(run))

    def read(self) -> dict[str, float]:
        """All numbers that are due, by their names for the current device."""
        with self.held():
            stats = self.allocator.stats()
            values = self.values(stats)
        return values | self._rare.take(stats) if values else values

    def values(self, stats: Nested) -> dict[str, float]:
        """The numbers of one nested reading."""
        allocated, reserved = gauge(stats, "allocated_bytes"), gauge(stats, "reserved_bytes")
        if allocated is None or reserved is None:  # an allocator that keeps no statistics
            return {}
        values: dict[str, float] = {"device/allocated_bytes": allocated, "device/reserved_bytes": reserved}
        window = self._window
        if window is not None:
            reading = (allocated, gauge(stats, "allocated_bytes", "peak") or allocated)
            peak = window.look(reading)
            self._told_bytes = max(self._told_bytes, reading[1])
            if window.exact or (window.risen and not self._reset):
                values["device/step_peak_bytes"] = peak
            if self._reset:
                window.restart(reading)
        if self._total_bytes:
            values["device/reserved_frac"] = reserved / self._total_bytes
        if reserved:
            values["device/unused_frac"] = (reserved - allocated) / reserved
        if self.allocator.counts_retries and "num_ooms" in stats:
            values["device/alloc_retries"] = stats["num_alloc_retries"]
            values["device/ooms"] = stats["num_ooms"]
        return values

    def risen(self) -> bool:
        """Whether the peak is above all earlier ones."""
        peak = gauge(self.allocator.stats(), "allocated_bytes", "peak")
        return self._window is not None and peak is not None and peak > RISEN * self._told_bytes

    def _close(self, run: RunInfo) -> None:
        """Report readings that were taken less often than asked."""
        if self._window is not None:
            self._window.close()
        self._rare.tell(run)

    def _headroom(self, stats: Nested) -> dict[str, float]:
        room = room_of(self.allocator, stats)
        return {} if room is None else {"device/headroom_bytes": room.free_bytes}

    def _others(self, stats: Nested) -> dict[str, float]:
        others = other_processes_bytes(self.allocator)
        return {} if others is None else {"device/others_bytes": others}
