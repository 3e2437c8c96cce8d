"""`ProfileMemory`: records a few steps with PyTorch's profiler, each allocation with its operator."""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.diagnose.oom.allocator_snapshot import Snapshot
from forgather_mem.errors import check_whole, missing, ours
from forgather_mem.files import make_real_folder, remove_real
from forgather_mem.system.allocator import current_allocator
from forgather_mem.telemetry.records import NOTHING, Finding, Moment, RunInfo, Sample
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import AtEvent, Every, check_period
from forgather_mem.units import MIB, format_bytes

logger = logging.getLogger(__name__)

VIEWER = "https://ui.perfetto.dev"


class ProfileMemory(RuleCallback):
    """Records a few steps with `torch.profiler`: time and memory of each operator, as a trace for a viewer.

    On rank 0, `profile/trace.rank0.json.gz` is written into the run's folder, and on a CUDA device the allocator's
    history beside it, `profile/snapshot.rank0.pickle`. A printed line says how to view them. The result of the training
    is unchanged; recorded steps take longer. While another profiler is active, nothing is recorded, and a line says so.
    After an error in a recorded step the profiler is stopped and nothing is written.

    Args:
        start_step: The first step to record, counted from 1 like the trainer's. Skip the first few: they compile and
            fill caches.
        steps: Number of steps to record.
        max_entries: Number of allocations and frees in the device's history.
        max_mb: A larger file is deleted.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    >>> ProfileMemory(steps=0)
    Traceback (most recent call last):
    ...
    ValueError: ProfileMemory(steps=0): a period is 1 step or more

    Raises:
        ValueError: for a number below 1, or a switch that is neither true nor false.
    """

    def __init__(
        self,
        start_step: int = 10,
        steps: int = 3,
        *,
        max_entries: int = 100_000,
        max_mb: int = 200,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        for name, number in (("start_step", start_step), ("steps", steps)):
            check_period("ProfileMemory", name, "step", number, needed=True)
        check_whole("ProfileMemory", max_entries=max_entries, max_mb=max_mb)
        recorder = EachRun(_Recorder, start_step, steps, max_entries, max_mb)
        rules = [
            Rule(when=Every(steps=1, at="step_begin"), do=[recorder], name="ProfileMemory"),
            Rule(when=AtEvent("step_end", "train_end"), do=[recorder], name="ProfileMemory"),
        ]
        super().__init__(rules, enabled=enabled, strict=strict)


class _Recorder:
    """The work of the callback, in one training."""

    def __init__(self, run: RunInfo, start_step: int, steps: int, max_entries: int, max_mb: int) -> None:
        self._steps = steps
        self._snapshot = Snapshot(max_entries=max_entries, max_mb=max_mb)
        self._profiler: Any = None
        self._over = run.rank != 0
        self._first = max(start_step, run.step + 1)  # a resumed run may already be past it
        run.at_close(self._stop)

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if self._over:
            return NOTHING
        if self._profiler is None:
            if moment.event == "step_begin" and moment.step >= self._first:
                self._start(moment)
            elif moment.event == "train_end":
                self._over = True
                why = f"the training ended before step {self._first:,}"
                moment.run.print_line(f"forgather-mem: step {moment.step:,}: nothing was profiled: {why}")
        elif moment.event == "train_end" or (
            moment.event == "step_end" and moment.step >= self._first + self._steps - 1
        ):
            self._finish(moment)
        return NOTHING

    # ---- inside ----

    def _start(self, moment: Moment) -> None:
        self._first = moment.step
        if moment.run.folder is None or torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            self._over = True
            nowhere = "there is no folder for files: give an output_dir, or set FORGATHER_MEM_DIR"
            why = "another profiler is active" if moment.run.folder is not None else nowhere
            moment.run.print_line(f"forgather-mem: step {moment.step:,}: nothing is profiled: {why}")
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        allocator = current_allocator()
        if allocator is not None and allocator.kind == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True)
        self._snapshot.start()
        self._profiler.start()

    def _finish(self, moment: Moment) -> None:
        from forgather_mem.reporting.text import path_from_here

        profiler, folder = self._profiler, moment.run.folder
        assert folder is not None
        trace = folder / "profile" / "trace.rank0.json.gz"
        snapshot = self._snapshot.write(trace.parent, 0)
        self._stop()
        self._over = True
        problem = self._write(profiler, trace)
        written = []
        if problem is None:
            written.append(f"python -m webbrowser {VIEWER}  # open {shlex.quote(path_from_here(str(trace)))} there")
        if snapshot is not None:
            shown = shlex.quote(path_from_here(snapshot))
            written.append(f"python -m torch.cuda._memory_viz trace_plot {shown} -o snapshot.html")
        last = moment.step
        steps = f"steps {self._first:,} to {last:,}" if last > self._first else f"step {last:,}"
        text = f"profiled {steps}: " + (" ; ".join(written) if written else str(problem))
        data = {"trace": str(trace) if problem is None else None, "snapshot": snapshot}
        moment.run.emit(Finding(kind="profile", step=last, text="", data={**data, "first": self._first, "last": last}))
        moment.run.print_line(f"forgather-mem: {text}")

    def _write(self, profiler: Any, trace: Path) -> str | None:
        """What prevented the trace from being written; None on success."""
        try:
            make_real_folder(trace.parent)
            with contextlib.suppress(FileNotFoundError):  # or a link, which PyTorch would follow
                remove_real(trace)
            profiler.export_chrome_trace(str(trace))
            size = trace.stat().st_size
        except ours(OSError, RuntimeError) as error:
            return f"no trace could be written: {error}"
        if size > self._snapshot.max_mb * MIB:
            remove_real(trace)
            return f"the trace took {format_bytes(size)}, more than max_mb={self._snapshot.max_mb}; record fewer steps"
        return None

    def _stop(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with missing(RuntimeError):  # it was stopped elsewhere
                profiler.stop()
            self._snapshot.stop()
