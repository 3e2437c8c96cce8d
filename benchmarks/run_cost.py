"""What does `forgather-mem run` cost? The same loops alone and watched, taking turns; and a record of the black box.

    python benchmarks/run_cost.py [--pairs 10] [--seconds 6]
    python benchmarks/run_cost.py --black-box

Processor time, of the training and of the process that waits for it. What comes once, the first 128 steps (all of which
are judged) and the steps after them are told apart. Prints the table of benchmarks/results/run.md; about 7 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EARLY_STEPS = 128
# Milliseconds of a step, and of the pairs that are asked for the fraction that is run with it
STEPS_MS = {5: 0.5, 17: 1.0, 60: 0.4}
KIB_A_MIB = 1024


def training(steps: int, rows: int) -> None:
    """In the child: a plain loop, and what it has taken by the end of each step."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    wide = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    model = torch.nn.Sequential(*wide, torch.nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(rows, 256), torch.randn(rows, 1)
    taken_s = []
    for _ in range(steps):
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        taken_s.append(time.process_time())
    status = Path("/proc/self/status").read_text()
    peak_mib = int(status.partition("VmHWM:")[2].split()[0]) / KIB_A_MIB
    print(json.dumps({"taken_s": taken_s, "peak_mib": peak_mib}))


def run(steps: int, rows: int, watched: bool) -> dict[str, float]:
    """One training in a folder of its own: seconds of the processor, and the peak of its memory."""
    words = [str(Path(__file__).resolve()), "--child", str(rows), "--steps", str(steps)]
    words = [sys.executable, *(["-m", "forgather_mem", "run"] if watched else []), *words]
    before = os.times()
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
        done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    after = os.times()
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"taken_s"')))
    taken_s, all_s = told["taken_s"], sum(after[2:4]) - sum(before[2:4])
    return {
        "all_s": all_s,
        "once_s": all_s - (taken_s[-1] - taken_s[0]),
        "early_s": (taken_s[EARLY_STEPS] - taken_s[0]) / EARLY_STEPS,
        "later_s": (taken_s[-1] - taken_s[EARLY_STEPS]) / (steps - 1 - EARLY_STEPS),
        "peak_mib": told["peak_mib"],
    }


def rows_for(step_ms: int) -> int:
    """The batch size with which a step takes so long here and now."""
    few, many = 64, 512
    took = [min(run(2 * EARLY_STEPS, rows, watched=False)["later_s"] for _ in range(2)) for rows in (few, many)]
    a_row_s = (took[1] - took[0]) / (many - few)
    return max(1, round(few + (step_ms / 1e3 - took[0]) / a_row_s))


def row(step_ms: int, pairs: int, seconds: float) -> str:
    """A row of the table: medians of the differences of pairs that took turns, and of both alone."""
    rows, steps = rows_for(step_ms), EARLY_STEPS + round(1e3 * seconds / step_ms)
    costs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(pairs):
        for watched in (number % 2 > 0, number % 2 == 0):
            costs[watched].append(run(steps, rows, watched))

    def more(name: str) -> float:
        both = zip(costs[True], costs[False], strict=True)
        return statistics.median(one[name] - other[name] for one, other in both)

    def alone(name: str) -> float:
        return statistics.median(one[name] for one in costs[False])

    least = min(one["later_s"] for one in costs[True]) - min(one["later_s"] for one in costs[False])
    return (
        f"| {1e3 * alone('later_s'):.1f} | {pairs} of {steps:,} | {1e3 * more('once_s'):.0f} | "
        f"{1e3 * more('early_s'):.2f} | {1e3 * more('later_s'):.3f} | {1e3 * least:.3f} | "
        f"{more('later_s') / alone('later_s'):.2%} | {more('all_s') / alone('all_s'):.1%} | {more('peak_mib'):.1f} |"
    )


HEADINGS = (
    "a step alone, ms", "pairs, steps", "once, ms", "each of the first 128 steps, ms", "each later one, ms",
    "by the least, ms", "share of a later one", "of the whole run", "peak, MiB",
)  # fmt: skip


def black_box_us() -> dict[str, float]:
    """What the black box writes, in us: by `pwrite`, and in the parent's memory."""
    from forgather_mem.formats.ring_memory import PLACE, StateMemory, own_state
    from forgather_mem.formats.ring_writer import NAMES, RingWriter

    values = dict.fromkeys(NAMES, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        ring, memory = RingWriter(Path(folder) / "ring", {}), StateMemory()
        os.environ[PLACE] = memory.place
        watched = RingWriter(Path(folder) / "watched", {}, own_state)
        calls: dict[str, Callable[[], object]] = {
            "a record": lambda: ring.sample(3, values, time_s=1.0, epoch=0.5),
            "a step's first phase": lambda: ring.state(3, "data"),
            "a further phase": lambda: ring.phase("forward"),
            "a step under `run`": lambda: watched.step_ended(3),
            "a phase under `run`": lambda: setattr(watched.beside, "phase", 3),
        }
        return {name: min(timeit.repeat(call, number=5_000, repeat=25)) / 5e-3 for name, call in calls.items()}


def black_box_table() -> list[str]:
    found = [f"| {name} | {took_us:.2f} |" for name, took_us in black_box_us().items()]
    return ["| black box | us |", "|---|---:|", *found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6.0, help="of the steps of each training after the first 128")
    parser.add_argument("--steps-ms", type=int, nargs="*", default=list(STEPS_MS))
    parser.add_argument("--child", type=int, metavar="ROWS", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--black-box", action="store_true", help="measure the black box alone")
    arguments = parser.parse_args()
    if arguments.child:
        training(arguments.steps, arguments.child)
        return
    sys.path.insert(0, str(ROOT))
    if arguments.black_box:
        print("\n".join(black_box_table()))
        return
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} before.\n")
    print(f"| {' | '.join(HEADINGS)} |\n|{'---:|' * len(HEADINGS)}", flush=True)
    for step_ms in arguments.steps_ms:
        pairs = max(1, round(arguments.pairs * STEPS_MS.get(step_ms, 1.0)))
        print(row(step_ms, pairs, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
