"""What does watching a loop cost that knows nothing of us, a step?

    python benchmarks/loops.py [--steps 400] [--blocks 15]

A tiny model is trained by SGD in blocks of steps, in turn alone, with empty hooks of torch alone (before and after each
optimizer step, a call of the model), with an observed loop that has nothing to do but to count steps, and with all
that `forgather_mem.watch()` reads. Prints for each how much longer than alone a step takes, in us, as the median of the
differences between neighbouring blocks, and its share of a step of 17 ms. Time of the processor, so that other work
matters less; autograd runs a backward pass on the host in the thread that calls it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch.optim import optimizer as of_torch

import forgather_mem
from forgather_mem.callbacks import SimpleGarbageCollector
from forgather_mem.loops.observed import LOOPS, ObservedLoop
from forgather_mem.loops.state import default_arguments

STEP_S = 0.017


def train(steps: int) -> float:
    """Seconds of the processor for a step of this thread, without the first, in which a loop begins."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = torch.randn(8, 4)
    began_s = 0.0
    for step in range(steps + 20):
        if step == 20:
            began_s = time.thread_time()
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.thread_time() - began_s) / steps


@contextlib.contextmanager
def empty_hooks() -> Iterator[None]:
    def nothing(*_: object) -> None: ...

    with contextlib.ExitStack() as hooks:
        for register in (of_torch.register_optimizer_step_pre_hook, of_torch.register_optimizer_step_post_hook):
            hooks.callback(register(nothing).remove)
        hooks.callback(torch.nn.modules.module.register_module_forward_pre_hook(nothing).remove)
        hooks.callback(torch.nn.modules.module.register_module_forward_hook(nothing).remove)
        yield


@contextlib.contextmanager
def counting() -> Iterator[None]:
    loop = ObservedLoop(default_arguments(), lambda: [SimpleGarbageCollector()])
    LOOPS.add(loop)
    loop.listen()
    try:
        yield
    finally:
        loop.close()


def watching() -> AbstractContextManager[object]:
    return forgather_mem.watch(quiet=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="steps of a block")
    parser.add_argument("--blocks", type=int, default=15, help="blocks of each kind")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kinds: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "empty hooks of torch": empty_hooks,
        "counting steps": counting,
        "watch()": watching,
    }
    longer: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for _ in range(options.blocks):
            for kind, around in kinds.items():
                alone = train(options.steps)
                with around():
                    with_it = train(options.steps)
                longer[kind].append(with_it - (alone + train(options.steps)) / 2)
        os.chdir("/")
    print(f"{'around a loop':<24}{'us a step':>10}{'of 17 ms':>10}")
    for kind, seconds in longer.items():
        extra_s = statistics.median(seconds)
        print(f"{kind:<24}{1e6 * extra_s:>10.1f}{100 * extra_s / STEP_S:>9.2f}%")


if __name__ == "__main__":
    main()
