"""Which way of collecting garbage pauses a training least, and which leaks? Side by side, on heaps of several sizes.

Each size has a child process, in which all policies take turns on the same heap. A step computes a little, drops
cycles at once, and keeps others for some steps, so that they have aged when they are dropped. Every 200 steps there
is an evaluation, and one at the end. The first 20 steps are not counted: there each policy does what it does once.
`--check` ends with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from _training import train as train_in_trainer
from transformers import TrainerCallback, TrainerControl, TrainerState

from forgather_mem.callbacks import ScheduledGarbageCollector
from forgather_mem.system.procfs import own_memory
from forgather_mem.units import MIB

SIZES = (1_000_000, 5_000_000, 10_000_000)
WARM_UP = 20
EVALUATE_EVERY = 200
TRAINER_STEPS = 300


# ---- policies ----


class Never:
    """The floor: nothing is ever collected."""

    name = "never (the floor)"

    def begin(self) -> None:
        gc.disable()

    def step_end(self, step: int) -> None:
        pass

    def evaluated(self, step: int) -> None:
        pass

    def end(self, step: int) -> None:
        gc.enable()


class Automatic(Never):
    """CPython's own."""

    name = "automatic (CPython)"

    def begin(self) -> None:
        gc.enable()


class FullEvery50(Never):
    """As NeMo, LLM-Foundry and Megatron-LM do it."""

    name = "full every 50 (NeMo, LLM-Foundry, Megatron)"

    def step_end(self, step: int) -> None:
        if step % 50 == 0:
            gc.collect()


class YoungEvery50(Never):
    """As torchtitan does it."""

    name = "generation 1 every 50 (torchtitan)"

    def begin(self) -> None:
        gc.disable()
        gc.collect(1)

    def step_end(self, step: int) -> None:
        if step % 50 == 0:
            gc.collect(1)


class Tnt(Never):
    """As TorchTNT's GarbageCollector(50) does it."""

    name = "generation 1 always, full every 50 (TorchTNT)"

    def step_end(self, step: int) -> None:
        gc.collect(1)
        if step % 50 == 0:
            gc.collect()
        gc.disable()


class Ours:
    """ScheduledGarbageCollector with its defaults, told of the steps as a Trainer tells it."""

    name = "ScheduledGarbageCollector()"

    def begin(self) -> None:
        self.callback = ScheduledGarbageCollector(strict=True)
        self.state, self.control = TrainerState(max_steps=10**6), TrainerControl()
        self.args = SimpleNamespace(output_dir=None, process_index=0, world_size=1)
        self.callback.on_train_begin(self.args, self.state, self.control)

    def step_end(self, step: int) -> None:
        self.state.global_step = step - 1
        self.callback.on_step_begin(self.args, self.state, self.control)
        self.state.global_step = step
        self.callback.on_step_end(self.args, self.state, self.control)

    def evaluated(self, step: int) -> None:
        self.callback.on_evaluate(self.args, self.state, self.control)

    def end(self, step: int) -> None:
        self.callback.on_train_end(self.args, self.state, self.control)


POLICIES = (Never, Automatic, FullEvery50, YoungEvery50, Tnt, Ours)


# ---- the training ----


class Node:
    """Something that only a collection can free: it holds itself, some data and maybe a tensor."""

    __slots__ = ("__weakref__", "me", "rows", "tensor")

    def __init__(self, num_bytes: int = 0) -> None:
        self.me = self
        self.rows = [1, 2, 3]
        self.tensor = torch.empty(num_bytes, dtype=torch.uint8).fill_(1) if num_bytes else None


class Pauses:
    """How long the collector ran, and where. CPU of this thread: what a pause is on a machine that is not busy."""

    def __init__(self) -> None:
        self.between: list[float] = []
        self.at_boundaries: list[float] = []
        self.boundary = True
        self._began_s = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_s = time.thread_time()
        else:
            (self.at_boundaries if self.boundary else self.between).append(time.thread_time() - self._began_s)


def train(
    policy: Any, steps: int, *, dropped: int, aged: int, aged_bytes: int, ring_steps: int, kept: int
) -> dict[str, float]:
    """One training under a policy; what it came to."""
    cache: list[list[int]] = []
    weights = torch.ones(128, 128)
    ring: deque[list[Node]] = deque(maxlen=ring_steps)
    made: list[weakref.ref[Node]] = []
    wall_s = cpu_s = 0.0
    levels: list[int] = []
    pauses = Pauses()
    gc.callbacks.append(pauses)
    policy.begin()
    for step in range(1, steps + 1):
        pauses.boundary = step <= WARM_UP
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        for _ in range(20):
            weights = (weights @ weights) * 1e-3
        for _ in range(dropped):
            Node()
        nodes = [Node(aged_bytes) for _ in range(aged)]
        ring.append(nodes)
        cache += [[number] for number in range(kept)]
        policy.step_end(step)
        if step > WARM_UP:
            wall_s += time.perf_counter() - began_s
            cpu_s += time.thread_time() - began_cpu_s
            made += [weakref.ref(nodes[0])]
            levels.append(own_memory().anonymous_bytes)
        pauses.boundary = True
        if step % EVALUATE_EVERY == 0:
            policy.evaluated(step)
    ring.clear()
    del nodes
    policy.end(steps)
    gc.disable()  # or counting sets off a collection
    gc.callbacks.remove(pauses)
    left = sum(node() is not None for node in made)
    quarter = len(levels) // 4
    counted = steps - WARM_UP
    return {
        "wall_s": wall_s / counted,
        "cpu_s": cpu_s / counted,
        "longest_s": max(pauses.between, default=0.0),
        "pauses_s": sum(pauses.between),
        "boundaries_s": sum(pauses.at_boundaries),
        "longest_boundary_s": max(pauses.at_boundaries, default=0.0),
        "growth_bytes": max(levels) - levels[0],
        "climb_bytes": statistics.mean(levels[-quarter:]) - statistics.mean(levels[quarter : 2 * quarter]),
        "left": left,
    }


def build_heap(num_objects: int) -> list[Any]:
    """So many tracked objects of several kinds that live as long as the process, this process's own included."""
    missing = num_objects - len(gc.get_objects())
    gc.disable()
    heap: list[Any] = []
    for number in range(max(0, missing) // 4):
        heap.append({"row": [number], "at": (number, [number])})
    gc.enable()
    return heap


def in_turns(steps: int, rounds: int, **workload: int) -> dict[str, dict[str, float]]:
    """Policy to what it came to: medians over the rounds; sums where a pause is one."""
    results: dict[str, list[dict[str, float]]] = {policy.name: [] for policy in POLICIES}
    for number in range(rounds):
        for policy in POLICIES[number % len(POLICIES) :] + POLICIES[: number % len(POLICIES)]:
            gc.collect()
            results[policy.name].append(train(policy(), steps, **workload))
            gc.enable()
            gc.collect()
    return {of: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for of, runs in results.items()}


def child(what: str, steps: int, rounds: int) -> None:
    """One size, or the memory test, in a process of its own; prints JSON."""
    torch.set_num_threads(1)
    if what == "memory":
        heap = build_heap(1_000_000)
        found = in_turns(steps, rounds, dropped=0, aged=1, aged_bytes=MIB, ring_steps=5, kept=0)
    elif what == "growing":
        heap = build_heap(SIZES[0])
        found = in_turns(steps, rounds, dropped=30, aged=3, aged_bytes=1024, ring_steps=20, kept=1000)
    else:
        heap = build_heap(int(what))
        found = in_turns(steps, rounds, dropped=30, aged=3, aged_bytes=1024, ring_steps=20, kept=0)
    print(json.dumps({"tracked": len(gc.get_objects()), "heap": len(heap), "policies": found}))


# ---- a real Trainer ----


class Timed(TrainerCallback):
    """Times another callback's share of each step, and the steps."""

    def __init__(self, callback: TrainerCallback) -> None:
        self.callback = callback
        self.own_s: list[float] = []
        self.step_s: list[float] = []
        self._spent_s = self._began_s = 0.0

    def on_train_begin(self, *event: Any, **kwargs: Any) -> None:
        self.callback.on_train_begin(*event, **kwargs)

    def on_step_begin(self, *event: Any, **kwargs: Any) -> None:
        self._began_s = time.thread_time()
        self.callback.on_step_begin(*event, **kwargs)
        self._spent_s = time.thread_time() - self._began_s

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        began_s = time.thread_time()
        self.callback.on_step_end(args, state, control, **kwargs)
        ended_s = time.thread_time()
        if state.global_step > WARM_UP:
            own_s = self._spent_s + ended_s - began_s
            self.own_s.append(own_s)
            self.step_s.append(ended_s - self._began_s - own_s)

    def on_train_end(self, *event: Any, **kwargs: Any) -> None:
        self.callback.on_train_end(*event, **kwargs)


class PlainCollect(TrainerCallback):
    """What people write by hand."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % 10 == 0:
            gc.collect()


def in_a_trainer(steps: int, rounds: int) -> None:
    """What collecting every 10 steps costs in a real training; prints JSON. Times are CPU of the training thread."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    shares: dict[str, list[float]] = {"ours": [], "plain": []}
    step_s: list[float] = []
    tracked = 0
    heap = build_heap(450_000)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, callback in (("ours", ScheduledGarbageCollector(every_steps=10)), ("plain", PlainCollect())):
                timed = Timed(callback)
                tracked = len(gc.get_objects())
                train_in_trainer(timed, steps, Path(folder), 8)
                shares[name].append(sum(timed.own_s) / sum(timed.step_s))
                step_s.append(statistics.median(timed.step_s))
    print(
        json.dumps(
            {
                "tracked": tracked,
                "heap": len(heap),
                "step_s": statistics.median(step_s),
                **{f"{name}_share": statistics.median(values) for name, values in shares.items()},
            }
        )
    )


# ---- the report ----


def run_child(what: str, steps: int, rounds: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, "--steps", str(steps), "--rounds", str(rounds)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    return result


def size_table(title: str, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Markdown for one size, and the goals that were missed."""
    policies = found["policies"]
    floor, full, ours = (policies[policy.name] for policy in (Never, FullEvery50, Ours))
    lines = [
        f"## {title}",
        "",
        f"A step of the floor takes {floor['cpu_s'] * 1e3:.2f} ms.",
        "",
        "| policy | longest pause, ms | all pauses, ms | at evaluations, ms | mean step, CPU | wall | left |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, run in policies.items():
        pauses = [run[key] * 1e3 for key in ("longest_s", "pauses_s", "boundaries_s")]
        ratios = [run[key] / floor[key] for key in ("cpu_s", "wall_s")]
        cells = [f"{pause:,.1f}" for pause in pauses] + [f"{ratio:.3f}" for ratio in ratios] + [f"{run['left']:.0f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    goals = {
        f"longest pause {ours['longest_s'] * 1e3:.1f} ms, wanted 10 at most": ours["longest_s"] <= 0.010,
        f"mean step {ours['cpu_s'] / floor['cpu_s']:.3f} of the floor, wanted 1.10": ours["cpu_s"]
        <= 1.1 * floor["cpu_s"],
        f"pauses {ours['pauses_s'] / full['pauses_s']:.4f} of full every 50, wanted 0.01": (
            ours["pauses_s"] <= 0.01 * full["pauses_s"]
        ),
        f"{ours['left']:.0f} cycles left, wanted 0": ours["left"] == 0,
    }
    return [*lines, ""], [f"{title}: {text}" for text, held in goals.items() if not held]


def memory_table(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    ours = found["policies"][Ours.name]
    lines = [
        "## Growth while 1 000 MiB of cyclic garbage are made",
        "",
        "One cycle a step, each with 1 MiB, dropped five steps later. Anonymous memory over the run.",
        "",
        "| policy | highest above the start, MiB | last quarter above the second, MiB | cycles left |",
        "|---|---:|---:|---:|",
    ]
    for name, run in found["policies"].items():
        lines.append(
            f"| {name} | {run['growth_bytes'] / MIB:,.0f} | {run['climb_bytes'] / MIB:+,.1f} | {run['left']:.0f} |"
        )
    missed = []
    if ours["growth_bytes"] > 50 * MIB or ours["climb_bytes"] > 5 * MIB or ours["left"]:
        missed.append("growth above 50 MiB, climbing, or something left")
    return [*lines, ""], missed


def trainer_text(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    ours, plain = found["ours_share"], found["plain_share"]
    lines = [
        "## A real Trainer",
        "",
        f"{found['tracked']:,} tracked objects, steps of {found['step_s'] * 1e3:.1f} ms, collecting every 10 steps:",
        f"`ScheduledGarbageCollector` costs {ours:.2%} of the steps' time, a plain `gc.collect()` {plain:.0%}: each",
        f"takes as long as {plain * 10:.1f} steps.",
        "",
    ]
    return lines, [f"a real Trainer: {ours:.2%} of the time, wanted 0.5 %"] if ours > 0.005 else []


def head(steps: int, rounds: int) -> list[str]:
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    return [
        "# Collecting garbage: policies side by side",
        "",
        f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, {os.cpu_count()} CPUs, load {load}.",
        f"Made by `python benchmarks/gc_policies.py --steps {steps} --rounds {rounds}`. Medians of the rounds.",
        "Pauses are CPU time in the collector during steps, evaluations and the first 20 steps apart; mean steps are",
        "ratios to the floor; left are cycles that are still there after the end.",
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=620)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--check", action="store_true", help="end with 1 when a goal is missed")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "trainer":
        in_a_trainer(options.steps, options.rounds)
        return 0
    if options.child:
        child(options.child, options.steps, options.rounds)
        return 0
    parts: list[tuple[list[str], list[str]]] = []
    for size in options.sizes:
        found = run_child(str(size), options.steps, options.rounds)
        parts.append(size_table(f"{found['tracked']:,} tracked objects", found))
    found = run_child("growing", options.steps, options.rounds)
    growing, _ = size_table(f"{found['tracked']:,} tracked objects and 1,000 more at each step", found)
    parts.append((growing, []))
    parts.append(memory_table(run_child("memory", 1020, options.rounds)))
    parts.append(trainer_text(run_child("trainer", TRAINER_STEPS, options.rounds)))
    missed = [text for _, goals in parts for text in goals]
    lines = [line for table, _ in parts for line in table]
    lines += ["## Goals", "", *([f"- missed: {text}" for text in missed] or ["All held."]), ""]
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(head(options.steps, options.rounds) + lines), encoding="utf-8")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
