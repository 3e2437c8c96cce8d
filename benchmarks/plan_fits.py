"""Does a training fit where its plan says so? Larger trainings of plan.py, in processes that may map no more.

    python benchmarks/plan_fits.py [--only NAME] [--markdown benchmarks/results/plan_fits.md]

Each is tried within 5 % more than its plan and within 10 % less (`RLIMIT_DATA`). Then the largest batch that a plan
finds for a limit: it trains, and with two rows more it does not.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from plan import CASES, Case, in_a_process, llama, quiet, t5, trainer_of

import forgather_mem
from forgather_mem.planning.answers import all_of, largest_plan, side_by_side
from forgather_mem.planning.batches import PlannedShape, Wanted
from forgather_mem.planning.entry import begun_plan

LIBRARIES_BYTES = 48 * 2**20  # of the libraries, and lost between blocks
_TIMES = {
    "llama eager adamw": 16, "llama sdpa fused": 16, "llama adafactor": 16, "llama checkpointing, not reentrant": 16,
    "llama bf16 autocast": 16, "qwen2 sdpa tied": 16, "gpt2 sdpa": 16, "bert sdpa padded": 16, "t5 eager": 16,
    "vit sdpa": 16, "llama sgd long": 10, "llama checkpointing, reentrant": 12, "llama accumulation 4": 16,
    "llama bf16 weights": 12, "qwen2 eager padded": 6, "gpt2 eager sgd momentum": 6, "gpt2 no clipping": 20,
    "bert eager adafactor": 8, "t5 padded checkpointing": 10, "vit eager bf16 autocast": 10,
    "vit label smoothing, accumulation 2": 12,
}  # fmt: skip
FITTING = tuple(replace(case, rows=_TIMES[case.name] * case.rows) for case in CASES if case.name in _TIMES)
# Of which a row takes more than what the libraries take
LARGEST = (
    (Case("llama eager, long rows", llama, 4, 1024, attention="eager"), 900),
    (Case("llama sdpa, long rows", llama, 4, 2048), 1300),
    (Case("llama bf16 autocast, long rows", llama, 4, 2048, arguments={"bf16": True}), 1100),
    (Case("t5 eager, long rows", t5, 4, 512, attention="eager"), 800),
)  # fmt: skip


def trains_within(case: Case, planned_bytes: int, share: float, told: Any) -> None:
    """In a process of its own: whether the training runs in this share of so much, by RLIMIT_DATA."""
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(case, Path(folder))
        trainer.args.max_steps = 2  # the second has the state of the optimizer
        held_bytes = sum(tensor.numel() * tensor.element_size() for tensor in trainer.model.parameters())
        torch.randn(256, 256) @ torch.randn(256, 256)  # what the libraries keep from their first use on
        limit = int(data_bytes() + (planned_bytes - held_bytes) * share + LIBRARIES_BYTES * (share >= 1))
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        try:
            trainer.train()
            told.put("trains")
        except (RuntimeError, MemoryError) as error:
            told.put("does not fit" if "alloc" in str(error) or isinstance(error, MemoryError) else repr(error))


def data_bytes() -> int:
    """What RLIMIT_DATA counts of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024


def peak_of(case: Case, told: Any) -> None:
    """In a process of its own: what the plan says."""
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        told.put(forgather_mem.plan(trainer_of(case, Path(folder))).peak_bytes)


def largest_of(case: Case, limit_bytes: int, told: Any) -> None:
    """In a process of its own: the largest batch for this limit, its peak, and how many plans it took."""
    quiet()
    sizes = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(case, Path(folder))

        def at(rows: int) -> Wanted:
            sizes.append(rows)
            return Wanted(PlannedShape(rows))

        search = largest_plan(at, lambda plan: plan.peak_bytes, limit_bytes, case.rows, 2**16)
        (found,) = all_of(side_by_side([search], partial(begun_plan, trainer)))
    assert found is not None
    told.put((found[0], found[1].peak_bytes, len(sizes)))


def check_fits(only: str) -> tuple[list[str], int]:
    """Each training under a limit that is enough by its plan, and under one that is not."""
    lines = ["| training | planned MiB | 5 % more than planned | 10 % less |", "|---|---|---|---|"]
    print(*lines, sep="\n", flush=True)
    wrong = 0
    for case in FITTING:
        if only in case.name:
            peak = in_a_process(peak_of, case)
            found = [in_a_process(trains_within, case, peak, share) or "killed" for share in (1.05, 0.9)]
            wrong += found != ["trains", "does not fit"]
            lines.append(f"| {case.name}, {case.rows} rows | {peak / 2**20:.0f} | {' | '.join(map(str, found))} |")
            print(lines[-1], flush=True)
    return lines, wrong


def check_largest(only: str) -> tuple[list[str], int]:
    """The largest batch for a limit, in that limit, and two rows more."""
    lines = ["| training | limit MiB | largest batch | plans | trains | two more |", "|---|---|---|---|---|---|"]
    print(*lines, sep="\n", flush=True)
    wrong = 0
    for case, limit_mib in LARGEST:
        if only in case.name:
            limit = limit_mib * 2**20
            rows, _, plans = in_a_process(largest_of, case, limit)
            found = [in_a_process(trains_within, replace(case, rows=more), limit, 1.0) for more in (rows, rows + 2)]
            wrong += found != ["trains", "does not fit"]
            lines.append(f"| {case.name} | {limit_mib} | {rows} | {plans} | {found[0]} | {found[1]} |")
            print(lines[-1], flush=True)
    return lines, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="trainings with this in their name")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    asked = parser.parse_args()
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:  # read when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"})
    fits, wrong_fits = check_fits(asked.only)
    largest, wrong_largest = check_largest(asked.only)
    if asked.markdown:
        head = HEAD.format(date=datetime.now(tz=UTC).date(), torch=torch.__version__)
        asked.markdown.write_text("\n".join([head, *fits, MIDDLE, *largest]) + "\n")
    return 1 if wrong_fits + wrong_largest else 0


HEAD = """# Fits, or does not

`python benchmarks/plan_fits.py --markdown benchmarks/results/plan_fits.md`, {date}, torch {torch}, two shared cores.

Trainings of [plan.md](plan.md) with larger batches, in a process that may map no more (`RLIMIT_DATA`) than it had
before and 5 % more than the plan says, with 48 MiB for the libraries; then 10 % less than the plan says. Memory comes
from the kernel block by block (`MALLOC_MMAP_THRESHOLD_=65536`): what the C library does not give back is in no plan.
"""

MIDDLE = """
## The largest batch

Found for a limit by planning; then trained in that limit (and 48 MiB for the libraries), and with two rows more. A row
takes more than these 48 MiB, so that the largest that trains is the one found or the next.
"""

if __name__ == "__main__":
    sys.exit(main())
