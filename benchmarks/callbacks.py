"""What does a callback cost per step? Ours beside the peers', in one process.

    python benchmarks/callbacks.py [--steps N] [--real-steps N] [--markdown FILE] [--check]

Two settings: a tight loop that only fires a step's events through transformers' own callback handler, and a real
step of `transformers.Trainer` (about 17 ms, by the batch size). Figures are medians. In the tight loop ratios are to
the empty callback; the variants take turns, each round is a training of its own, whose first steps are not counted. In
real trainings, one for each variant, blocks of steps with and without it take turns in random order; told is the median
of the differences, and the time in the callback's own events, which knows less noise and leaves out what it does to the
processor's caches. Ours, and nothing at all, train five times as long as the others: what is promised is less than the
noise of 800 steps.
`--check` ends with 1 when a promise is broken.

Peers: benchmarks/_peers.py says which are their own code and which are restated. Lightning's needs
`pip install lightning`.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers
from _peers import (
    ComprehensiveMonitor,
    MemoryMetrics,
    SystemMetricsMonitor,
    TwentyScalars,
    device_stats_monitor,
)
from _training import tiny_model, train
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

from forgather_mem.callbacks import (
    ClearCacheCallback,
    JsonMemoryLogger,
    MemoryCallback,
    PeakMemory,
    SimpleGarbageCollector,
    TBMemoryLogger,
)

OURS = "ours: TBMemoryLogger(), every step"
# Microseconds more than an empty callback in the loop; wall time and CPU of a real step.
PROMISED_IDLE, PROMISED_LOOP_US, PROMISED_WALL, PROMISED_CPU = 1.25, 20.0, 1.01, 1.02
EMPTY = "empty TrainerCallback"
STEP_EVENTS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")
ROUNDS, WARM_STEPS = 21, 50
NOISE = "nothing, the method's own noise"
MORE_STEPS = 5  # as many more of ours and of the noise: what is promised is less than the noise of 800 steps
BLOCK_STEPS = 10  # short beside the machine's moods, long beside what a callback leaves in the caches
PACKAGES = ("torch", "transformers", "tensorboard", "psutil", "lightning")


def variants(folder: Path) -> dict[str, Callable[[], TrainerCallback | None]]:
    return {
        EMPTY: TrainerCallback,
        "ours, idle: SimpleGarbageCollector()": SimpleGarbageCollector,
        "ours, idle: SimpleGarbageCollector(step 10**6)": lambda: SimpleGarbageCollector(collect_freq_step=10**6),
        "ours, idle: ClearCacheCallback()": ClearCacheCallback,
        OURS: lambda: TBMemoryLogger(logging_dir=folder / "ours"),
        "ours: JsonMemoryLogger()": lambda: JsonMemoryLogger(folder / "m.jsonl"),
        "ours: PeakMemory()": PeakMemory,
        "ours: MemoryCallback() (watch.yaml)": MemoryCallback,
        "20 x SummaryWriter.add_scalar": lambda: TwentyScalars(folder / "twenty"),
        "Lightning DeviceStatsMonitor(cpu_stats=True)": lambda: device_stats_monitor(folder / "lightning"),
        "Composer SystemMetricsMonitor, restated": lambda: SystemMetricsMonitor(folder / "composer"),
        "skip_memory_metrics=False": MemoryMetrics,
        "Forgather TraceMalloc, restated": ComprehensiveMonitor,
    }


def fire(handler: CallbackHandler, args: Any, state: TrainerState, control: TrainerControl, steps: int) -> float:
    """Seconds for one step's events, averaged over `steps`."""
    began = time.perf_counter()
    for _ in range(steps):
        for event in STEP_EVENTS[:-1]:
            handler.call_event(event, args, state, control)
        state.global_step += 1
        handler.call_event("on_step_end", args, state, control)
    return (time.perf_counter() - began) / steps


def tight_loop(folder: Path, steps: int) -> dict[str, tuple[float, float]]:
    """Variant -> (median seconds a step, process CPU seconds a step), the handler's own cost subtracted."""
    args = TrainingArguments(output_dir=str(folder / "out"), report_to=[], use_cpu=True)
    model = tiny_model(8)
    optimizer = torch.optim.AdamW(model.parameters())
    wall: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, build in ({"no callback": lambda: None} | variants(folder)).items():
            callback = build()
            if hasattr(callback, "arm") or (callback is None and name != "no callback"):
                continue
            state, control = TrainerState(), TrainerControl()
            handler = CallbackHandler([callback] if callback else [], model, None, optimizer, None)
            handler.call_event("on_train_begin", args, state, control)
            fire(handler, args, state, control, WARM_STEPS)
            cpu_began = time.process_time()
            wall.setdefault(name, []).append(fire(handler, args, state, control, steps))
            cpu.setdefault(name, []).append((time.process_time() - cpu_began) / steps)
            handler.call_event("on_train_end", args, state, control)
    return {name: (statistics.median(wall[name]), statistics.median(cpu[name])) for name in wall}


class OnAndOff(TrainerCallback):
    """Has another callback for blocks of steps, and none for as many, in random order; notes what a step took.

    Args:
        callback: None for nothing in either block: what the method itself makes of noise.
    """

    def __init__(self, callback: TrainerCallback | None) -> None:
        self.callback = callback
        self.chance = random.Random(0)
        self.step = 0
        self.first_on = self.on = False
        self.took: dict[bool, list[tuple[float, float]]] = {}  # of this pair of blocks: wall and CPU seconds
        self.pairs: list[dict[bool, tuple[float, float]]] = []  # medians
        self.began = (0.0, 0.0)
        self.in_step = 0.0
        self.in_events: list[float] = []  # seconds a step between the call of its events and their return

    def _fire(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.on and self.callback is not None:
            began = time.perf_counter()
            getattr(self.callback, event)(args, state, control, **kwargs)
            self.in_step += time.perf_counter() - began

    def _switch(self, on: bool) -> None:
        """What belongs to a whole training goes on and off outside the time that is measured."""
        if on != self.on:
            getattr(self.callback, "arm" if on else "disarm", lambda: None)()
        self.on = on

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.callback is not None:
            self.callback.on_train_begin(args, state, control, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._switch(False)
        if self.callback is not None:
            self.callback.on_train_end(args, state, control, **kwargs)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        place = self.step % (2 * BLOCK_STEPS)
        if place == 0:
            self.first_on = self.chance.random() < 0.5
            self.took = {True: [], False: []}
        self._switch(self.first_on == (place < BLOCK_STEPS))
        self.began = (time.perf_counter(), time.process_time())
        self._fire("on_step_begin", args, state, control, **kwargs)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._fire("on_pre_optimizer_step", args, state, control, **kwargs)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._fire("on_optimizer_step", args, state, control, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._fire("on_step_end", args, state, control, **kwargs)
        wall_s, cpu_s = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
        self.took[self.on].append((wall_s, cpu_s))
        if self.on:
            self.in_events.append(self.in_step)
        self.in_step = 0.0
        self.step += 1
        if self.step % (2 * BLOCK_STEPS) == 0:
            self.pairs.append({on: _medians(steps) for on, steps in self.took.items()})

    def costs(self) -> dict[bool | None, tuple[float, float]]:
        """(wall, CPU) seconds of a step with and without it: the median without, and of the pairs' differences.

        Under None the wall seconds in its events alone.
        """
        pairs = self.pairs[1:]  # warm by then
        off = _medians([pair[False] for pair in pairs])
        more = _medians([(pair[True][0] - pair[False][0], pair[True][1] - pair[False][1]) for pair in pairs])
        return {False: off, True: (off[0] + more[0], off[1] + more[1]), None: (statistics.median(self.in_events), 0.0)}


def _medians(rows: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(row[0] for row in rows), statistics.median(row[1] for row in rows)


def real_step(folder: Path, steps: int) -> dict[str, dict[bool | None, tuple[float, float]]]:
    """Variant -> with it or without -> (wall, CPU) seconds of a real step; a training for each."""
    costs = {}
    builds = {NOISE: lambda: None} | variants(folder)
    for name, build in builds.items():
        callback = build()
        if "idle" in name or "empty" in name or (callback is None and name != NOISE):
            continue
        turns = OnAndOff(callback)
        train(turns, steps * (MORE_STEPS if name in (NOISE, OURS) else 1), folder / "train")
        costs[name] = turns.costs()
    return costs


def loop_table(rows: dict[str, tuple[float, float]]) -> list[str]:
    base_wall, base_cpu = rows[EMPTY]
    lines = [
        "## Tight loop: the four events of a step",
        "",
        "| | wall, us | CPU, us | wall, ratio | CPU, ratio | more than the empty one, us |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, (wall, cpu) in rows.items():
        ratios = f"{wall / base_wall:.3f} | {cpu / base_cpu:.3f}"
        lines.append(f"| {name} | {wall * 1e6:.2f} | {cpu * 1e6:.2f} | {ratios} | {(wall - base_wall) * 1e6:+,.1f} |")
    return [*lines, ""]


def real_table(rows: dict[str, dict[bool | None, tuple[float, float]]]) -> list[str]:
    lines = [
        "## A real step of a Trainer",
        "",
        "| | step without, ms | wall, ratio | CPU, ratio | more wall, us | more CPU, us | in its events, us |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, costs in rows.items():
        (off_wall, off_cpu), (wall, cpu) = costs[False], costs[True]
        lines.append(
            f"| {name} | {off_wall * 1e3:.2f} | {wall / off_wall:.3f} | {cpu / off_cpu:.3f} "
            f"| {(wall - off_wall) * 1e6:+,.0f} | {(cpu - off_cpu) * 1e6:+,.0f} | {costs[None][0] * 1e6:,.0f} |"
        )
    return [*lines, ""]


def broken_promises(
    loop: dict[str, tuple[float, float]], real: dict[str, dict[bool | None, tuple[float, float]]]
) -> list[str]:
    loop_us = (loop[OURS][0] - loop[EMPTY][0]) * 1e6
    wall, cpu = (ours / base for ours, base in zip(real[OURS][True], real[OURS][False], strict=True))
    idle = max(seconds[0] for name, seconds in loop.items() if "idle" in name) / loop[EMPTY][0]
    figures = (
        ("an idle callback beside an empty one", idle, PROMISED_IDLE),
        ("microseconds in the loop", loop_us, PROMISED_LOOP_US),
        ("wall time of a real step", wall, PROMISED_WALL),
        ("CPU of a real step", cpu, PROMISED_CPU),
    )
    return [f"{what}: {figure:.3f}, promised {most}" for what, figure, most in figures if figure > most]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000, help="steps a round in the tight loop")
    parser.add_argument("--real-steps", type=int, default=800, help="steps of each real training")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    parser.add_argument("--check", action="store_true", help="end with 1 when a promise is broken")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        loop = tight_loop(Path(name), options.steps)
        real = real_step(Path(name), options.real_steps)
    lines = loop_table(loop) + real_table(real)
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES if _installed(name))
    head = [
        "# What callbacks cost a step",
        "",
        f"{date.today()}, Python {platform.python_version()}, {packages}, {os.cpu_count()} shared x86 CPUs, one "
        f"thread, load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after. Made by "
        f"`python benchmarks/callbacks.py --steps {options.steps} --real-steps {options.real_steps}`. Medians; trust "
        "ratios and differences more than absolutes.",
        "",
        f"Promised of `TBMemoryLogger()`, that is host, device and collector written to TensorBoard at every step: "
        f"{PROMISED_LOOP_US:.0f} us more than an empty callback in the loop, {PROMISED_WALL} of the wall time and "
        f"{PROMISED_CPU} of the CPU of a real step.",
        "",
    ]
    text = "\n".join(head + lines)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    broken = broken_promises(loop, real)
    for line in broken:
        print(f"not kept: {line}", file=sys.stderr)
    return 1 if broken and options.check else 0


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(main())
