"""What does a callback cost per step? Ours beside the peers', in one process.

    python benchmarks/callbacks.py [--steps N] [--real-steps N] [--markdown FILE] [--check]

Two settings: a tight loop that only fires a step's events through transformers' own callback handler, and
a real step of `transformers.Trainer` (about 17 ms) in which the variants take turns step by step, each after
one without any. Figures are medians; ratios are to the empty callback (tight loop) or to the step without any
callback (real step). `--check` ends with 1 when a promise is broken.

Peers: benchmarks/_peers.py says which are their own code and which are restated. Lightning's needs
`pip install lightning`.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
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
PROMISED_LOOP_US, PROMISED_WALL, PROMISED_CPU = 20.0, 1.01, 1.02
STEP_EVENTS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")
ROUNDS = 9
PACKAGES = ("torch", "transformers", "tensorboard", "psutil", "lightning")


def variants(folder: Path) -> dict[str, Callable[[], TrainerCallback | None]]:
    return {
        "empty TrainerCallback": TrainerCallback,
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
    prepared: dict[str, Any] = {"no callback": None}
    for name, build in variants(folder).items():
        callback = build()
        if callback is not None and not hasattr(callback, "arm"):
            prepared[name] = callback
    setups = {}
    for name, callback in prepared.items():
        state, control = TrainerState(), TrainerControl()
        handler = CallbackHandler([callback] if callback else [], model, None, optimizer, None)
        handler.call_event("on_train_begin", args, state, control)
        setups[name] = (handler, state, control)
    wall: dict[str, list[float]] = {name: [] for name in setups}
    cpu: dict[str, list[float]] = {name: [] for name in setups}
    for _ in range(ROUNDS):
        for name, (handler, state, control) in setups.items():
            cpu_began = time.process_time()
            wall[name].append(fire(handler, args, state, control, steps))
            cpu[name].append((time.process_time() - cpu_began) / steps)
    for handler, state, control in setups.values():
        handler.call_event("on_train_end", args, state, control)
    return {name: (statistics.median(wall[name]), statistics.median(cpu[name])) for name in setups}


class TurnTaking(TrainerCallback):
    """Gives each variant every other step in turn and notes what that step took; between them nobody has one."""

    def __init__(self, callbacks: dict[str, TrainerCallback | None]) -> None:
        self.callbacks = callbacks
        self.names = list(callbacks)
        self.wall: dict[str, list[float]] = {name: [] for name in callbacks}
        self.cpu: dict[str, list[float]] = {name: [] for name in callbacks}
        self.states: dict[str, TrainerState] = {}
        self.turn = 0
        self.began = (time.perf_counter(), time.process_time())

    @property
    def name(self) -> str:
        """Whose turn it is; "" when nobody's."""
        return "" if self.turn % 2 else self.names[self.turn // 2 % len(self.names)]

    def _fire(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        callback = self.callbacks.get(self.name)
        if callback is not None:
            own = self.states[self.name]
            own.global_step, own.epoch = state.global_step, state.epoch
            getattr(callback, event)(args, own, control, **kwargs)

    def _switch(self, method: str) -> None:
        """What belongs to a whole training goes on and off outside the time that is measured."""
        getattr(self.callbacks.get(self.name), method, lambda: None)()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, callback in self.callbacks.items():
            if callback is not None:  # a state each, so that ours do not share one run
                self.states[name] = copy.copy(state)
                callback.on_train_begin(args, self.states[name], control, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, callback in self.callbacks.items():
            if callback is not None:
                callback.on_train_end(args, self.states[name], control, **kwargs)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._switch("arm")
        self.began = (time.perf_counter(), time.process_time())
        self._fire("on_step_begin", args, state, control, **kwargs)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._fire("on_pre_optimizer_step", args, state, control, **kwargs)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._fire("on_optimizer_step", args, state, control, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._fire("on_step_end", args, state, control, **kwargs)
        wall_s, cpu_s = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
        self._switch("disarm")
        if self.name and state.global_step > 4 * len(self.names):  # warm by then
            self.wall[self.name].append(wall_s)
            self.cpu[self.name].append(cpu_s)
        self.turn += 1


def real_step(folder: Path, steps: int) -> dict[str, tuple[float, float]]:
    callbacks: dict[str, TrainerCallback | None] = {"no callback": None, "no callback, again": None}
    for name, build in variants(folder).items():
        if "idle" not in name and "empty" not in name:
            callback = build()
            if callback is not None:
                callbacks[name] = callback
    turns = TurnTaking(callbacks)
    train(turns, steps, folder / "train")
    return {name: (statistics.median(turns.wall[name]), statistics.median(turns.cpu[name])) for name in callbacks}


def table(title: str, rows: dict[str, tuple[float, float]], base: str, unit: str, factor: float) -> list[str]:
    more = f"more than the {base.split()[0]} one, us"
    lines = [
        f"## {title}",
        "",
        f"| | wall, {unit} | CPU, {unit} | wall, ratio | CPU, ratio | {more} |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, (wall, cpu) in rows.items():
        ratio, cpu_ratio, more_us = wall / rows[base][0], cpu / rows[base][1], (wall - rows[base][0]) * 1e6
        lines.append(
            f"| {name} | {wall * factor:.2f} | {cpu * factor:.2f} | {ratio:.3f} | {cpu_ratio:.3f} | {more_us:+,.1f} |"
        )
    return [*lines, ""]


def broken_promises(loop: dict[str, tuple[float, float]], real: dict[str, tuple[float, float]]) -> list[str]:
    loop_us = (loop[OURS][0] - loop["empty TrainerCallback"][0]) * 1e6
    wall, cpu = (ours / base for ours, base in zip(real[OURS], real["no callback"], strict=True))
    figures = (
        ("microseconds in the loop", loop_us, PROMISED_LOOP_US),
        ("wall time of a real step", wall, PROMISED_WALL),
        ("CPU of a real step", cpu, PROMISED_CPU),
    )
    return [f"{what}: {figure:.3f}, promised {most}" for what, figure, most in figures if figure > most]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000, help="steps a round in the tight loop")
    parser.add_argument("--real-steps", type=int, default=4_000, help="steps of the real training, shared by all")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    parser.add_argument("--check", action="store_true", help="end with 1 when a promise is broken")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        loop = tight_loop(Path(name), options.steps)
        real = real_step(Path(name), options.real_steps)
    lines = table("Tight loop: the four events of a step", loop, "empty TrainerCallback", "us", 1e6)
    lines += table("A real step of a Trainer, the variants taking turns", real, "no callback", "ms", 1e3)
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
