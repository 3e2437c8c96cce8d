"""What does `forgather-mem run` cost? The same training alone and watched, taking turns; and a record of the black box.

    python benchmarks/run_cost.py [--pairs 5] [--steps 400]
    python benchmarks/run_cost.py --black-box

Writes benchmarks/results/run.md.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "run.md"
RUN = [sys.executable, "-m", "forgather_mem", "run"]
WARM_UP_STEPS = 50


def training(steps: int, rows: int) -> None:
    """In the child: train, and print when it began and what each step took."""
    first_line_s = time.time()
    sys.path.insert(0, str(ROOT))
    from transformers import TrainerCallback

    from benchmarks._training import train

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.began_s = self.began_cpu_s = 0.0
            self.times: list[float] = []
            self.cpu: list[float] = []

        def on_train_begin(self, *args: object, **kwargs: object) -> None:
            self.began_s, self.began_cpu_s = time.time(), time.process_time()

        def on_step_begin(self, *args: object, **kwargs: object) -> None:
            self.times.append(time.perf_counter())
            self.cpu.append(time.process_time())

    clock = Clock()
    train(clock, steps, Path("out"), rows)
    print(json.dumps({
        "first_line_s": first_line_s, "train_begin_s": clock.began_s, "train_begin_cpu_s": clock.began_cpu_s,
        "steps_s": [b - a for a, b in zip(clock.times, clock.times[1:], strict=False)][WARM_UP_STEPS:],
        "cpu_s": (clock.cpu[-1] - clock.cpu[WARM_UP_STEPS]) / (len(clock.cpu) - 1 - WARM_UP_STEPS),
    }))  # fmt: skip


def run(words: Sequence[str], **environment: str) -> dict[str, float]:
    """One training: seconds to its first line, to its first step, of its steps, and of all of it."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with tempfile.TemporaryDirectory() as folder:
        began_s, cpu_before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=True)
        all_s, cpu_after = time.time() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
        reports = [json.loads(path.read_text()) for path in Path(folder).rglob("report.json")]
    told = json.loads(done.stdout.splitlines()[-1])
    return {
        "to the first line of the script, ms": 1e3 * (told["first_line_s"] - began_s),
        "from there to the first step, ms": 1e3 * (told["train_begin_s"] - told["first_line_s"]),
        "CPU until the first step, ms": 1e3 * told["train_begin_cpu_s"],
        "a step, median, ms": 1e3 * statistics.median(told["steps_s"]),
        "a step, CPU, mean, ms": 1e3 * told["cpu_s"],
        "all of it, ms": 1e3 * all_s,
        "ourselves in a step, by our own clock, %": 1e2 * sum(r["overhead"]["share_of_step"] for r in reports),
        "all of it, CPU, ms": 1e3
        * (cpu_after.ru_utime + cpu_after.ru_stime - cpu_before.ru_utime - cpu_before.ru_stime),
    }


def black_box_us() -> dict[str, float]:
    """What the black box writes, in us: by `pwrite`, in the parent's memory, and through a mapping of the file.

    A store into a mapped file that somebody has truncated, or whose disk is full, ends the process by SIGBUS.
    """
    from forgather_mem.formats.ring_memory import PLACE, StateMemory, own_state
    from forgather_mem.formats.ring_writer import FILE_BYTES, NAMES, SAMPLE, SAMPLES_AT, RingWriter

    values = dict.fromkeys(NAMES, 1.0)
    numbers = (1, 1.0, 1, 0.5, 1, 0, *([1.0] * len(NAMES)), 1)
    with tempfile.TemporaryDirectory() as folder:
        ring, memory = RingWriter(Path(folder) / "ring", {}), StateMemory()
        os.environ[PLACE] = memory.place
        watched = RingWriter(Path(folder) / "watched", {}, own_state)
        with open(Path(folder) / "mapped", "w+b") as file:
            file.truncate(FILE_BYTES)
            mapped = mmap.mmap(file.fileno(), FILE_BYTES)
            calls: dict[str, Callable[[], object]] = {
                "a record": lambda: ring.sample(3, values, time_s=1.0, epoch=0.5),
                "a step's first phase": lambda: ring.state(3, "data"),
                "a further phase": lambda: ring.phase("forward"),
                "a step under `run`": lambda: watched.step_ended(3),
                "a phase under `run`": lambda: setattr(watched.beside, "phase", 3),
                "a record's store, pwrite": lambda: os.pwrite(file.fileno(), SAMPLE.pack(*numbers), SAMPLES_AT),
                "a record's store, mapped": lambda: SAMPLE.pack_into(mapped, SAMPLES_AT, *numbers),
            }
            return {name: min(timeit.repeat(call, number=5_000, repeat=25)) / 5e-3 for name, call in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--child", type=int, metavar="ROWS", help=argparse.SUPPRESS)
    parser.add_argument("--black-box", action="store_true", help="measure the black box alone, and print it")
    arguments = parser.parse_args()
    if arguments.black_box:
        sys.path.insert(0, str(ROOT))
        print("\n".join(black_box_table()))
        return
    if arguments.child:
        training(arguments.steps, arguments.child)
        return
    sys.path.insert(0, str(ROOT))
    from benchmarks._training import rows_a_step

    script = [str(Path(__file__).resolve()), "--child", str(rows_a_step()), "--steps", str(arguments.steps)]
    variants = {
        "alone": lambda: run([sys.executable, *script]),
        "alone, again": lambda: run([sys.executable, *script]),
        "forgather-mem run": lambda: run([*RUN, *script]),
        "FORGATHER_MEM=0 forgather-mem run": lambda: run([*RUN, *script], FORGATHER_MEM="0"),
    }
    load_before = os.getloadavg()[0]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for number in range(arguments.pairs):
        names = list(variants)
        for name in names[number % 4 :] + names[: number % 4]:
            found[name].append(variants[name]())
            print(f"{number + 1}/{arguments.pairs} {name}: {found[name][-1]}", file=sys.stderr)
    RESULT.write_text(page(found, load_before, arguments))
    print(RESULT.read_text())


def page(found: dict[str, list[dict[str, float]]], load_before: float, arguments: argparse.Namespace) -> str:
    import torch
    import transformers

    columns = list(found["alone"][0])
    medians = {name: {c: statistics.median(row[c] for row in rows) for c in columns} for name, rows in found.items()}
    lines = [
        "# What `forgather-mem run` costs", "",
        f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, {os.cpu_count()} shared CPUs, one thread, load {load_before:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after. Made by `python benchmarks/run_cost.py --pairs {arguments.pairs} --steps "
        f"{arguments.steps}`: {arguments.pairs} trainings of {arguments.steps} steps of each kind, taking turns; "
        "medians over the trainings. Trust ratios and differences more than absolutes.", "",
        "Promised: at most 1 % of a run of steps of 17 ms, less than 500 ms until the first step, a record of the "
        "black box in less than 5 us.", "",
        f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}",
    ]  # fmt: skip
    for name, row in medians.items():
        lines.append(f"| {name} | " + " | ".join(f"{row[column]:,.2f}" for column in columns) + " |")
    lines += ["", "Against `alone`, per pair of one turn, median:", "", f"| | {' | '.join(columns)} |"]
    lines.append(f"|---|{'---:|' * len(columns)}")
    for name in list(found)[1:]:
        ratios = [
            statistics.median(
                b[column] / a[column] if a[column] else math.nan
                for a, b in zip(found["alone"], found[name], strict=True)
            )
            for column in columns
        ]
        lines.append(
            f"| {name} | " + " | ".join("-" if math.isnan(ratio) else f"{ratio:.3f}" for ratio in ratios) + " |"
        )
    lines += ["", *black_box_table(), ""]
    return "\n".join(lines)


def black_box_table() -> list[str]:
    rows = [f"| {name} | {took_us:.2f} |" for name, took_us in black_box_us().items()]
    return ["| black box | us |", "|---|---:|", *rows]


if __name__ == "__main__":
    main()
