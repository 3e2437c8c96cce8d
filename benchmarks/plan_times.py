"""How long does a plan take, after a script's own imports and data? One plan, then all that `--card` asks for.

    python benchmarks/plan_times.py [--only NAME] [--markdown benchmarks/results/plan_times.md]

CPU seconds are those of all processes: on a busy machine they say more than what a clock says.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from plan import CASES, quiet, trainer_of

from forgather_mem.planning import answers, entry

ONLY = ("llama sdpa adamw", "gpt2 sdpa", "bert sdpa padded", "t5 eager", "vit sdpa")
CARD_BYTES = 2 * 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="trainings with this in their name")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    asked = parser.parse_args()
    quiet()
    lines = ["| training | a plan, s | CPU s | `--card 2GiB`, s | CPU s | plans |", "|---|---|---|---|---|---|"]
    print(*lines, sep="\n", flush=True)
    for case in CASES:
        if case.name in ONLY and asked.only in case.name:
            with tempfile.TemporaryDirectory() as folder:
                trainer = trainer_of(case, Path(folder))
                one, (card, plans) = (timed(trainer, card_bytes) for card_bytes in (None, CARD_BYTES))
            lines.append(f"| {case.name} | {one[0]} | {card} | {plans} |")
            print(lines[-1], flush=True)
    if asked.markdown:
        head = HEAD.format(date=datetime.now(tz=UTC).date(), torch=torch.__version__, load=os.getloadavg()[1])
        asked.markdown.write_text("\n".join([head, *lines]) + "\n")


def timed(trainer: object, card_bytes: int | None) -> tuple[str, int]:
    """Seconds by the clock and of CPU, as cells, and how many plans were made."""
    plans = 0
    begin = entry.begun_plan

    def begun(*of: object, **shared: object) -> Callable[[], object]:
        nonlocal plans
        plans += 1
        return begin(*of, **shared)  # type: ignore[arg-type]

    vars(answers)["begun_plan"] = begun
    clock_s, cpu_s = time.perf_counter(), sum(os.times()[:4])
    answer = answers.answer_to({"sizes": [(None, None)], "card_bytes": card_bytes}, trainer)
    assert "problem" not in answer, answer
    return f"{time.perf_counter() - clock_s:.1f} | {sum(os.times()[:4]) - cpu_s:.1f}", plans


HEAD = """# How long a plan takes

`python benchmarks/plan_times.py --markdown benchmarks/results/plan_times.md`, {date}, torch {torch}, two shared cores.

After the script's own imports and data. CPU seconds are those of all processes; the machine's load was {load:.0f}.
"""

if __name__ == "__main__":
    main()
