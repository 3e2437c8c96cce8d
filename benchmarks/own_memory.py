"""How much memory does watching take itself? The same training in fresh processes, alone and watched in each way.

    python benchmarks/own_memory.py [--runs 3] [--only NAME ...]
    python benchmarks/own_memory.py --long 100000     what it gains over so many steps of a plain loop
    python benchmarks/own_memory.py --below 8 [--limit AS]   whether trainings with so many MiB left bear being watched

Each row is the median over the runs of what the process has at its last step beyond the training alone: private memory
(what it has written: whether a library's pages are its own depends on what else runs), resident memory, reserved
addresses, and the high-water mark of resident memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STEPS = 200
BYTECODE = Path(tempfile.gettempdir(), "own_memory_bytecode")
LIMIT = "OWN_MEMORY_LIMIT_MIB"  # of a child's addresses, from its first line on; "DATA 300" for private writable ones
LIMITED = {"DATA": "data", "AS": "addresses"}  # what each limit counts
WAYS = ("private", "resident", "addresses", "peak")
RUN = [sys.executable, "-m", "forgather_mem", "run"]


def memory_of(pid: int | str = "self") -> dict[str, float]:
    """MiB of a process, as the kernel counts them."""
    rollup = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kib = {name: int(text.split()[0]) for name, text in {**rollup, **status}.items() if text.strip().endswith("kB")}
    return {
        "private": kib["Private_Dirty"] / 1024,
        "resident": kib["VmRSS"] / 1024,
        "addresses": kib["VmSize"] / 1024,
        "peak": kib["VmHWM"] / 1024,
        "data": kib["VmData"] / 1024,
    }


def trained(way: str) -> None:
    """In the child: train watched in this way, and print what the process has at the last step."""
    sys.path.insert(0, str(ROOT))
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from benchmarks._training import Rows, tiny_model

    leaks = "leak" in way

    class Last(TrainerCallback):
        """Measures when all others have done what they do at that step."""

        kept: list[Any]

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.kept = []

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if leaks:
                self.kept.append(bytearray(64 * 1024))
            if state.global_step == STEPS:
                told["itself"] = memory_of()
                if "run" in way:
                    told["parent"] = memory_of(os.getppid())

    told: dict[str, dict[str, float]] = {}
    arguments = TrainingArguments(
        output_dir="out", max_steps=STEPS, per_device_train_batch_size=8, report_to=[], use_cpu=True,
        save_strategy="no", logging_steps=50, disable_tqdm=True,
    )  # fmt: skip
    if limit := os.environ.get(LIMIT):
        kind, limit_mib = limit.split()
        resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (int(float(limit_mib) * 2**20),) * 2)
    callbacks, watch = callbacks_of(way)
    trainer = Trainer(model=tiny_model(64), args=arguments, train_dataset=Rows(), callbacks=callbacks)
    watch(trainer)
    trainer.add_callback(Last())
    trainer.train()
    print(json.dumps(told))


def callbacks_of(way: str) -> tuple[list[Any], Callable[[Any], object]]:
    """The callbacks of a way to watch, and what it does with the Trainer."""
    callbacks: list[Any] = []
    watch: Callable[[Any], object] = lambda trainer: None  # noqa: E731
    if way == "import forgather_mem":
        import forgather_mem
    elif way == "floor: an empty callback":
        from transformers import TrainerCallback

        callbacks = [TrainerCallback()]
    elif way == "floor: a SummaryWriter's messages":
        import tensorboard.compat.proto.event_pb2  # noqa: F401
    elif "attach" in way:
        from forgather_mem import attach

        watch = attach
    elif way.startswith("callbacks/memory.yaml"):
        from forgather_mem import load_callbacks

        name, *variables = way.split(", ")
        callbacks = load_callbacks(name, **{key: int(value) for key, value in (one.split("=") for one in variables)})
    elif way in ("LeakDetector", "OOMReporter"):
        import forgather_mem.callbacks

        callbacks = [getattr(forgather_mem.callbacks, way)()]
    elif way == "psutil and SummaryWriter":
        callbacks = [psutil_and_writer()]
    elif way == "Lightning's DeviceStatsMonitor":
        from benchmarks._peers import device_stats_monitor

        callbacks = [device_stats_monitor(Path("stats"))]
    elif way == "Composer's SystemMetricsMonitor":
        from benchmarks._peers import SystemMetricsMonitor

        callbacks = [SystemMetricsMonitor(Path("stats"))]
    return callbacks, watch


def psutil_and_writer() -> Any:
    """What people write by hand: RSS by psutil at each step into a SummaryWriter."""
    import psutil
    from torch.utils.tensorboard import SummaryWriter
    from transformers import TrainerCallback

    class ByHand(TrainerCallback):
        def __init__(self) -> None:
            self.writer, self.process = SummaryWriter("by_hand"), psutil.Process()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.writer.add_scalar("memory/rss", self.process.memory_info().rss, state.global_step)

    return ByHand()


WATCHED = (
    "floor: an empty callback", "floor: a SummaryWriter's messages", "import forgather_mem", "OOMReporter",
    "LeakDetector", "callbacks/memory.yaml", "callbacks/memory.yaml, every_steps=2", "attach", "run",
    "psutil and SummaryWriter", "Lightning's DeviceStatsMonitor", "Composer's SystemMetricsMonitor",
)  # fmt: skip
LEAKING = ("leak, attach", "leak, run")


def one(way: str) -> dict[str, dict[str, float]] | None:
    """One training in a fresh process; None if what it needs is not installed."""
    words = [str(Path(__file__).resolve()), "--child", way]
    words = [*RUN, *words] if "run" in way else [sys.executable, *words]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", "CUDA_VISIBLE_DEVICES": ""}
        # Bytecode is cached, as after an installation: compiling it would take memory, too
        environment["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    if "ModuleNotFoundError" in done.stderr or "'NoneType'" in done.stderr:
        return None
    line = next((line for line in done.stdout.splitlines() if line.startswith('{"itself"')), None)
    if line is None:
        raise SystemExit(f"{way}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return json.loads(line)


def compare(ways: list[str], runs: int) -> None:
    found: dict[str, dict[str, list[float]]] = {}
    for way in ways:
        one(way)  # writes the bytecode
    for _ in range(runs):  # taking turns
        for way in ways:
            for whose, sizes in (one(way) or {}).items():
                row = found.setdefault(way if whose == "itself" else f"{way}: the waiting parent", {})
                for name, size in sizes.items():
                    row.setdefault(name, []).append(size)
    print(f"| beside {STEPS} steps of a Trainer, MiB | {' | '.join(WAYS)} |")
    print("|---|---|---|---|---|")
    for way, row in found.items():
        base = found["leak, alone" if way.startswith("leak") else "alone"]
        of_its_own = way in ("alone", "leak, alone") or way.endswith("parent")
        sizes = [statistics.median(row[name]) - (0 if of_its_own else statistics.median(base[name])) for name in WAYS]
        spread = max(row["private"]) - min(row["private"])
        texts = [f"{size:.1f}" if of_its_own else f"{size:+.1f}" for size in sizes]
        print(f"| {way} | {texts[0]} (of {spread:.1f}) | {' | '.join(texts[1:])} |", flush=True)


def below(left_mib: float, runs: int, kind: str) -> None:
    """How many trainings end as they should whose limit is so much above what they take alone."""
    taken = max(memory["itself"][LIMITED[kind]] for memory in (one("alone"), one("alone"), one("alone")) if memory)
    os.environ[LIMIT] = f"{kind} {taken + left_mib}"
    for way in ("alone", "attach", "callbacks/memory.yaml", "psutil and SummaryWriter"):
        ended = 0
        for _ in range(runs):
            try:
                ended += one(way) is not None
            except SystemExit as error:
                print(str(error)[-300:], file=sys.stderr)
        print(f"{way}: {ended} of {runs} with {left_mib:g} MiB left of RLIMIT_{kind}", flush=True)


def long(steps: int) -> None:
    """What `watch()` gains over so many steps of a plain loop, after a tenth of them."""
    import torch

    import forgather_mem

    weight = torch.nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with forgather_mem.watch():
            for step in range(steps + 1):
                weight.sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step % (steps // 10) == 0:
                    gc.collect()
                    sizes = memory_of()
                    print(f"step {step:,}: private {sizes['private']:.2f}, resident {sizes['resident']:.2f} MiB")
        os.chdir("/")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--long", type=int, metavar="STEPS")
    parser.add_argument("--below", type=float, metavar="MIB")
    parser.add_argument("--limit", choices=list(LIMITED), default="DATA")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        trained(arguments.child)
    elif arguments.long:
        long(arguments.long)
    elif arguments.below:
        below(arguments.below, arguments.runs, arguments.limit)
    else:
        compare(["alone", *(arguments.only or [*WATCHED, "leak, alone", *LEAKING])], arguments.runs)
