"""What do the trackers cost when they are off, and when they are on? Beside nothing at all, in one process.

    python benchmarks/trackers.py [--rounds N] [--steps N] [--markdown FILE]

Two settings: single calls in a tight loop (medians over rounds in which the variants take turns), and a
real training step in plain PyTorch (about 15 ms) in which the variants take turns step by step. Ratios are
to the same code without any tracker.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from torch import nn

from forgather_mem.trackers import BatchMemoryProfiler, EpochMemoryMonitor, monitor_memory, track_memory

CALLS = 2_000
Variant = tuple[str, Callable[[], object]]


def drop(line: str) -> None:
    """Where the lines go here, so that the terminal is not what is measured."""


def nothing() -> None: ...


def by_hand() -> None:
    """What people write instead."""
    process = psutil.Process(os.getpid())
    drop(f"Batch 0: CPU {process.memory_info().rss / 2**20:.1f} MB, loss={0.5:.6f}")


def single_calls() -> list[tuple[str, list[Variant]]]:
    """Groups of variants; the first of each group is the code without a tracker."""
    off, on = (EpochMemoryMonitor(enabled=enabled, verbose_batches=1, say=drop) for enabled in (False, True))
    on.on_epoch_start()
    profiler_off, profiler_on = (BatchMemoryProfiler(enabled=enabled) for enabled in (False, True))
    profiler_on.checkpoint("forward")
    tracking_off, tracking_on = (track_memory("block", enabled=enabled, say=drop) for enabled in (False, True))

    def block(tracking: track_memory) -> Callable[[], object]:
        def run() -> None:
            with tracking:
                pass

        return run

    return [
        (
            "A call a batch",
            [
                ("an empty function", nothing),
                ("`EpochMemoryMonitor(enabled=False).on_batch_end(7, loss)`", lambda: off.on_batch_end(7, 0.5)),
                ("the same, on, after the verbose batches", lambda: on.on_batch_end(7, 0.5)),
                ("the same, on, a verbose batch, without the printing", lambda: on.on_batch_end(0, 0.5)),
                ("by hand: `psutil.Process(pid).memory_info()` and a line", by_hand),
                ("`BatchMemoryProfiler(enabled=False).checkpoint(name)`", lambda: profiler_off.checkpoint("forward")),
                ("the same, on", lambda: profiler_on.checkpoint("forward")),
            ],
        ),
        (
            "A block",
            [
                ("`pass`", nothing),
                ("`with track_memory(label, enabled=False)`", block(tracking_off)),
                ("`with track_memory(label)`, without the printing", block(tracking_on)),
            ],
        ),
        (
            "A decorated function",
            [
                ("the bare function", nothing),
                ("`@monitor_memory(label, enabled=False)`", monitor_memory("call", enabled=False)(nothing)),
                ("`@monitor_memory(label)`, without the printing", monitor_memory("call", say=drop)(nothing)),
            ],
        ),
    ]


def time_calls(variants: list[Variant], rounds: int) -> list[float]:
    """Median seconds a call of each variant; they take turns, so that a busy machine is busy for all."""
    seconds: list[list[float]] = [[] for _ in variants]
    for _ in range(rounds):
        for (_, function), times in zip(variants, seconds, strict=True):
            began = time.perf_counter()
            for _ in range(CALLS):
                function()
            times.append((time.perf_counter() - began) / CALLS)
    return [statistics.median(times) for times in seconds]


def real_steps(steps: int) -> list[tuple[str, float, float, float]]:
    """Each variant's median seconds a step, and medians of its wall and CPU time over that of the first variant
    in the same round: a machine that is busy for a while is busy for both."""
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())])
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(128, 512)

    def step() -> torch.Tensor:
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def monitored(monitor: EpochMemoryMonitor) -> Callable[[], object]:
        return lambda: monitor.on_batch_end(100, step())

    def blocked(tracking: track_memory) -> Callable[[], object]:
        def run() -> None:
            with tracking:
                step()

        return run

    on = EpochMemoryMonitor(say=drop)
    on.on_epoch_start()
    variants: list[Variant] = [
        ("no tracker", step),
        ("no tracker, again: how far equal code differs", lambda: step()),
        ("`EpochMemoryMonitor(enabled=False)`", monitored(EpochMemoryMonitor(enabled=False))),
        ("`EpochMemoryMonitor()`, after the verbose batches", monitored(on)),
        ("`track_memory(label, enabled=False)` around the step", blocked(track_memory("step", enabled=False))),
        ("`track_memory(label)` around the step", blocked(track_memory("step", say=drop))),
        ("`@monitor_memory(label, enabled=False)`", monitor_memory("step", enabled=False)(step)),
    ]
    rounds: list[list[tuple[float, float]]] = []
    order = list(range(len(variants)))
    shuffle = random.Random(0).shuffle
    for _ in range(steps):
        times = [(0.0, 0.0)] * len(variants)
        shuffle(order)
        for index in order:
            wall, cpu = time.perf_counter(), time.process_time()
            variants[index][1]()
            times[index] = (time.perf_counter() - wall, time.process_time() - cpu)
        rounds.append(times)
    warm = rounds[3:]
    return [
        (
            name,
            statistics.median(times[index][0] for times in warm),
            statistics.median(times[index][0] / times[0][0] for times in warm),
            statistics.median(times[index][1] / times[0][1] for times in warm),
        )
        for index, (name, _) in enumerate(variants)
    ]


def report(rounds: int, steps: int) -> str:
    lines = [
        "# What the trackers cost",
        "",
        f"{datetime.date.today()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"psutil {psutil.__version__}, {os.cpu_count()} CPUs, no accelerator. Made by "
        f"`python benchmarks/trackers.py --rounds {rounds} --steps {steps}`.",
        "",
    ]
    for title, variants in single_calls():
        medians = time_calls(variants, rounds)
        lines += [f"## {title}", "", "| | ns a call | more than the first, ns |", "|---|---:|---:|"]
        lines += [
            f"| {name} | {median * 1e9:,.0f} | {(median - medians[0]) * 1e9:+,.0f} |"
            for (name, _), median in zip(variants, medians, strict=True)
        ]
        lines.append("")
    lines += ["## A real training step", "", "| | ms a step | wall, ratio | CPU, ratio |", "|---|---:|---:|---:|"]
    lines += [
        f"| {name} | {seconds * 1e3:.2f} | {wall:.4f} | {cpu:.4f} |" for name, seconds, wall, cpu in real_steps(steps)
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31, help="rounds of the tight loops")
    parser.add_argument("--steps", type=int, default=300, help="training steps of each variant")
    parser.add_argument("--markdown", type=Path, help="write the report to this file too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = report(arguments.rounds, arguments.steps)
    print(text)
    if arguments.markdown:
        arguments.markdown.parent.mkdir(parents=True, exist_ok=True)
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
