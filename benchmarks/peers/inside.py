"""Runs a script with a monitor that belongs inside of it, and reads what other tools have written.

    python benchmarks/peers/inside.py memray|objgraph|wandb|lightning|traceml SCRIPT
    python benchmarks/peers/inside.py --read-memray SCRIPT       in the folder where memray has left its files
    python benchmarks/peers/inside.py --read-fil SCRIPT

A monitor is called after each step of any optimizer, and leaves `findings.txt`.
"""

from __future__ import annotations

import contextlib
import gc
import random
import re
import runpy
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
FINDINGS = Path("findings.txt").absolute()
LOOK_EVERY, LAST_LOOKS = 50, 3
CHAINS_AT = 200  # the shortest of the scripts has 200 steps
TRACKED_UNTIL = 250
MOST = 3  # of a tool's findings that anybody would follow


def find(line: str) -> None:
    with FINDINGS.open("a") as file:
        file.write(line + "\n")


class Objgraph:
    """The recipe of its documentation: what grows from look to look, then who keeps some of it, taken at random."""

    def __init__(self) -> None:
        self.steps = 0
        self.looks: list[dict[str, int]] = []

    def step(self) -> None:
        import objgraph

        self.steps += 1
        if self.steps % LOOK_EVERY:
            return
        self.looks.append({name: delta for name, _, delta in objgraph.growth(limit=10)})
        find(f"growth at step {self.steps}: {self.looks[-1]}")
        if self.steps == CHAINS_AT:
            last = self.looks[-LAST_LOOKS:]
            always = [name for name in last[-1] if all(name in look for look in last)]
            if always:
                find(f"grew at each of the last {LAST_LOOKS} looks: {', '.join(always)}")
            chosen = random.Random(0)
            for name in [name for name in always[:MOST] for _ in range(MOST)]:
                chain = objgraph.find_backref_chain(chosen.choice(objgraph.by_type(name)), objgraph.is_proper_module)
                find(f"chain {' -> '.join(map(link, chain, [*chain[1:], None]))}")

    def finish(self) -> None:
        """Nothing is left to do."""


def link(holder: Any, held: Any) -> str:
    """A part of a chain, with the name under which it holds the next."""
    kind = getattr(holder, "__name__", "") if isinstance(holder, type(sys)) else type(holder).__name__
    names = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    with contextlib.suppress(Exception):  # keys and attributes of others
        return next(f"{kind}[{key}]" for key, value in list(names.items()) if value is held and held is not None)
    return kind


class Wandb:
    """System metrics of an offline run, once a second instead of every 15: the scripts are short."""

    def __init__(self) -> None:
        import wandb

        self.run = wandb.init(project="peers", settings=wandb.Settings(x_stats_sampling_interval=1.0))
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        self.run.log({"step": self.steps})

    def finish(self) -> None:
        self.run.finish()
        file = next(Path("wandb").glob("offline-run-*/run-*.wandb"))
        # Its format is its own: what is drawn are curves of these names
        names = {name.decode() for name in re.findall(rb"[a-z_.]*mem[a-zA-Z_.]*", file.read_bytes())}
        find(f"curves: {', '.join(sorted(names))}")


class Lightning:
    """`DeviceStatsMonitor(cpu_stats=True)` itself, with the logger it would have."""

    def __init__(self) -> None:
        sys.path.insert(0, str(ROOT))
        from benchmarks._peers import device_stats_monitor

        self.monitor, self.steps = device_stats_monitor(Path("stats")), 0

    def step(self) -> None:
        self.steps += 1
        self.monitor.on_step_end(None, SimpleNamespace(global_step=self.steps), None)

    def finish(self) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        gc.collect()  # closes the writer
        for file in Path("stats").rglob("events.out.*"):
            events = EventAccumulator(str(file)).Reload()
            for tag in events.Tags()["scalars"]:
                points = events.Scalars(tag)
                find(f"{tag}: {points[0].value:.1f} to {points[-1].value:.1f} in {len(points)} points")


class TraceML:
    """The two lines that its page asks of a loop of one's own: a step lasts from one of the optimizer to the next."""

    def __init__(self) -> None:
        import torch
        import traceml_ai

        traceml_ai.init(mode="auto")
        self.trace, self.model = traceml_ai.trace_step, torch.nn.Identity()
        self.open = self.trace(self.model)
        self.open.__enter__()

    def step(self) -> None:
        self.open.__exit__(None, None, None)
        self.open = self.trace(self.model)
        self.open.__enter__()

    def finish(self) -> None:
        self.open.__exit__(None, None, None)


class Memray:
    """Its `Tracker`, which leaves out the imports, until a step at which the training still holds what it keeps."""

    def __init__(self) -> None:
        import lightning  # noqa: F401
        import memray
        import transformers

        transformers.Trainer, transformers.LlamaForCausalLM  # noqa: B018
        self.steps = 0
        self.tracker = memray.Tracker(
            destination=memray.FileDestination("memray.bin"), trace_python_allocators=True, follow_fork=True,
            file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS,
        )  # fmt: skip
        self.tracker.__enter__()

    def step(self) -> None:
        self.steps += 1
        if self.steps == TRACKED_UNTIL:
            self.tracker.__exit__(None, None, None)

    def finish(self) -> None:
        if self.steps < TRACKED_UNTIL:
            self.tracker.__exit__(None, None, None)


MONITORS = {"memray": Memray, "objgraph": Objgraph, "wandb": Wandb, "lightning": Lightning, "traceml": TraceML}


def watch(monitor: str, script: Path) -> None:
    """Run the script as `python SCRIPT` would, with this monitor."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    watching = MONITORS[monitor]()
    register_optimizer_step_post_hook(lambda *_: watching.step())
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        watching.finish()


def lines_of(what: str, sizes: Iterable[tuple[int, list[tuple[str, int]]]], script: str) -> None:
    """Print the script's own lines that hold most: of each stack, innermost frame first, the innermost of them."""
    held: Counter[int] = Counter()
    for size, stack in sizes:
        line = next((line for file, line in stack if Path(file).name == script), None)
        if line is not None:
            held[line] += size
    for line, size in held.most_common(MOST):
        print(f"{what}: {script}:{line} {size / 2**20:.2f} MiB")


def read_memray(script: str) -> None:
    """What its flame graphs show: the peak, and with `--leaks` what was not given back."""
    from memray import FileReader

    for file in sorted(Path().glob("memray.bin*")):
        for what in ("get_high_watermark_allocation_records", "get_leaked_allocation_records"):
            reader = FileReader(str(file))
            try:
                records = list(getattr(reader, what)(merge_threads=True))
            except OSError as error:  # of a process that did not end by itself
                print(f"{what}: {error}")
                continue
            sizes = ((r.size, [(frame[1], frame[2]) for frame in r.stack_trace()]) for r in records)
            name = "peak" if "high" in what else "leaks"
            lines_of(f"{name} of {'the script' if file.suffix == '.bin' else 'a worker'}", sizes, script)


def read_fil(script: str) -> None:
    """What its flame graph of the peak shows, or that of the moment when memory was out."""
    for file in sorted(Path("fil").rglob("*.prof")):
        sizes = []
        for line in file.read_text().splitlines():
            stack, _, size = line.rpartition(" ")
            frames = [frame.split(" (")[0].rpartition(":")[::2] for frame in stack.split(";")]
            sizes.append((int(size), [(name, int(at)) for name, at in reversed(frames) if at.isdigit()]))
        lines_of(file.stem, sizes, script)


if __name__ == "__main__":
    what, path = sys.argv[1], Path(sys.argv[2])
    if what == "--read-memray":
        read_memray(path.name)
    elif what == "--read-fil":
        read_fil(path.name)
    else:
        watch(what, path)
