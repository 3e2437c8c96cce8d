"""The same tasks with other tools and with ours, in fresh processes; writes benchmarks/results/peers.md.

    make peers                                             # installs them into .venv-peers
    .venv-peers/bin/python benchmarks/peers [--turns 3] [--only leak oom cost plan] [--go-on | --judge]

What a run has printed is kept in out/peers: `--go-on` runs what is not kept, `--judge` nothing. The rules are in
judge.py, the command lines in tools.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import page
from inside import LOOK_EVERY
from judge import ROOT, TASKS
from running import KEPT, Ran, ran
from tools import ALONE, COST_TOOLS, LEAK_TOOLS, OOM_TOOLS

RESULT = ROOT / "benchmarks" / "results" / "peers.md"
HERE = Path(__file__).resolve().parent
PARTS = ("oom", "leak", "plan", "cost")
OOM = HERE / "adam_state.py"
MODELS = ("gpt2 sdpa", "llama sdpa adamw")  # of benchmarks/plan.py
STEPS, ROWS = 300, 16  # 250 are measured, of about 17 ms each on a quiet machine


def kept(part: str, tool: str, script: str, turn: int = 0) -> Ran | None:
    """What is kept of this run."""
    file = KEPT / f"{part}.{script}.{tool.replace(' ', '_')}.{turn}.json"
    return Ran(**json.loads(file.read_text())) if file.exists() else None


def run_all(parts: list[str], turns: int) -> None:
    """Run what is not kept, one process at a time."""
    if "oom" in parts:
        for tool in OOM_TOOLS:
            ran("oom", tool, OOM)
    if "leak" in parts:
        for task in TASKS:
            for tool in LEAK_TOOLS:
                ran("leak", tool, task.path)
    for name in MODELS if "plan" in parts else ():
        file = KEPT / f"plan.{name.replace(' ', '_')}.json"
        if not file.exists():
            words = [sys.executable, str(HERE / "predict.py"), name]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            KEPT.mkdir(parents=True, exist_ok=True)
            file.write_text(done.stdout.splitlines()[-1])
    if "cost" in parts:
        for turn in range(turns):
            for tool in COST_TOOLS:
                ran("cost", tool, HERE / "steps.py", turn, PEERS_STEPS=str(STEPS), PEERS_ROWS=str(ROWS))


def tables(turns: int) -> list[str]:
    """The parts of which something is kept."""
    leaks = {
        tool.name: {task.script: run for task in TASKS if (run := kept("leak", tool.name, task.script))}
        for tool in LEAK_TOOLS
    }
    ooms = {tool.name: run for tool in OOM_TOOLS if (run := kept("oom", tool.name, OOM.stem))}
    costs = {
        tool.name: [run for turn in range(turns) if (run := kept("cost", tool.name, "steps", turn))]
        for tool in COST_TOOLS
    }
    plans = {
        name: json.loads(file.read_text())
        for name in MODELS
        if (file := KEPT / f"plan.{name.replace(' ', '_')}.json").exists()
    }
    return [
        page.where_others_are_better(leaks, costs),
        "",
        *page.summary({name: runs for name, runs in leaks.items() if runs}, ooms, costs),
        "",
        *[
            "## A leak",
            "",
            when("leak") + LEAK_TEXT,
            "",
            *page.leaks({name: runs for name, runs in leaks.items() if runs}),
            "",
        ],
        *(["## Out of memory", "", when("oom") + OOM_TEXT, "", *page.ooms(ooms), ""] if ALONE.name in ooms else []),
        *(
            ["## What watching costs", "", when("cost") + COST_TEXT, "", *page.costs(costs), ""]
            if costs[ALONE.name]
            else []
        ),
        *(["## What a training will take", "", when("plan") + PLAN_TEXT, "", *page.plans(plans), ""] if plans else []),
    ]


LEAK_TEXT = """\
Scripts of tests/leaks/by_others, by people who did not know our detector, which is tested with them since. "Says
so": the tool's text says that something leaks. "No verdict": it has no such sentence, it lists what is allocated or
draws a curve, whether it leaks or not. "Names it": the true holder, or a line that makes what is kept, stands in what
it shows: of memray and Fil among the three largest lines of the script, of ours among the suspects, of others
anywhere."""
OOM_TEXT = """\
benchmarks/peers/adam_state.py: under a limit of the process (`RLIMIT_DATA`) the states of AdamW don't fit in the
first step. What a user has then, besides the traceback that Python writes alone, too. Fil looks out for the end of the
machine's or a container's memory, not for this limit, and takes of it itself."""
COST_TEXT = f"""\
{STEPS} steps of a Trainer on the CPU, the first 50 not counted; each run beside the one alone of its turn, medians over
the turns. Of steps the median, by the clock and by the processor's time of the training process; then the mean of the
latter, which has what is done at few steps (objgraph looks every {LOOK_EVERY}). "Most memory": of the process and those
started beside it."""
PLAN_TEXT = """\
The most bytes of tensors alive in three steps, counted on the host (benchmarks/plan.py), and what was foretold from the
configuration. accelerate's figure is for a batch of one and has no activations, as its page says."""


def left_out() -> list[str]:
    """What can't run here, and why."""
    try:
        torch.cuda.memory._snapshot()
        drawn = "there is a device here: try it"
    except (AttributeError, RuntimeError, AssertionError) as error:
        drawn = f"`torch.cuda.memory._snapshot()`: {type(error).__name__}: {error}"
    return [
        "## Left out", "",
        "- Composer's `MemoryMonitor`: the newest (0.32.1) asks for torch below 2.7.1. It reads "
        '`torch.cuda.memory_stats()` alone; elsewhere it warns that "the memory monitor only works on CUDA devices".',
        f"- torch's `memory_viz` draws snapshots of a device's allocator, and here is none: {drawn}.",
    ]  # fmt: skip


def when(part: str) -> str:
    """From the end of the part's first run to that of its last."""
    ended_s = sorted(file.stat().st_mtime for file in KEPT.glob(f"{part}.*.json"))
    first, last = (time.localtime(at_s) for at_s in (ended_s[0], ended_s[-1]))
    return f"Run on {time.strftime('%Y-%m-%d, %H:%M', first)} to {time.strftime('%H:%M', last)}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--go-on", action="store_true", help="run what is not kept")
    parser.add_argument("--judge", action="store_true", help="run nothing")
    options = parser.parse_args()
    if not options.judge:
        for file in () if options.go_on else KEPT.glob("*.json"):
            if file.name.partition(".")[0] in options.only:
                file.unlink()
        run_all(options.only, options.turns)
    packages = {tool.package for tool in (*LEAK_TOOLS, *COST_TOOLS)} | {"torch", "transformers", "accelerate"}
    RESULT.write_text("\n".join([
        "# Beside other tools", "",
        f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {os.cpu_count()} shared CPUs; "
        f"{', '.join(f'{name} {version(name)}' for name in sorted(packages))}. "
        "Made by `make peers`; judged by the regular expressions of benchmarks/peers/judge.py.", "",
        *tables(options.turns), *left_out(), "",
    ]))  # fmt: skip
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
