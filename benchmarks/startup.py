"""What do our commands take before they do anything? CPU of fresh processes, beside what they can't do without.

    python benchmarks/startup.py [--rounds 9] [--markdown FILE]

All take turns; figures are medians, and multiples of a bare interpreter's. Each row names its floor: the interpreter,
and the import of the libraries whose work it does, alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {
    "an interpreter": "",
    "argparse": "import argparse",
    "yaml and jinja2": "import argparse, yaml, jinja2",
}
# What a command is, its floor, and what is wanted of it in bare interpreters
COMMANDS: dict[str, tuple[list[str], str, float | None]] = {
    "--help": (["--help"], "argparse", 8),
    "ls": (["ls"], "argparse", 8),
    "report --help": (["report", "--help"], "argparse", 8),
    "check callbacks/memory.yaml": (["check", "callbacks/memory.yaml"], "yaml and jinja2", 20),
}


def cpu_s(words: Sequence[str], folder: str) -> float:
    """CPU seconds of a process and its children. Bytecode is cached in the folder, as after an installation."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int) -> dict[str, float]:
    """Median CPU seconds by name; one round before them, which writes bytecode and fills caches."""
    ways = {name: ["-c", code] for name, code in FLOORS.items()}
    ways |= {name: ["-m", "forgather_mem", *words] for name, (words, _, _) in COMMANDS.items()}
    took: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for name, words in ways.items():
                seconds = cpu_s(words, folder)
                if number:
                    took[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


def table(costs: dict[str, float]) -> list[str]:
    bare = costs["an interpreter"]
    lines = ["| | CPU, ms | interpreters | wanted | floor | floor, interpreters |", "|---|---:|---:|---:|---|---:|"]
    for name, seconds in costs.items():
        _, floor, wanted = COMMANDS.get(name, ([], "", None))
        of_floor = f"{costs[floor] / bare:.1f}" if floor else ""
        limit = f"at most {wanted:g}" if wanted else ""
        lines.append(f"| {name} | {1e3 * seconds:.0f} | {seconds / bare:.1f} | {limit} | {floor} | {of_floor} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("PyYAML", "Jinja2"))
    lines = [
        "# What our commands take before they do anything", "",
        f"{date.today()}, Python {platform.python_version()}, {versions}, {os.cpu_count()} CPUs, load average "
        f"{os.getloadavg()[0]:.1f}. Made by `python benchmarks/startup.py --rounds {options.rounds}`; medians, taking "
        "turns.", "", *table(measure(options.rounds)),
    ]  # fmt: skip
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.markdown:
        options.markdown.write_text(text)


if __name__ == "__main__":
    main()
