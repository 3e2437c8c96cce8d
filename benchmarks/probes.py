"""What does one reading of each probe cost, beside psutil and torch's own getters, in one process?

    python benchmarks/probes.py [--rounds N] [--real-steps N] [--markdown FILE] [--check]

Tight loops, in which the variants take turns round by round; and a real training, in which they take turns
step by step, one call each with the caches as the step leaves them. Figures are medians, ratios are of
medians. Without a CUDA device the device part runs on a nested dictionary of the shape that
`torch.cuda.memory_stats` documents: the Python part of the reading, without the allocator's own 10 to 20 us; it has
no floor here. That of a host sample is one `pread` of an open file of /proc; of rare readings, an empty function.
`--check` ends with 1 when a ratio is above what we promise.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from _training import train
from torch import nn
from transformers import TrainerCallback

from forgather_mem.probes import DeviceProbe, HostProbe, PhaseProbe, PythonProbe, device
from forgather_mem.probes.tensors import tensor_bytes
from forgather_mem.system import peak_windows
from forgather_mem.system.allocator import Allocator, Device, Nested
from forgather_mem.system.memory_limit import MemoryLimit
from forgather_mem.system.peak_windows import host_peaks
from forgather_mem.system.procfs import read_once
from forgather_mem.telemetry.records import Moment, Sample

Variants = dict[str, Callable[[], object]]
FLOOR = "floor: one pread"
PROMISED = {"HostProbe + PythonProbe": 0.7, "DeviceProbe": 1 / 25, "DeviceProbe(reset_peaks=True)": 1 / 25}
SAMPLE = Sample(event="step_end", step=1, epoch=None, time_s=0.0, values={})


def cost_s(variants: Variants, rounds: int, calls: int) -> dict[str, float]:
    """Median seconds a call; the variants take turns."""
    took: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            began_s = time.perf_counter()
            for _ in range(calls):
                call()
            took[name].append((time.perf_counter() - began_s) / calls)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


def table(title: str, costs: dict[str, float], *, promises: bool = True) -> list[str]:
    """Markdown; ratios are to the first row, and to the floor if there is one."""
    reference, floor_s = next(iter(costs)), costs.get(FLOOR)
    lines = [
        f"## {title}",
        "",
        f"| | us a call | of `{reference}` | of the floor | promised |",
        "|---|---:|---:|---:|---|",
    ]
    for name, seconds in costs.items():
        promised = f"at most {PROMISED[name]}" if promises and name in PROMISED else ""
        of_floor = f"{seconds / floor_s:.1f}" if floor_s else "-"
        lines.append(f"| {name} | {seconds * 1e6:.2f} | {seconds / costs[reference]:.3f} | {of_floor} | {promised} |")
    return [*lines, ""]


def too_dear(costs: dict[str, float]) -> list[str]:
    reference = next(iter(costs.values()))
    return [name for name, seconds in costs.items() if seconds / reference > PROMISED.get(name, 1e9)]


class TakesTurns(TrainerCallback):
    """In a real training, one variant is called once at the end of each step."""

    def __init__(self, variants: Variants) -> None:
        self.variants = list(variants.items())
        self.took: dict[str, list[float]] = {name: [] for name in variants}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        name, call = self.variants[state.global_step % len(self.variants)]
        began_s = time.perf_counter()
        call()
        self.took[name].append(time.perf_counter() - began_s)


def cost_in_real_steps_s(variants: Variants, steps: int) -> dict[str, float]:
    """Median seconds a call with the caches as a training step leaves them."""
    turns = TakesTurns(variants)
    with tempfile.TemporaryDirectory() as folder:
        train(turns, steps * len(variants), Path(folder))
    return {name: statistics.median(seconds) for name, seconds in turns.took.items()}


def host_variants(run: Any, moment: Moment) -> Variants:
    host, python, process = HostProbe().begin(run), PythonProbe().begin(run), psutil.Process()
    for probe in (host, python):
        probe(moment, SAMPLE)  # the rare readings are behind us

    def sample() -> None:
        host(moment, SAMPLE)
        python(moment, SAMPLE)

    statm = os.open("/proc/self/statm", os.O_RDONLY)
    return {
        "psutil memory_info()": process.memory_info,
        "psutil Process().memory_info()": lambda: psutil.Process().memory_info(),
        "HostProbe": lambda: host(moment, SAMPLE),
        "HostProbe + PythonProbe": sample,
        FLOOR: lambda: os.pread(statm, 256, 0),
    }


def paper_stats() -> dict[str, Any]:
    pool = {"current": 3 << 30, "peak": 5 << 30, "allocated": 1 << 40, "freed": 1 << 39}
    groups = (
        "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
        "active_bytes", "inactive_split_bytes", "requested_bytes",
    )  # fmt: skip
    stats: dict[str, Any] = {
        group: {name: dict(pool) for name in ("all", "small_pool", "large_pool")} for group in groups
    }
    counters = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
    stats |= dict.fromkeys(counters, 0)
    return stats | {"oversize_allocations": dict(pool), "oversize_segments": dict(pool), "max_split_size": -1}


def device_variants(run: Any, moment: Moment) -> Variants:
    stats = paper_stats()

    def nested(device: object = None) -> Nested:
        return stats

    allocator = Allocator(
        kind="cuda",
        index=0,
        stats=nested,
        reset_peaks=lambda: None,
        memory_info=lambda: (8 << 30, 16 << 30),
        empty_cache=lambda: None,
        counts_retries=True,
        device=lambda: Device("cuda:0", "simulated", 16 << 30),
    )
    for module in (device, peak_windows):
        module.current_allocator = lambda: allocator  # type: ignore[attr-defined]
    torch.cuda.memory.memory_stats_as_nested_dict = nested  # type: ignore[assignment]
    passive, resetting = DeviceProbe().begin(run), DeviceProbe(reset_peaks=True).begin(run)
    for probe in (passive, resetting):
        assert probe(moment, SAMPLE)["device/allocated_bytes"] == 3 << 30

    def four_getters() -> None:
        torch.cuda.memory_allocated()
        torch.cuda.memory_reserved()
        torch.cuda.max_memory_allocated()
        torch.cuda.max_memory_reserved()

    return {
        "memory_stats()": torch.cuda.memory_stats,
        "four torch.cuda getters": four_getters,
        "DeviceProbe": lambda: passive(moment, SAMPLE),
        "DeviceProbe(reset_peaks=True)": lambda: resetting(moment, SAMPLE),
    }


def single_readings(run: Any) -> Variants:
    peaks, limit = host_peaks(), MemoryLimit()
    assert peaks is not None
    peaks.open(reset=False)  # somebody watches the whole run: the kernel's files stay open
    phases: Any = PhaseProbe(host_mark=True, device=False).begin(run)

    def phase() -> None:
        phases.phase_begin("forward")
        phases.phase_end("forward")

    return {
        "an empty function": lambda: None,
        "a window of the kernel's mark, opened and closed": lambda: peaks.open().close(),
        "a phase of PhaseProbe(host_mark=True)": phase,
        "what is left below the limits": limit.bounds,
        "PSS (smaps_rollup)": lambda: read_once("/proc/self/smaps_rollup"),
        "tracked objects": lambda: len(gc.get_objects()) + gc.get_freeze_count(),
    }


def tensor_variants() -> Variants:
    model = nn.ModuleList(nn.Linear(8, 8) for _ in range(150))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"300 parameters with gradients and AdamW's state": lambda: tensor_bytes(model, optimizer)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--real-steps", type=int, default=150, help="calls of each variant in a real training")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    run: Any = SimpleNamespace(tell=lambda finding: None, step=0)
    moment = Moment("step_end", 1, 0.5, None, None, None, {}, run)
    torch.set_num_threads(1)
    load_before = os.getloadavg()[0]
    of_host = host_variants(run, moment)
    host, host_real = cost_s(of_host, options.rounds, 2000), cost_in_real_steps_s(of_host, options.real_steps)
    on_paper = device_variants(run, moment)
    of_device, device_real = cost_s(on_paper, options.rounds, 500), cost_in_real_steps_s(on_paper, options.real_steps)
    single = cost_s(single_readings(run) | tensor_variants(), options.rounds, 20)
    lines = [
        "# What the probes cost",
        "",
        f"{date.today()}, Python {platform.python_version()}, torch {torch.__version__}, psutil "
        f"{psutil.__version__}, {psutil.cpu_count()} CPUs, {len(gc.get_objects()):,} tracked objects, "
        f"{psutil.Process().memory_info().rss / 2**20:.0f} MiB resident, load {load_before:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after. Made by `python benchmarks/probes.py --rounds {options.rounds}`.",
        "",
        *table("(a) One host sample: RSS, anonymous, run peak, collector counts (wanted: 6 us)", host),
        *table("(a) The same in a real training step of about 17 ms", host_real),
        *table("(e) The Python part of one device sample, on a nested dictionary of real shape", of_device),
        *table("(e) The same in a real training step of about 17 ms", device_real, promises=False),
        *table("Rare readings and windows", single),
    ]
    print("\n".join(lines))
    if options.markdown is not None:
        options.markdown.write_text("\n".join(lines))
    dear = too_dear(host) + too_dear(host_real) + too_dear(of_device)
    if options.check and dear:
        raise SystemExit(f"dearer than promised: {', '.join(dear)}")


if __name__ == "__main__":
    main()
