"""Memory use of the steps by batch shape, read at phase ends as often as its budget allows."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.errors import ours
from forgather_mem.system.allocator import gauge_now
from forgather_mem.system.headroom import host_rooms
from forgather_mem.system.native_heap import allocated_natively_bytes
from forgather_mem.system.own_limits import own_limits
from forgather_mem.system.procfs import PAGE_BYTES, KernelFile
from forgather_mem.system.time_budget import TimeBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class UseLimits:
    """How often the steps' use is read, so that it stays below 0.1 % of the time, and what is kept.

    Attributes:
        max_steps: That are kept.
        budget_frac: Of the time.
        dear_s: The C library's account of its heap: after one that took longer there is none.
        always_steps: The first ones, which are all read.
    """

    max_steps: int = 512
    budget_frac: float = 0.0005
    dear_s: float = 0.005
    always_steps: int = 16


USES = UseLimits()
Measure = Literal["address space", "data", "anonymous"]
# Fields of /proc/self/statm with each measure.
_FIELDS: dict[Measure, tuple[int, int | None]] = {"address space": (0, None), "data": (5, None), "anonymous": (1, 2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUse:
    """The largest micro-batch of one step, and the memory in use then.

    Attributes:
        step: The optimizer step, counted from 1.
        rows: Samples in the micro-batch on this device (the first dimension of its tensors).
        length: Tokens per sample (the second dimension), padding included; None for batches without one.
        sample: Without tokens, the sizes of one sample, as of a picture.
        phases: Bytes in use of the scarce memory, by phase ("forward", "backward", "optimizer", "evaluate", ...): the
            allocator's peak if it is read, else the use at the phase's end.
        saved_bytes: What its forward pass had allocated on the host beyond what there is between steps; None if that is
            unknown.
    """

    step: int
    rows: int
    length: int | None
    phases: Mapping[str, int]
    saved_bytes: int | None = None
    sample: tuple[int, ...] = ()


class HostMeasure:
    """Host memory of this process, in the measure of its tightest limit.

    Attributes:
        name: The measure: what a limit of this process counts, else anonymous memory.
    """

    def __init__(self) -> None:
        rooms = host_rooms()
        tightest = rooms[0].limit if rooms else ""
        self.name: Measure = (
            "address space" if "RLIMIT_AS" in tightest else "data" if "RLIMIT_DATA" in tightest else "anonymous"
        )
        self._statm = KernelFile("/proc/self/statm")

    def read(self) -> int:
        """Bytes in use now; takes 2 us."""
        field, less = _FIELDS[self.name]
        sizes = self._statm.read(128).split()
        return (int(sizes[field]) - (int(sizes[less]) if less is not None else 0)) * PAGE_BYTES

    def close(self) -> None:
        self._statm.close()


class BatchUses:
    """Memory use of one run's steps: at most `UseLimits.max_steps`, spread over the run, including the largest batch.

    After the first steps, reading takes at most 0.05 % of the time; a batch larger than all before it is always read.
    Steps that are not read need no phase events.

    Attributes:
        batch: The current or last micro-batch.
        largest: The largest batch of the finished steps; None before the first has finished.
        ended: How often each phase has ended in this run.
        between_bytes: Bytes in use at the end of the last step read.
        saved_bytes: What a micro-batch of that step had allocated on the host at the end of its forward pass, beyond
            what there was between the steps: what it saves for the backward pass.
        reading: Whether this step is read.
    """

    def __init__(self) -> None:
        self.uses: list[StepUse] = []
        self.batch: Batch | None = None
        self.largest: Batch | None = None
        self.ended: dict[str, int] = {}
        self.between_bytes: int | None = None
        self.saved_bytes: int | None = None
        self._forward_bytes: int | None = None  # allocated at the end of the forward pass
        self._between_allocated: int | None = None  # the same at the end of the last step, or before the first
        self.host = HostMeasure()
        self._on_device = self._asking_is_dear = False
        self._step_batch: Batch | None = None
        self._phases: dict[str, int] = {}
        self.reading = True
        self._num_read = 0
        self._every = 1
        self._next_step = 0
        self._step_cost_s = 0.0
        self._budget = TimeBudget(0.0, budget_frac=USES.budget_frac)
        if self.read() is not None:
            self._between_allocated = self._allocated()

    def see(self, batch: Batch | None, steps_done: int) -> None:
        """Note that a micro-batch begins."""
        self.batch = batch
        if not self.reading:
            self._perhaps_read(steps_done)
        if batch is None or batch is self._step_batch:
            return
        if self._step_batch is None or batch.size > self._step_batch.size:
            self._step_batch = batch
            if batch is not self.largest and (self.largest is None or batch.size > self.largest.size):
                self.reading = True

    def phase_ended(self, phase: str) -> None:
        """Note that a phase has ended, and count the current use for it."""
        ended = self.ended
        ended[phase] = ended.get(phase, 0) + 1
        if self.reading and phase != "data":
            size = self.read()
            if size is not None and size > self._phases.get(phase, -1):
                self._phases[phase] = size
            if phase == "forward":
                self._forward_bytes = self._allocated()

    def step_ended(self, step: int, peaks: Mapping[str, float]) -> None:
        """Note that a step has ended; where the record's `peaks` contain a phase's own peak, it is used."""
        batch, self._step_batch = self._step_batch, None
        if batch is not None and batch is not self.largest:
            self.largest = batch if self.largest is None else max(self.largest, batch, key=_size)
        if self.reading:
            self.between_bytes = self.read()
            saved = self._add_saved()
            if batch is not None:
                phases = self._with(peaks)
                self._add(_use_of(batch, step, phases, saved))
            self._phases = {}
            self._num_read += 1
            self._budget.ran(self._step_cost_s)
            self._step_cost_s = 0.0
            self._next_step = step - 1 + self._every
            self.reading = self._num_read < USES.always_steps
        if not self.reading:
            self._perhaps_read(step)

    def read(self) -> int | None:
        """Bytes in use of the scarce memory: the device's, if there is one."""
        began_s = time.perf_counter()
        size = gauge_now("allocated_bytes")
        self._on_device = size is not None
        if size is None:
            try:
                size = self.host.read()
            except ours(OSError):  # no /proc
                size = None
        self._step_cost_s += time.perf_counter() - began_s
        return size

    def _add_saved(self) -> int | None:
        forward, self._forward_bytes = self._forward_bytes, None
        between = self._between_allocated = self._allocated() if forward is not None else None
        if forward is None or between is None:
            return None
        self.saved_bytes = max(0, forward - between)
        return self.saved_bytes

    def _allocated(self) -> int | None:
        """Bytes allocated with the C library; None on a device, and where asking has been expensive."""
        if self._on_device or self._asking_is_dear:
            return None
        began_s = time.thread_time()  # on a busy machine other processes run meanwhile
        allocated = allocated_natively_bytes()
        took_s = time.thread_time() - began_s
        self._step_cost_s += took_s
        self._asking_is_dear = took_s > USES.dear_s
        return allocated

    def left_at_peak_bytes(self) -> int | None:
        """Bytes left below this process's own limit at the peak so far; None if either is unknown."""
        highest = max((size for use in self.uses for size in use.phases.values()), default=None)
        limit_bytes = min((limit.limit_bytes for limit in own_limits() if self.host.name in limit.name), default=None)
        return None if highest is None or limit_bytes is None or self._on_device else limit_bytes - highest

    def close(self) -> None:
        """Close the descriptor."""
        self.host.close()

    def peak_of(self, batch: Batch) -> int | None:
        """The highest use of the steps with this batch; None if none was read."""
        return max((size for use in self.uses if _is_of(use, batch) for size in use.phases.values()), default=None)

    def _perhaps_read(self, steps_done: int) -> None:
        """Read the next step if it is due and the time since has paid for the cost of reading."""
        if steps_done >= self._next_step and self._budget.due():
            self.reading = True
            self._step_batch = None  # from a step that was not read

    def _with(self, peaks: Mapping[str, float]) -> Mapping[str, int]:
        if self._on_device:
            for phase in self._phases:
                peak = peaks.get(f"phase/device/{phase}_peak_bytes")
                if peak is not None and peak > self._phases[phase]:
                    self._phases[phase] = int(peak)
        return self._phases

    def _add(self, use: StepUse) -> None:
        uses = self.uses
        uses.append(use)
        if len(uses) >= USES.max_steps:
            largest = max(uses, key=lambda use: use.rows * (use.length or math.prod(use.sample)))
            uses[:] = [use for position, use in enumerate(uses) if not position % 2 or use is largest]
            self._every *= 2


def _use_of(batch: Batch, step: int, phases: Mapping[str, int], saved_bytes: int | None) -> StepUse:
    return StepUse(step=step, **batch._asdict(), phases=phases, saved_bytes=saved_bytes)


def _is_of(use: StepUse, batch: Batch) -> bool:
    return (use.rows, use.length, use.sample) == batch


def _size(batch: Batch) -> int:
    return batch.size
