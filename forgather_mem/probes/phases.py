"""How high does memory go in each phase of a step: forward, backward, optimizer, save, ...?"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from forgather_mem.probes.pace import backed_off
from forgather_mem.probes.windows import PeakWindow, device_peaks, host_peaks
from forgather_mem.sample import OWN_BUDGET_FRAC, Moment, RunInfo, Sample
from forgather_mem.units import format_duration, format_share

# A short run is to have its phases, too: so many readings are taken whatever they cost, 0.1 ms each.
_ALWAYS = 16


class PhaseProbe:
    """Peaks per phase from the kernel's and the allocator's own high-water marks: exact, without a thread.

    The training's link says when a phase begins and ends, so this works under `torch.compile` and DDP; a
    training without a link has no phases, and nothing is given. A phase's peak holds what ran inside it
    (an evaluation's its forward passes). Over the micro-batches of a step the highest counts. Each call
    hands out the phases that ended since the last one.

    A mark that is not reset tells a phase's peak only when it rises in it; otherwise that phase is absent.
    Where steps are so short that measuring takes more than its share of the time, the phases of some steps
    are left out.

    Args:
        host_mark: Reset the kernel's mark at the beginning of each phase (about 10 us a phase). Others in
            this process who read `VmHWM` or `ru_maxrss` see the reset.
        device: Read the device's allocator too.
        reset_peaks: Reset the allocator's peak at the beginning of each phase.
        budget_frac: That share; 1 measures every step.

    Raises:
        ValueError: for a budget that is not positive.
    """

    names = ("phase/",)

    def __init__(
        self,
        host_mark: bool = False,
        device: bool = True,
        *,
        reset_peaks: bool = True,
        budget_frac: float = OWN_BUDGET_FRAC,
    ) -> None:
        if not 0 < budget_frac <= 1:
            raise ValueError(f"PhaseProbe(budget_frac={budget_frac}): give a share above 0 and at most 1")
        self.host_mark = host_mark
        self.device = device
        self.reset_peaks = reset_peaks
        self.budget_frac = budget_frac
        self.reading: Hashable = (type(self), host_mark, device, reset_peaks, budget_frac)
        self._forget()

    def _forget(self) -> None:
        self._open: list[_Phase] = []
        self._peaks: dict[str, float] = {}
        self._whole_run: PeakWindow | None = None
        self.listens, self._measured = True, False
        self._began_s = time.perf_counter()
        self._cost_s = 0.0
        self._num_calls = self._num_left_out = 0

    def begin(self, run: RunInfo) -> None:
        self._close()
        host = host_peaks()
        if host is not None:  # as long as some window is open, the kernel's files stay open too
            self._whole_run = host.open(reset=False)
        run.watch_phases(self)

    def end(self, run: RunInfo) -> None:
        if self._num_left_out:
            cost = format_duration(self._cost_s / (self._num_calls - self._num_left_out))
            text = (
                f"phases: missing in {self._num_left_out:,} of {self._num_calls:,} readings; measuring them takes "
                f"{cost} (budget {format_share(self.budget_frac)} of the time)"
            )
            run.tell(backed_off(run, "phases", text))
        self._close()

    def phase_begin(self, phase: str) -> None:
        began_s = time.perf_counter()
        host = host_peaks()
        device = device_peaks() if self.device else None
        self._open.append(
            _Phase(
                phase,
                None if host is None else host.open(reset=self.host_mark),
                None if device is None else device.open(reset=self.reset_peaks),
            )
        )
        self._cost_s += time.perf_counter() - began_s

    def phase_end(self, phase: str) -> None:
        if all(entry.name != phase for entry in self._open):
            return  # it began before this run did
        began_s = time.perf_counter()
        while True:
            entry = self._open.pop()
            self._keep(f"phase/host/{entry.name}_peak_bytes", entry.host)
            self._keep(f"phase/device/{entry.name}_peak_bytes", entry.device)
            if entry.name == phase:
                break
        now_s = time.perf_counter()
        self._cost_s += now_s - began_s
        if phase == "optimizer" and self._num_calls >= _ALWAYS:  # a whole step has been measured
            self.listens, self._measured = now_s >= self._paid_s(), True

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        self._keep_to_the_budget()
        peaks, self._peaks = self._peaks, {}
        return peaks

    def _keep_to_the_budget(self) -> None:
        """Whether to measure until the next call: what measuring has cost must be paid for by the time gone by."""
        self._num_calls += 1
        self._num_left_out += not (self.listens or self._measured)
        self._measured = False
        self.listens = self._num_calls < _ALWAYS or time.perf_counter() >= self._paid_s()

    def _paid_s(self) -> float:
        return self._began_s + self._cost_s / self.budget_frac

    def _keep(self, name: str, window: PeakWindow | None) -> None:
        if window is None:
            return
        peak = window.close()
        if window.exact and peak > self._peaks.get(name, -1):
            self._peaks[name] = peak

    def _close(self) -> None:
        windows = [window for entry in self._open for window in (entry.host, entry.device)]
        for window in (*windows, self._whole_run):
            if window is not None:
                window.close()
        self._forget()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": [], "_peaks": {}, "_whole_run": None}


@dataclass(slots=True)
class _Phase:
    """A phase that is open, with its measuring windows."""

    name: str
    host: PeakWindow | None
    device: PeakWindow | None
