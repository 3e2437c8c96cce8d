"""Another try after out-of-memory: ours beside accelerate's `find_executable_batch_size`.

    python benchmarks/retry.py [--markdown FILE]

1. A function of eight allocations, each a share of the batch, that really runs out of memory under RLIMIT_AS in a
   process of its own (tests/reclaim/retry_child.py): batch sizes tried, objects of failed tries alive when the next
   begins, and the size that fitted, of the largest that would have.
2. How the next batch size is chosen, in made-up programs (allocations of many shapes, some with a fixed part), as
   mean tries and mean share of the largest batch that fits.
3. Which errors are recognised, of the lists in tests/diagnose.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate.utils.memory import should_reduce_batch_size

from forgather_mem.diagnose.oom.recognition import recognise
from forgather_mem.reclaim.retry import _AT_MOST, _MARGIN

ROOT = Path(__file__).parent.parent
ROOM_MIB, MIB_PER_ROW, START, NUM_PROGRAMS = 400, 40, 64, 6_000


def real_tries() -> list[str]:
    cases = [
        {"helper": helper, "raises": raises, "limit": "AS"}
        for raises in ("torch", "numpy", "python")
        for helper in ("ours", "accelerate")
    ]
    usual = {"limit_mib": ROOM_MIB, "mib_per_row": MIB_PER_ROW, "starting_batch_size": START}
    rows = []
    for case in cases:
        command = [sys.executable, "-m", "tests.reclaim.retry_child", json.dumps([usual | case])]
        done = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
        fits = done["result"].startswith("fits")
        alive = done["alive"][1:]
        rows.append(
            f"| {case['raises']} | {case['helper']} | {len(done['tried'])} | {', '.join(map(str, done['tried']))} "
            f"| {sum(count > 0 for count in alive)} of {len(alive)} | {sum(alive)} "
            f"| {done['tried'][-1] if fits else done['result'].partition(':')[0]} |"
        )
    return [
        f"{ROOM_MIB} MiB of room, {MIB_PER_ROW} MiB a row, from {START}: 9 fit.",
        "",
        "| allocates | helper | tries | batch sizes | next tries that found objects | objects in all | result |",
        "|---|---|---:|---|---:|---:|---:|",
        *rows,
    ]


Program = tuple[list[float], float, float]  # shares of the batch's memory, fixed share of the limit, largest batch


def made_up(generator: random.Random) -> Program:
    num = generator.choice([1, 2, 4, 8, 16, 32, 64])
    shares = [1.0] * num
    kind = generator.choice(["even", "large at the end", "large at the beginning", "growing"])
    if kind == "large at the end":
        shares[-1] = num * generator.uniform(0.3, 1.5)
    elif kind == "large at the beginning":
        shares[0] = num * generator.uniform(0.3, 1.5)
    elif kind == "growing":
        shares = [float(number + 1) for number in range(num)]
    fixed = generator.choice([0.0, 0.0, 0.0, generator.uniform(0, 0.6)])
    largest = math.exp(generator.uniform(math.log(1.2), math.log(60)))
    return [share / sum(shares) for share in shares], fixed, largest


def failure(program: Program, batch_size: int) -> tuple[float, float] | None:
    """(taken, wanted) at the allocation that fails, in shares of the limit; None when the batch fits."""
    shares, fixed, largest = program
    taken = 0.0
    for wanted in [fixed, *(share * (1 - fixed) / largest * batch_size for share in shares)]:
        if taken + wanted > 1 + 1e-12:
            return taken, wanted
        taken += wanted
    return None


def search(program: Program, shrink: Callable[[float], float]) -> tuple[int, int]:
    batch_size, tries = START, 1
    while (failed := failure(program, batch_size)) is not None and batch_size > 1:
        fitting = 1 / sum(failed)  # what was taken and what was free, of what was taken and wanted
        batch_size = max(1, min(batch_size - 1, int(batch_size * shrink(fitting))))
        tries += 1
    return tries, batch_size


def choices() -> list[str]:
    generator = random.Random(1)
    programs = [made_up(generator) for _ in range(NUM_PROGRAMS)]
    rows = []
    for name, shrink in (
        (f"ours: {_MARGIN} of what would have fitted, at most {_AT_MOST}", lambda fits: min(_MARGIN * fits, _AT_MOST)),
        ("accelerate: 0.9", lambda fits: 0.9),
        ("halving", lambda fits: 0.5),
    ):
        found = [search(program, shrink) for program in programs]
        share = statistics.mean(size / int(program[2]) for (_, size), program in zip(found, programs, strict=True))
        tries = [count for count, _ in found]
        rows.append(f"| {name} | {statistics.mean(tries):.1f} | {max(tries)} | {share:.0%} |")
    return [
        f"{NUM_PROGRAMS:,} programs, from {START}.",
        "",
        "| next batch size | tries, mean | most | of the largest that fits |",
        "|---|---:|---:|---:|",
        *rows,
    ]


def recognition() -> list[str]:
    sys.path.insert(0, str(ROOT))
    from tests.diagnose.oom.oom_messages import OTHERS, OUT_OF_MEMORY

    def count(recognises: Callable[[Any], object]) -> str:
        right = sum(bool(recognises(case.error)) for case in OUT_OF_MEMORY)
        wrong = sum(bool(recognises(error)) for error in OTHERS)
        return f"{right} of {len(OUT_OF_MEMORY)} | {wrong} of {len(OTHERS)} |"

    rows = [f"| ours | {count(recognise)}", f"| accelerate | {count(should_reduce_batch_size)}"]
    try:
        from lightning.pytorch.utilities.memory import is_oom_error

        rows.append(f"| Lightning | {count(is_oom_error)}")
    except ImportError:
        rows.append("| Lightning | not installed | |")
    return ["| | out of memory | other errors taken for it |", "|---|---:|---:|", *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too")
    arguments = parser.parse_args()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, accelerate {accelerate.__version__}"
    text = "\n".join(
        [
            "# Another try after out-of-memory",
            "",
            f"2026-11-20, {versions}, no accelerator. Made by `python benchmarks/retry.py`.",
            "",
            "## Tries of a real function under RLIMIT_AS",
            "",
            *real_tries(),
            "",
            "## How the next batch size is chosen",
            "",
            *choices(),
            "",
            "## Errors recognised",
            "",
            *recognition(),
            "",
        ]
    )
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
