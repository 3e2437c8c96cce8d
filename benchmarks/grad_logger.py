"""What does a logged step of GradLogger cost, beside clip_grad_norm_ and Forgather's own logger?

    python benchmarks/grad_logger.py [--forgather CHECKOUT] [--rounds N] [--markdown FILE]

A model of 100 blocks with 3 parameters each. The variants take turns, round by round, on the same gradients;
figures are medians of processor time. Ours is a whole logged step through the callback's own events: measuring
before clipping, looking for trouble, and writing the totals, all 100 layers and now and then the flow table to
TensorBoard. Forgather's logs the root mean square of each parameter and its gradient, by one `.item()` and one
`add_scalar` for each.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import tempfile
import time
import types
import typing
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerControl, TrainerState

from forgather_mem.callbacks import GradLogger
from forgather_mem.callbacks.training.grad_norms import GradientNorms

BLOCKS = 100
WIDTHS = (16, 64, 256)


class Block(torch.nn.Module):
    """Three parameters, as a layer has them: a matrix, its bias, a scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, width))
        self.bias = torch.nn.Parameter(torch.zeros(width))
        self.scale = torch.nn.Parameter(torch.ones(width))


def model_with_gradients(width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(Block(width) for _ in range(BLOCKS))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def forgathers_logger(checkout: Path) -> type:
    """Forgather's class, from its file; its packages are entered without running what they import besides."""
    typing.override = getattr(typing, "override", lambda method: method)  # type: ignore[attr-defined]  # Python 3.11
    folder = checkout / "src"
    for name in ("forgather", "forgather.ml", "forgather.ml.trainer", "forgather.ml.trainer.callbacks"):
        folder = checkout / "src" / Path(*name.split("."))
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    found: type = importlib.import_module("forgather.ml.trainer.callbacks.grad_logger").GradLogger
    return found


class Step:
    """One logged step after the other through a callback's events, as a Trainer fires them."""

    def __init__(self, callback: Any, model: torch.nn.Module, folder: Path) -> None:
        self.callback = callback
        self.args = SimpleNamespace(output_dir=str(folder), process_index=0, world_size=1)
        self.state, self.control = TrainerState(), TrainerControl()
        self.objects = {"model": model}
        self._fire("train_begin")

    def __call__(self) -> None:
        self._fire("step_begin")
        self._fire("pre_optimizer_step")
        self._fire("optimizer_step")
        self.state.global_step += 1

    def end(self) -> None:
        self._fire("train_end")

    def _fire(self, event: str) -> None:
        getattr(self.callback, f"on_{event}")(self.args, self.state, self.control, **self.objects)


def measure(width: int, rounds: int, folder: Path, checkout: Path | None) -> dict[str, float]:
    """Median seconds of processor time by variant."""
    model = model_with_gradients(width)
    parameters, norms = list(model.parameters()), GradientNorms(model)
    ours = Step(GradLogger(log_frequency=1), model, folder / "ours")
    idle = Step(GradLogger(log_frequency=10**9), model, folder / "idle")
    variants: dict[str, Callable[[], Any]] = {
        "`clip_grad_norm_`": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0),
        "`clip_grad_norm_(foreach=True)`": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True),
        "GradLogger, a logged step": ours,
        "of it: the norms of all layers": norms.read,
        "GradLogger, a step that is not logged": idle,
    }
    writer = None
    if checkout is not None:
        writer = SummaryWriter(str(folder / "forgather"))
        theirs = forgathers_logger(checkout)(writer, neg_re="^$", pos_re="", log_steps=1)
        state = SimpleNamespace(is_world_process_zero=True, global_step=1)
        variants["Forgather's GradLogger, a logged step"] = lambda: theirs.on_optimizer_step(
            None, state, None, model=model
        )
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 3):
        for name, call in variants.items():
            began = time.thread_time()  # all of it runs in this thread; others on the machine don't count
            call()
            if number >= 3:  # warm by then
                times[name].append(time.thread_time() - began)
    ours.end()
    idle.end()
    if writer is not None:
        writer.close()
    return {name: statistics.median(found) for name, found in times.items()}


def table(width: int, found: dict[str, float]) -> list[str]:
    base = found["`clip_grad_norm_`"]
    millions = BLOCKS * (width * width + 2 * width) / 1e6
    lines = [
        f"## 300 parameters, {millions:.2f} million numbers ({width} wide)",
        "",
        "| | us | of `clip_grad_norm_` |",
        "|---|---:|---:|",
    ]
    lines += [f"| {name} | {seconds * 1e6:,.0f} | {seconds / base:.2f} |" for name, seconds in found.items()]
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forgather", type=Path, help="a checkout of Forgather, to measure its logger too")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    with tempfile.TemporaryDirectory() as name:
        for width in WIDTHS:
            lines += table(width, measure(width, options.rounds, Path(name) / str(width), options.forgather))
    print("\n".join(lines))
    if options.markdown:
        command = f"python benchmarks/grad_logger.py --rounds {options.rounds}"
        command += " --forgather CHECKOUT" if options.forgather else ""
        head = [
            "# What GradLogger costs",
            "",
            f"{time.strftime('%Y-%m-%d')}, Python {sys.version.split()[0]}, torch {torch.__version__}, one thread, "
            f"2 shared x86 cores. Made by `{command}`. Medians of processor time over interleaved rounds.",
            "",
            "Promised: a logged step takes at most 1.5 times `clip_grad_norm_`. By default every 100th step is one.",
            "",
        ]
        options.markdown.write_text("\n".join(head + lines), encoding="utf-8")


if __name__ == "__main__":
    main()
