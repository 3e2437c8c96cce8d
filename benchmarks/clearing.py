"""Does adaptive clearing stop where clearing is useless, and go on where it helps? On the host and on a device.

Each scenario and policy has a process of its own, since what a heap looks like depends on all that came before. The
clear or trim is due after every step. Host scenarios are made of glibc's own blocks; device scenarios need CUDA and are
left out without it. `--check` ends with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forgather_mem.actions import Adaptive, ClearCache
from forgather_mem.actions.trim import trim_host
from forgather_mem.engine.run import Run
from forgather_mem.sinks import Capture
from forgather_mem.system.procfs import own_memory
from forgather_mem.telemetry.rule import Rule
from forgather_mem.triggers import Every
from forgather_mem.units import MIB

STEPS = 200
POLICIES = ("never", "always", "adaptive")
ALLOCATORS = ("", "expandable_segments:True", "max_split_size_mb:64", "backend:cudaMallocAsync")
Step = Callable[[int], None]


class Trim:
    """`malloc_trim` at every call: `TrimHost` without its budget of time, so that decisions can be counted."""

    books = "trim"

    def __call__(self, moment: Any, sample: Any) -> Mapping[str, float]:
        return trim_host()


# ---- what a step does ----


class Heap:
    """Blocks of glibc's malloc that leave holes, and what is made in them."""

    block = 64 * 1024

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._libc.malloc.restype = self._libc.realloc.restype = ctypes.c_void_p
        self._libc.malloc.argtypes = [ctypes.c_size_t]
        self._libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._libc.free.argtypes = [ctypes.c_void_p]

    def leave_holes(self, mib: float) -> None:
        for block in self._touched(mib, self.block):
            self._libc.realloc(block, 64)  # shrunk where it lies: nothing of the same size fits into the rest

    def use_holes(self, mib: float) -> None:
        for block in self._touched(mib, self.block - 1024):
            self._libc.free(block)

    def _touched(self, mib: float, size: int) -> list[int]:
        blocks = [self._libc.malloc(size) for _ in range(int(mib * MIB) // size)]
        for block in blocks:
            ctypes.memset(block, 1, size)
        return blocks


def host_scenario(name: str) -> Step:
    heap, chance = Heap(), random.Random(1)
    if name == "the same sizes again":
        heap.leave_holes(64)
        return lambda step: heap.use_holes(64)
    if name == "varying sizes":
        heap.leave_holes(64)
        return lambda step: heap.use_holes(chance.uniform(16, 64))
    if name == "holes once":
        return lambda step: heap.leave_holes(256) if step == 5 else None
    if name == "new holes at each step":
        return lambda step: heap.leave_holes(4)
    return lambda step: None


HOST = {  # scenario: whether trims help
    "nothing to give back": False,
    "the same sizes again": False,
    "varying sizes": False,
    "holes once": False,
    "new holes at each step": True,
}


def device_scenario(name: str) -> Step:
    import torch

    chance = random.Random(1)
    kept: list[torch.Tensor] = []

    def forward(length: int) -> None:
        layers = [torch.empty(length * 4096, device="cuda") for _ in range(24)]
        for layer in layers:
            layer.fill_(1.0)

    def varying(step: int) -> None:
        forward(chance.randrange(128, 2048))

    def fragmenting(step: int) -> None:
        """A long batch now and then, and small tensors that stay in what it leaves."""
        forward(4096 if step % 20 == 0 else 256)
        kept.append(torch.empty(chance.randrange(1, 8) * MIB // 4, device="cuda"))

    return {"the same sizes again": lambda step: forward(1024), "varying lengths": varying, "fragmenting": fragmenting}[
        name
    ]


DEVICE = ("the same sizes again", "varying lengths", "fragmenting")


# ---- one scenario under one policy ----


def child(place: str, scenario: str, policy: str) -> dict[str, float]:
    action: Any = Trim() if place == "host" else ClearCache()
    work = host_scenario(scenario) if place == "host" else device_scenario(scenario)
    capture = Capture()
    state = SimpleNamespace(global_step=0, epoch=0.0)
    run = Run.begin(SimpleNamespace(output_dir=None), state, strict=True)
    does = {"never": _nothing, "always": action, "adaptive": Adaptive(action)}[policy]
    member = object()
    plans = run.add_member(member, [Rule(when=Every(steps=1), do=[does])], [capture], 0.0)
    levels, times = [], []
    for step in range(1, STEPS + 1):
        began_s = time.perf_counter()
        if "step_begin" in plans:
            run.handle(plans["step_begin"], None, state, None, {})
        work(step)
        _wait(place)
        levels.append(_level(place))
        state.global_step = step
        run.handle(plans["step_end"], None, state, None, {})
        times.append(time.perf_counter() - began_s)
    run.close()
    names = {"trim/time_s", "cache/time_s"}
    return {
        "done": sum(not names.isdisjoint(sample.values) for sample in capture.samples),
        "step_s": statistics.median(times),
        "highest_bytes": max(levels),
        "last_bytes": levels[-1],
    }


def _nothing(moment: Any, sample: Any) -> Mapping[str, float]:
    return {}


def _wait(place: str) -> None:
    if place == "device":
        import torch

        torch.cuda.synchronize()


def _level(place: str) -> float:
    if place == "host":
        return own_memory().anonymous_bytes
    import torch

    return float(torch.cuda.memory_reserved())


# ---- the report ----


def run_child(place: str, scenario: str, policy: str, allocator: str = "") -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {})
    command = [sys.executable, __file__, "--child", place, scenario, policy]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.decode().splitlines()[-1])
    return result


def stopped(found: Mapping[str, float]) -> float:
    """The share of what was due after the third call that was not done."""
    return 1 - max(0.0, found["done"] - 3) / (STEPS - 3)


def table(title: str, rows: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    lines = [
        f"## {title}",
        "",
        "| scenario | policy | done | stopped after the third | step, ratio | highest, MiB | at the end, MiB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for scenario, policies in rows.items():
        for policy, found in policies.items():
            ratio = found["step_s"] / policies["never"]["step_s"]
            left_out = f"{stopped(found):.1%}" if policy == "adaptive" else ""
            sizes = f"{found['highest_bytes'] / MIB:,.0f} | {found['last_bytes'] / MIB:,.0f}"
            lines.append(f"| {scenario} | {policy} | {found['done']:.0f} | {left_out} | {ratio:.2f} | {sizes} |")
    return [*lines, ""]


def host_part() -> tuple[list[str], list[str]]:
    rows = {name: {policy: run_child("host", name, policy) for policy in POLICIES} for name in HOST}
    missed = []
    for name, helps in HOST.items():
        done, share = rows[name]["adaptive"]["done"], stopped(rows[name]["adaptive"])
        if helps and done < STEPS:
            missed.append(f"{name}: {STEPS - done:.0f} trims that help were stopped, wanted 0")
        if not helps and share < 0.95:
            missed.append(f"{name}: {share:.1%} of the useless trims were stopped, wanted 95 %")
    return table("Host: malloc_trim after each step", rows), missed


def device_part() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return ["## Device: empty_cache after each step", "", "Not run: no CUDA device here.", ""]
    lines: list[str] = []
    for allocator in ALLOCATORS:
        rows = {name: {policy: run_child("device", name, policy, allocator) for policy in POLICIES} for name in DEVICE}
        name = f"{torch.cuda.get_device_name()}, {allocator or 'default allocator'}"
        lines += table(f"Device: empty_cache after each step; {name}", rows)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="end with 1 when a goal is missed")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*options.child)))
        return 0
    import torch

    host, missed = host_part()
    lines = host + device_part()
    lines += ["## Goals on the host", "", *([f"- missed: {text}" for text in missed] or ["All held."]), ""]
    print("\n".join(lines))
    if options.markdown:
        libc = " ".join(platform.libc_ver())
        head = [
            "# Adaptive clearing",
            "",
            f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, torch {torch.__version__}, {libc}, "
            f"{os.cpu_count()} CPUs. Made by `python benchmarks/clearing.py`.",
            f"{STEPS} steps that do nothing else, a call due after each. Sizes are anonymous memory on the host and",
            "reserved memory on a device, before the call.",
            "",
        ]
        options.markdown.write_text("\n".join(head + lines), encoding="utf-8")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
