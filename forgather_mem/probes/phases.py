"""Peak memory in each phase of a step: forward, backward, optimizer, save, ..."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from forgather_mem.probes.budgeted import Budgeted
from forgather_mem.probes.tensors import storages_of, values_of
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import with_callers
from forgather_mem.system.forks import FORKS
from forgather_mem.system.native_heap import allocated_natively_bytes
from forgather_mem.system.peak_windows import PeakWindow, device_peaks, host_peaks
from forgather_mem.system.process_start import process_age_s
from forgather_mem.system.time_budget import TimeBudget
from forgather_mem.telemetry.records import OWN_BUDGET_FRAC, Moment, RunInfo, Sample, Work

# Short runs need phases too: this many steps are measured whatever they cost, 0.1 ms each.
_ALWAYS = 16
_LEFT = "tensors/activations_bytes"


@dataclass(unsafe_hash=True)
class PhaseProbe(Budgeted):
    """Peaks per phase from the kernel's and the allocator's own high-water marks: exact, without a thread.

    The training's link reports when a phase begins and ends, so this works under `torch.compile` and DDP; without a
    link there are no phases, and nothing is returned. A phase's peak includes what ran inside it (an evaluation's
    forward passes). Over the micro-batches of a step the highest counts. Each call returns the phases that ended since
    the last one.

    The startup of the process's first training is all that was before its first step, from the start of the process on;
    `step/startup_s` is how long that took.

    On the host, what a forward pass leaves allocated is counted in the first 16 steps but the very first, in which
    much is allocated once: `tensors/activations_bytes`. What it takes the place of, as the variable of the result does,
    was there before and counts as gone.

    A mark that is not reset shows a phase's peak only if it rises in that phase; otherwise the phase is absent. If
    steps are so short that measuring exceeds its budget, the phases of some steps are skipped. Processor time counts: a
    busy machine makes no phase rarer.

    Args:
        host_mark: Reset the kernel's mark at the start of each phase (about 10 us per phase). Other readers of `VmHWM`
            or `ru_maxrss` in this process see the reset.
        device: Also read the device's allocator.
        reset_peaks: Reset the allocator's peak at the start of each phase.
        budget_frac: The budget as a fraction of the time; 1 measures every step.

    Raises:
        ValueError: for a budget that is not positive.
    """

    host_mark: bool = False
    device: bool = True
    _: KW_ONLY
    reset_peaks: bool = True
    budget_frac: float = OWN_BUDGET_FRAC

    def begin(self, run: RunInfo) -> Work:
        return _Phases(self, run)


class _Phases:
    """The probe in one run."""

    def __init__(self, probe: PhaseProbe, run: RunInfo) -> None:
        self._probe = probe
        self._open: list[_Phase] = []
        self._peaks: dict[str, float] = {}
        self._is_first = STARTUP.was_before(run)  # training of this process
        self.wants_begin = True
        self._pace = TimeBudget(0.0, budget_frac=probe.budget_frac)
        self._unpaid_s, self._num_steps = 0.0, 0

        host = host_peaks()
        run.at_close(lambda: self._close(run))
        if host is not None:  # while a window is open, the kernel's files stay open; its end closes them
            run.at_close(host.open(reset=False).close)
        run.watch_phases(self)

    def phase_begin(self, phase: str) -> None:
        began_s = time.thread_time()
        entry = _Phase(phase)
        host = host_peaks()
        if host is not None:
            entry.host = host.open(reset=self._probe.host_mark)
        device = device_peaks() if self._probe.device else None
        if device is not None:
            entry.device = device.open(reset=self._probe.reset_peaks)
        elif phase == "forward" and 0 < self._num_steps < _ALWAYS:
            entry.results = _results()  # first of all: looking at frames allocates, too
            entry.allocated_bytes = allocated_natively_bytes()
        self._open.append(entry)
        self._unpaid_s += time.thread_time() - began_s

    def phase_end(self, phase: str) -> None:
        if all(entry.name != phase for entry in self._open):
            return  # it began before this run did
        began_s = time.thread_time()
        while True:
            entry = self._open.pop()
            if entry.allocated_bytes is not None:
                left = (allocated_natively_bytes() or 0) - entry.allocated_bytes
                left += sum(size for result, size in entry.results if result() is None)
                self._peaks[_LEFT] = max(left, self._peaks.get(_LEFT, 0))
            self._keep(f"phase/host/{entry.name}_peak_bytes", entry.host)
            self._keep(f"phase/device/{entry.name}_peak_bytes", entry.device)
            if entry.name == "startup" and self._is_first:
                self._keep_startup()
            if entry.name == phase:
                break
        self._unpaid_s += time.thread_time() - began_s
        if phase == "optimizer":  # a whole step has been measured
            self._pay()

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if self._unpaid_s:  # of a loop without an optimizer phase, or between steps
            self._pay()
        self.wants_begin = self._num_steps < _ALWAYS or self._pace.due()
        peaks, self._peaks = self._peaks, {}
        return peaks

    def _pay(self) -> None:
        """A step has been measured: the next one when the time has paid for it."""
        self._pace.ran(self._unpaid_s)
        self._unpaid_s = 0.0
        self._num_steps += 1
        self.wants_begin = self._num_steps < _ALWAYS

    def _keep(self, name: str, window: PeakWindow | None) -> None:
        if window is None:
            return
        peak = window.close()
        if window.exact and peak > self._peaks.get(name, -1):
            self._peaks[name] = peak

    def _keep_startup(self) -> None:
        """The whole process until now, whose peaks its marks know without a window."""
        self._is_first = False
        for where, owner in (("host", host_peaks()), ("device", device_peaks() if self._probe.device else None)):
            if owner is not None and owner.highest_bytes:
                self._peaks[f"phase/{where}/startup_peak_bytes"] = owner.highest_bytes
        age_s = process_age_s()
        if age_s is not None:
            self._peaks["step/startup_s"] = age_s

    def _close(self, run: RunInfo) -> None:
        """End what was left open, and report which phases were left out."""
        self._open.clear()
        self._pace.tell(run, "phases")


@dataclass(slots=True)
class _Phase:
    """An open phase with its measuring windows, which end with it, and what was allocated on the host when it began."""

    name: str
    host: PeakWindow | None = None
    device: PeakWindow | None = None
    allocated_bytes: int | None = None
    results: Sequence[tuple[Callable[[], object], int]] = ()


def _results() -> list[tuple[Callable[[], object], int]]:
    """The results of earlier passes that variables of the running functions hold."""
    values = [value for frame in with_callers(sys._getframe(1)) for value in frame_variables(frame).values()]
    # A model's result has few parts
    few = [one for value in values if isinstance(value, Mapping) and len(value) < 16 for one in values_of(value)]
    tensors = [one for one in values + few if getattr(type(one), "grad_fn", None) and one.grad_fn is not None]
    by_storage = {key: (weakref.ref(one), size) for one in tensors for key, size in storages_of(one)}
    return list(by_storage.values())


class _Startup:
    """Knows which training of this process is the first: imports, the model and the data were before that one."""

    def __init__(self) -> None:
        self._first: weakref.ref[object] | None = None
        self._forks = FORKS.number

    def was_before(self, training: object) -> bool:
        """Whether this training is the first one that asks; never where somebody types: that is no startup."""
        if self._first is None or self._forks != FORKS.number:
            self._first, self._forks = weakref.ref(training), FORKS.number
        return self._first() is training and not hasattr(sys, "ps1")


# One, because there is one process
STARTUP = _Startup()
