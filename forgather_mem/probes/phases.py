"""How high does memory go in each phase of a step: forward, backward, optimizer, save, ...?"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from forgather_mem.probes.windows import PeakWindow, device_peaks, host_peaks
from forgather_mem.sample import Moment, RunInfo, Sample


class PhaseProbe:
    """Peaks per phase from the kernel's and the allocator's own high-water marks: exact, without a thread.

    The training's link says when a phase begins and ends, so this works under `torch.compile` and DDP; a
    training without a link has no phases, and nothing is given. A phase's peak holds what ran inside it
    (an evaluation's its forward passes). Over the micro-batches of a step the highest counts. Each call
    hands out the phases that ended since the last one.

    A mark that is not reset tells a phase's peak only when it rises in it; otherwise that phase is absent.

    Args:
        host_mark: Reset the kernel's mark at the beginning of each phase (about 10 us a phase). Others in
            this process who read `VmHWM` or `ru_maxrss` see the reset.
        device: Read the device's allocator too.
        reset_peaks: Reset the allocator's peak at the beginning of each phase.
    """

    names = ("phase/",)

    def __init__(self, host_mark: bool = False, device: bool = True, *, reset_peaks: bool = True) -> None:
        self.host_mark = host_mark
        self.device = device
        self.reset_peaks = reset_peaks
        self.reading: Hashable = (type(self), host_mark, device, reset_peaks)
        self._open: list[_Phase] = []
        self._peaks: dict[str, float] = {}
        self._whole_run: PeakWindow | None = None

    def begin(self, run: RunInfo) -> None:
        self._close()
        host = host_peaks()
        if host is not None:  # as long as some window is open, the kernel's files stay open too
            self._whole_run = host.open(reset=False)
        run.watch_phases(self)

    def end(self, run: RunInfo) -> None:
        self._close()

    def phase_begin(self, phase: str) -> None:
        host = host_peaks()
        device = device_peaks() if self.device else None
        self._open.append(
            _Phase(
                phase,
                None if host is None else host.open(reset=self.host_mark),
                None if device is None else device.open(reset=self.reset_peaks),
            )
        )

    def phase_end(self, phase: str) -> None:
        if all(entry.name != phase for entry in self._open):
            return  # it began before this run did
        while True:
            entry = self._open.pop()
            self._keep(f"phase/host/{entry.name}_peak_bytes", entry.host)
            self._keep(f"phase/device/{entry.name}_peak_bytes", entry.device)
            if entry.name == phase:
                return

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        peaks, self._peaks = self._peaks, {}
        return peaks

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
        self._open, self._peaks, self._whole_run = [], {}, None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": [], "_peaks": {}, "_whole_run": None}


@dataclass(slots=True)
class _Phase:
    """A phase that is open, with its measuring windows."""

    name: str
    host: PeakWindow | None
    device: PeakWindow | None
