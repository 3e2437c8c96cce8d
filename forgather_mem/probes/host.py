"""Host memory of this process, and how close it is to the limit that would kill it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from forgather_mem.errors import missing
from forgather_mem.probes.budgeted import Budgeted
from forgather_mem.system.headroom import HostRooms
from forgather_mem.system.installed import installed
from forgather_mem.system.peak_windows import HostMark, PeakWindows, host_peaks
from forgather_mem.system.procfs import PAGE_BYTES, kib_fields, own_memory, read_once
from forgather_mem.system.time_budget import BUDGET_FRAC, RareReadings, TimeBudget, backed_off
from forgather_mem.telemetry.records import RISEN, Moment, RunInfo, Sample, Work
from forgather_mem.units import format_bytes, format_duration

resource = installed("resource")
_IN_STATUS = {b"VmSize": "host/vms_bytes", b"RssShmem": "host/shmem_bytes", b"VmSwap": "host/swap_bytes"}
LIMIT_EVERY_S = 1.0
PSS_MOST_S = 0.05
_PSS_S_PER_BYTE = 1e-11  # at least: 40 ms at 4.3 GB; measured at every reading


@dataclass(unsafe_hash=True)
class HostProbe(Budgeted):
    """Resident memory, its peak and the applicable limit; less often PSS, shared memory, swap, faults, pressure.

    Every call returns RSS, anonymous memory and the run's peak (about 4 us). The limit is read once a second, the rest
    every `slow_every_s`, or less often if that would take over 0.1 % of the time; between readings their names are
    absent.

    `host/rss_peak_bytes` is the run's own maximum: resets of the kernel's mark by this library don't affect it, and a
    peak from before the run does not count. A spike between two calls that stays below such an older peak is missed,
    unless a measuring window of this library was open.

    Args:
        slow_every_s: Seconds between the less frequent readings.
        limits: Read how much of the limit is used, and what is left.
        pss: Read the proportional set size, unless that would take over 50 ms.
        budget_frac: The fraction of the time that each of the less frequent readings may take.
        proc_root: Location of the kernel's files; for tests.
        cgroup_root: The same.

    Raises:
        ValueError: for a period or budget that is not positive.
    """

    slow_every_s: float = 10.0
    _: KW_ONLY
    limits: bool = True
    pss: bool = True
    budget_frac: float = BUDGET_FRAC
    proc_root: str = "/proc"
    cgroup_root: str = "/sys/fs/cgroup"

    def begin(self, run: RunInfo) -> Work:
        peaks = host_peaks()
        if peaks is None:  # all that is read where the kernel keeps no mark
            return lambda moment, sample: {"host/rss_bytes": own_memory().resident_bytes}
        return _Host(self, peaks, run)


class _Host:
    """The probe in one run."""

    def __init__(self, probe: HostProbe, peaks: PeakWindows[HostMark], run: RunInfo) -> None:
        self._rare = RareReadings()
        self._pss_skipped_at_bytes = 0
        self._peaks = peaks
        self._window = peaks.open(reset=False)
        run.at_close(lambda: self._close(run))
        self._told_bytes = 0  # the peak returned last
        self._own = Path(probe.proc_root) / "self"
        self._rooms = HostRooms(probe.proc_root, probe.cgroup_root)
        self._pss_s_per_byte = _PSS_S_PER_BYTE
        rare = [("swap, faults, pressure and /dev/shm", probe.slow_every_s, 0.0, self._slow_values)]
        if probe.limits:
            rare.append(("the memory limit", LIMIT_EVERY_S, 0.0, self._limit_values))
        if probe.pss:
            pss_s = 2 * own_memory().resident_bytes * _PSS_S_PER_BYTE  # the first is a guess: rather too much
            rare.append(("PSS", probe.slow_every_s, pss_s, self._pss_values))
        self._rare += (
            (what, TimeBudget(every_s, budget_frac=probe.budget_frac, expected_s=expected_s), reading)
            for what, every_s, expected_s, reading in rare
        )

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        with self._peaks.held():
            fields = self._peaks.mark.statm.read(128).split()
            rss = int(fields[1]) * PAGE_BYTES
            self._peaks.fold((rss, self._peaks.mark.peak_bytes(rss)))
        if self._window.closed:  # in a forked child, which has other memory
            self._window = self._peaks.open(reset=False)
            return self(moment, sample)
        self._told_bytes = peak = self._window.seen_bytes
        values: dict[str, float] = {
            "host/rss_bytes": rss, "host/rss_peak_bytes": peak, "host/anon_bytes": rss - int(fields[2]) * PAGE_BYTES,
        }  # fmt: skip
        return values | self._rare.take()

    def is_urgent(self) -> bool:
        """Whether the process is larger than at any earlier reading (1 us)."""
        peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return peak > RISEN * self._told_bytes and self._peaks.mark.peak_bytes(0) == peak

    def _close(self, run: RunInfo) -> None:
        """Report readings that were taken less often than asked, or not at all."""
        self._window.close()
        self._rare.tell(run)
        if self._pss_skipped_at_bytes:
            size, most = format_bytes(self._pss_skipped_at_bytes), format_duration(PSS_MOST_S)
            text = f"PSS: not read at {size} resident; that would have taken more than {most}"
            run.emit(backed_off(run, "PSS", text))

    def _limit_values(self) -> dict[str, float]:
        room = next(iter(self._rooms.read()), None)
        if room is None:  # a kernel that tells neither
            return {}
        limit = room.used_bytes + room.free_bytes
        return {"host/limit_used_frac": room.used_bytes / limit, "host/available_bytes": room.free_bytes}

    def _slow_values(self) -> dict[str, float]:
        fields = kib_fields(read_once(self._own / "status"))
        values: dict[str, float] = {"host/major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt}
        values |= {name: fields[key] for key, name in _IN_STATUS.items() if key in fields}
        with missing(OSError):  # a system without /dev/shm
            shm = os.statvfs("/dev/shm")
            values["host/shm_bytes"] = (shm.f_blocks - shm.f_bfree) * shm.f_frsize
        with missing(OSError):  # a kernel without PSI: the file is missing or can't be read
            values["host/pressure_frac"] = some_pressure_frac(read_once(self._rooms.pressure))
        return values

    def _pss_values(self) -> dict[str, float]:
        rss = own_memory().resident_bytes
        if rss * self._pss_s_per_byte > PSS_MOST_S:
            self._pss_skipped_at_bytes = rss
            return {}
        began_s = time.perf_counter()
        with missing(OSError, KeyError):  # a kernel without smaps_rollup
            pss = kib_fields(read_once(self._own / "smaps_rollup"))[b"Pss"]
            self._pss_s_per_byte = max(_PSS_S_PER_BYTE, (time.perf_counter() - began_s) / rss)
            return {"host/pss_bytes": pss}
        return {}


def some_pressure_frac(text: bytes) -> float:
    """The fraction of the last 10 s in which some task waited, from a PSI file.

    >>> some_pressure_frac(b"some avg10=12.50 avg60=3.00 avg300=0.00 total=7\\nfull avg10=0.00 ...")
    0.125
    """
    return float(text.split(b"avg10=", 1)[1].split(b" ", 1)[0]) / 100
