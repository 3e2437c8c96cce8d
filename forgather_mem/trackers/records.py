"""Memory at named instants of a script or a batch, with the peaks in between."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgather_mem.sinks.console import print_line
from forgather_mem.system.usage import Span, UsageSpan, UsageWindow
from forgather_mem.trackers.blocks import Say, switched_on
from forgather_mem.trackers.text import Checkpoint, checkpoint_table
from forgather_mem.units import MIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """A named instant of a `MemoryTracker`, and the span since the record before.

    Attributes:
        time_s: Wall clock, seconds since 1970.
        since: Name of the record from which change and peak are counted; None for the first.
        cpu, gpu: From that record to this one; `gpu` is None without a device or before its first use.
        gpu_reserved_bytes: Memory reserved by the allocator now; None likewise.
    """

    name: str
    time_s: float
    since: str | None
    cpu: Span
    gpu: Span | None = None
    gpu_reserved_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in bytes; missing measurements are absent."""
        values: dict[str, Any] = {"name": self.name, "time_s": self.time_s}
        for place, span in (("cpu", self.cpu), ("gpu", self.gpu)):
            if span is not None:
                values[f"{place}_bytes"] = span.end_bytes
                if self.since is not None:
                    values[f"{place}_peak_bytes"] = span.peak_bytes
        if self.gpu_reserved_bytes is not None:
            values["gpu_reserved_bytes"] = self.gpu_reserved_bytes
        return values


class MemoryTracker:
    """Named records of memory, and the peaks between them. Thread-safe.

    With `FORGATHER_MEM=0` in the environment it still records, but resets no marks and prints nothing.

    Args:
        reset_peaks: Reset the marks of the kernel and of the device's allocator at each record, so that the
            peaks in between are exact.
        say: Receives the summary; default: standard output.

    >>> tracker = MemoryTracker()
    >>> _ = tracker.record("start")
    >>> table = bytearray(64 * 2**20)
    >>> tracker.record("table made").cpu.consumed_bytes > 63 * 2**20
    True
    """

    def __init__(self, *, reset_peaks: bool = True, say: Say = print_line) -> None:
        self.enabled = switched_on("MemoryTracker", True)
        self.say = say
        self.records: list[MemoryRecord] = []
        self._relay = _Relay(reset_peaks and self.enabled)

    def record(self, name: str) -> MemoryRecord:
        """Read memory now, under this name."""
        with self._relay.lock:
            span, first = self._relay.next()
            record = MemoryRecord(
                name=str(name),
                time_s=time.time(),
                since=None if first else self.records[-1].name,
                cpu=span.host,
                gpu=span.device,
                gpu_reserved_bytes=span.reserved_bytes,
            )
            self.records.append(record)
            return record

    def peak(self) -> MemoryRecord | None:
        """The record with the highest memory before it: on the device if there is one, else on the host.

        None without records.
        """
        measured = [record for record in self.records if record.gpu is not None] or self.records
        return max(measured, key=lambda record: (record.gpu or record.cpu).peak_bytes, default=None)

    def print_summary(self) -> None:
        """Print a table of the records: memory held, and change and peak since the record before."""
        if not self.enabled:
            return
        rows = [
            Checkpoint(name=record.name, host=record.cpu, device=record.gpu, first=record.since is None)
            for record in self.records
        ]
        self.say(checkpoint_table("Memory, MB", rows) if rows else "Memory: no records")

    def to_dict(self) -> dict[str, Any]:
        """The records as plain values, in bytes; missing measurements are absent."""
        return {"unit": "bytes", "records": [record.to_dict() for record in self.records]}

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot the memory at each record and the peaks in between; with a path, save the figure there.

        Raises:
            ImportError: without matplotlib, which the `plot` extra installs.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("MemoryTracker.plot() needs matplotlib: pip install 'forgather_mem[plot]'") from error
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.add_subplot(ylabel="MiB", title="Memory at each record, and the peak on the way there")
        for place in ("CPU", "GPU"):
            found = [getattr(record, place.lower()) for record in self.records]
            spans = {index: span for index, span in enumerate(found) if span is not None}
            if spans:
                axes.plot(list(spans), [span.end_bytes / MIB for span in spans.values()], marker="o", label=place)
                axes.plot(list(spans), [span.peak_bytes / MIB for span in spans.values()], "--", label=f"{place} peak")
        axes.set_xticks(range(len(self.records)), [record.name for record in self.records], rotation=30, ha="right")
        axes.set_ylim(bottom=0)
        if self.records:
            axes.legend()
        if path is not None:
            figure.savefig(path)
        return figure


class BatchMemoryProfiler:
    """Named checkpoints inside a batch, aggregated by name over all batches; not thread-safe.

    Its own memory does not grow with the number of batches. Change and peak of a checkpoint are counted from the
    checkpoint before it, whichever that was; the very first one has neither.

    Args:
        enabled: False makes it do nothing.
        reset_peaks: Reset the marks of the kernel and of the device's allocator at each checkpoint, so that
            the peaks in between are exact.
        say: Receives the summary; default: standard output.

    >>> profiler = BatchMemoryProfiler()
    >>> for batch in range(3):
    ...     profiler.checkpoint("data_loaded")
    ...     profiler.checkpoint("forward")
    >>> [(name, row["times"]) for name, row in profiler.to_dict()["checkpoints"].items()]
    [('data_loaded', 3), ('forward', 3)]
    """

    def __init__(self, enabled: bool = True, *, reset_peaks: bool = True, say: Say = print_line) -> None:
        self.enabled = switched_on("BatchMemoryProfiler", enabled)
        self.say = say
        self._relay = _Relay(reset_peaks)
        self._passes: dict[str, _Passes] = {}

    def checkpoint(self, name: str) -> None:
        """Read memory now, and count it under this name."""
        if not self.enabled:
            return
        span, first = self._relay.next()
        self._passes.setdefault(name, _Passes()).add(span, first)

    def print_summary(self) -> None:
        """Print a table: the last memory held, the mean change and the highest peak of each checkpoint."""
        if self.enabled:
            rows = [passes.row(name) for name, passes in self._passes.items()]
            self.say(checkpoint_table("Memory by checkpoint, MB", rows) if rows else "Memory: no checkpoints")

    def to_dict(self) -> dict[str, Any]:
        """By name, in bytes: `times`, and on host and device the last memory, the mean change, the highest peak."""
        return {"unit": "bytes", "checkpoints": {name: passes.to_dict() for name, passes in self._passes.items()}}


class _Relay:
    """Consecutive windows: each begins at the instant the previous one ends."""

    def __init__(self, reset_peaks: bool) -> None:
        self.lock = threading.Lock()
        self._reset_peaks = reset_peaks
        self._window: UsageWindow | None = None

    def next(self) -> tuple[UsageSpan, bool]:
        """The span since the last call, and whether this is the first call, whose span has no length."""
        window, self._window = self._window, UsageWindow(reset_peaks=self._reset_peaks)
        return (self._window.span(), True) if window is None else (window.close(), False)

    def __reduce__(self) -> tuple[object, ...]:
        return _Relay, (self._reset_peaks,)


class _Passes:
    """All passes over one checkpoint of a profiler.

    By place, how many of them have a change, which the very first checkpoint has not, and one span over all of these:
    from the last memory less all changes to the last memory, with the highest peak.
    """

    def __init__(self) -> None:
        self._times = 0
        self._places: dict[str, tuple[int, Span]] = {}

    def add(self, span: UsageSpan, first: bool) -> None:
        self._times += 1
        for place, part in (("cpu", span.host), ("gpu", span.device)):
            if part is not None:
                changes, whole = self._places.get(place, (0, Span(start_bytes=0, end_bytes=0, peak_bytes=0)))
                end, changed, peak = part.end_bytes, whole.consumed_bytes, whole.peak_bytes
                if not first:
                    changed, peak = changed + part.consumed_bytes, max(peak, part.peak_bytes)
                exact = whole.exact and (first or part.exact)
                whole = Span(start_bytes=end - changed, end_bytes=end, peak_bytes=peak, exact=exact)
                self._places[place] = changes + (not first), whole

    def row(self, name: str) -> Checkpoint:
        spans = {place: self._mean(place) for place in self._places}
        first = not self._places["cpu"][0]
        return Checkpoint(name=name, host=spans["cpu"], device=spans.get("gpu"), first=first, times=self._times)

    def to_dict(self) -> dict[str, float]:
        values: dict[str, float] = {"times": self._times}
        for place, (changes, _) in self._places.items():
            span = self._mean(place)
            values[f"{place}_bytes"] = span.end_bytes
            if changes:
                values[f"{place}_change_bytes"] = span.consumed_bytes
                values[f"{place}_peak_bytes"] = span.peak_bytes
        return values

    def _mean(self, place: str) -> Span:
        changes, whole = self._places[place]
        return replace(whole, start_bytes=whole.end_bytes - round(whole.consumed_bytes / max(1, changes)))
