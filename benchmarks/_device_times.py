"""Parts of benchmarks/device.py about time: clears, and what watching costs in steps of 17 ms and with CUDA graphs.

Each is a function of the device's kind ("cuda", or "cpu" for `--dry`) that yields rows, in a process of its own.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from _device_memory import Row, hold
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerControl, TrainerState

from forgather_mem.actions.clear import clear_cache
from forgather_mem.callbacks import MemoryCallback, TBMemoryLogger
from forgather_mem.units import MIB

STEP_S, BLOCK_STEPS, MOST_COST_FRAC = 0.017, 10, 0.01
STEP_EVENTS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")
SCENARIOS = {"cuda": ("the same sizes again", "fragmenting"), "cpu": ("nothing to give back",)}
MOST_SLOWER, CLEARLY_LESS = 1.1, 0.9


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# ---- clears ----


def clear(device: str) -> Iterator[Row]:
    """`empty_cache` while kernels are queued, and after they are done."""
    square = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)

    def queue() -> None:
        for _ in range(50):
            square @ square

    def took_s(*, waits_first: bool) -> tuple[float, float]:
        cached = hold(512 * MIB, device)
        del cached
        queue()
        if waits_first:
            wait(device)
        began_s = time.perf_counter()
        booked = clear_cache()
        return time.perf_counter() - began_s, booked["cache/time_s"]

    queue()
    wait(device)
    began_s = time.perf_counter()
    queue()
    wait(device)
    work_s = time.perf_counter() - began_s
    queued = statistics.median(took_s(waits_first=False)[0] for _ in range(7))
    idle = statistics.median(took_s(waits_first=True)[0] for _ in range(7))
    figures = (
        f"{queued * 1e3:.1f} ms with {work_s * 1e3:.1f} ms of kernels queued, {idle * 1e3:.2f} ms after they are done"
    )
    # As docs/metrics.md says of cache/time_s: most of it is the training's own work
    yield Row("empty_cache waits for what is queued", figures, queued - idle > 0.5 * work_s)


def policies(device: str) -> Iterator[Row]:
    """A clear after each step: never, always, and by `Adaptive`. benchmarks/clearing.py has more of them."""
    import clearing

    place = "device" if device == "cuda" else "host"
    for scenario in SCENARIOS[device]:
        found = {policy: clearing.run_child(place, scenario, policy) for policy in clearing.POLICIES}
        never, adaptive = found["never"], found["adaptive"]
        figures = "; ".join(
            f"{policy}: {1 / one['step_s']:,.0f} steps/s, {one['done']:.0f} done, {one['highest_bytes'] / MIB:,.0f} MiB"
            for policy, one in found.items()
        )
        is_fast = adaptive["step_s"] <= MOST_SLOWER * never["step_s"]
        saves = adaptive["highest_bytes"] < CLEARLY_LESS * never["highest_bytes"]
        yield Row(scenario, figures, is_fast or saves)


# ---- what watching costs ----


class Watched:
    """A callback in steps of a loop, in random blocks with and without it; the device is waited for in each step."""

    def __init__(self, callback: TrainerCallback, folder: str, work: Callable[[], object], device: str) -> None:
        self.args = TrainingArguments(output_dir=folder, report_to=[], use_cpu=device == "cpu")
        self.state, self.control = TrainerState(max_steps=10**9), TrainerControl()
        model = torch.nn.Linear(4, 4).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        self._callback, self._objects = callback, {"model": model, "optimizer": optimizer}
        self._work, self._device = work, device
        self._fire("on_train_begin")

    def step(self, on: bool) -> tuple[float, float, float]:
        """Seconds of a step; of our events in it; of the processor in these."""
        began_s, events_s, cpu_s = time.perf_counter(), 0.0, 0.0
        for event in STEP_EVENTS:
            if event == "on_step_end":
                self.state.global_step += on  # the callback sees consecutive steps
                self._work()
                wait(self._device)
            if on:
                fired_s, fired_cpu_s = time.perf_counter(), time.thread_time()
                self._fire(event)
                cpu_s += time.thread_time() - fired_cpu_s
                events_s += time.perf_counter() - fired_s
        return time.perf_counter() - began_s, events_s, cpu_s

    def close(self) -> None:
        self._fire("on_train_end")

    def _fire(self, event: str) -> None:
        getattr(self._callback, event)(self.args, self.state, self.control, **self._objects)


def cost_of(
    callback: TrainerCallback, work: Callable[[], object], device: str, num_blocks: int = 60
) -> tuple[str, bool]:
    """What a callback costs in words, and whether it is as cheap as promised, as far as noise lets one say."""
    chance = random.Random(0)
    differences: list[float] = []
    medians: list[float] = []
    events: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(callback, folder, work, device)
        for _ in range(2 * BLOCK_STEPS):
            watched.step(True)
        for _ in range(num_blocks // 2):
            took: dict[bool, float] = {}
            for on in chance.sample((True, False), 2):
                steps = [watched.step(on) for _ in range(BLOCK_STEPS)]
                took[on] = statistics.median(step_s for step_s, _, _ in steps)
                events += [(wall_s, cpu_s) for _, wall_s, cpu_s in steps if on]
            differences.append(took[True] - took[False])
            medians.append(took[False])
        watched.close()
    step_s, more_s = statistics.median(medians), statistics.median(differences)
    noise_s = 1.25 * statistics.stdev(differences) / len(differences) ** 0.5  # the standard error of a median
    in_events_s, cpu_s = (
        statistics.median(wall_s for wall_s, _ in events),
        statistics.fmean(cpu_s for _, cpu_s in events),
    )
    figures = (
        f"step {step_s * 1e3:.2f} ms, with it {more_s / step_s:+.2%} (noise {noise_s / step_s:.2%}); its events "
        f"{in_events_s * 1e6:.0f} us ({in_events_s / step_s:.2%}), of the processor on average {cpu_s * 1e6:.0f} us"
    )
    # On a host, which others use, wall time is theirs, too, and so is the mean
    usual_s = statistics.median(cpu_s for _, cpu_s in events)
    judged_s = usual_s if device == "cpu" else max(in_events_s, cpu_s, more_s - 2 * noise_s)
    return figures, judged_s <= MOST_COST_FRAC * max(step_s, STEP_S)


def cost(device: str) -> Iterator[Row]:
    square = torch.randn(4096 if device == "cuda" else 256, 4096 if device == "cuda" else 256, device=device)
    times = _times_for_a_step(lambda: square @ square, device)

    def work() -> None:
        for _ in range(times):
            square @ square

    with tempfile.TemporaryDirectory() as folder:
        for name, callback in (
            ("MemoryCallback(), as `run` watches", MemoryCallback()),
            ("TBMemoryLogger(), every step", TBMemoryLogger(logging_dir=Path(folder))),
        ):
            yield Row(name, *cost_of(callback, work, device))


def _times_for_a_step(call: Callable[[], object], device: str) -> int:
    """How many of these calls take 17 ms."""
    tried_s = []
    for _ in range(10):  # the first are slower
        wait(device)
        began_s = time.perf_counter()
        for _ in range(10):
            call()
        wait(device)
        tried_s.append((time.perf_counter() - began_s) / 10)
    return max(1, round(STEP_S / min(tried_s)))


def graphs(device: str) -> Iterator[Row]:
    """A training step that is one CUDA graph: as cheap, and the same weights as without us."""
    watched, alone = _Graphed(device), _Graphed(device)
    figures, cheap = cost_of(MemoryCallback(), watched.step, device, num_blocks=40)
    yield Row("a step of one CUDA graph, watched", figures, cheap)
    for _ in range(watched.steps):
        alone.step()
    wait(device)
    same = all(torch.equal(one, other) for one, other in zip(watched.weights(), alone.weights(), strict=True))
    yield Row("its weights", f"after {watched.steps} steps " + ("identical" if same else "DIFFERENT"), same)


class _Graphed:
    """A small training whose forward pass, backward pass and update are captured as one graph."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.rows = torch.randn(4096, 2048, device=device)
        self.graph: Any = torch.cuda.CUDAGraph()
        self.steps = 0
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # before a capture, what is made on first use has to be there
            for _ in range(3):
                self._train()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            self._train()

    def _train(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.rows).square().mean().backward()
        self.optimizer.step()

    def step(self) -> None:
        self.graph.replay()
        self.steps += 1

    def weights(self) -> list[torch.Tensor]:
        return [weight.detach() for weight in self.model.parameters()]
