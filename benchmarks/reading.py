"""What does it take to read a long run, and to merge many ranks? Each command in a fresh process, beside its floor.

    python benchmarks/reading.py [--steps 1000000] [--rounds 3] [--markdown FILE]

The runs were killed, so that their reports are rebuilt from the log: a run that ended has a report to read. They were
killed just before the next roll-up was due, so that as many records as there can be are read after the last one. The
floor is what a reader in Python of all these bytes can't leave out: to read them line by line. JSON of each line is
what a plain reader does. Ranks leave one text each.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from forgather_mem.engine.so_far import plain_summary  # noqa: E402
from forgather_mem.engine.summary import RunSummary  # noqa: E402
from forgather_mem.formats.jsonl import header_line, roll_up_line, rotate, sample_line  # noqa: E402
from forgather_mem.reporting.build import write_report  # noqa: E402
from forgather_mem.reporting.run_dir import run_report  # noqa: E402
from forgather_mem.sinks.jsonl import ROLL_UP_RECORDS  # noqa: E402
from forgather_mem.telemetry.records import Sample  # noqa: E402
from forgather_mem.units import GIB, MIB  # noqa: E402

RANKS = 64
BYTECODE = Path(tempfile.gettempdir(), "reading_bytecode")  # cached, as after an installation
FILE_BYTES = 64 * MIB  # as JsonlSink renames them
NAMES = ("host/rss_bytes", "host/anon_bytes", "host/rss_peak_bytes", "host/major_faults", "step/time_s", "step/self_s")
EVERY = 64  # a run that is watched reads at each 64th step at least
PLAIN_READER = """
import json, sys
for file in sys.argv[2:]:
    for text in open(file, "rb") if ".jsonl" in file else [open(file, "rb").read()]:
        json.loads(text) if sys.argv[1] == "json" else len(text)
"""
READERS = {"floor: its lines": "lines", "json.loads of each": "json"}


def records(steps: Iterable[int]) -> Iterator[bytes]:
    """A log of these steps: numbers with some noise, on a level."""
    noise, summary = random.Random(1), RunSummary()
    summary.begin(0)
    # A process that is no more: the largest number that Linux gives
    data = {"pid": 2**22, "host": platform.node(), "script": "train.py", "time_s": 1e9, "limit_bytes": 64 * GIB}
    data |= {"started_s": 1e9, "versions": {"torch": "2.13.0"}}
    yield header_line(0, data)
    for number, step in enumerate(steps, 1):
        rss = 3 * GIB + noise.randrange(256) * 4096
        faults = noise.randrange(4)
        numbers = (rss, rss - 400 * MIB, 3 * GIB + MIB, faults, 0.1 + noise.random() / 1000, 1e-5)
        sample = Sample("step_end", step, step / 1e5, 1e9 + step / 10, dict(zip(NAMES, numbers, strict=True)))
        yield sample_line(sample)
        summary.add(sample)
        if not number % ROLL_UP_RECORDS:
            yield roll_up_line(0, data, plain_summary(summary))


def write_log(folder: Path, steps: Iterable[int], rank: int = 0) -> None:
    """In files as JsonlSink makes them, the newest without a number; line by line, as a process inherits our peak."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"memory.rank{rank}.jsonl"
    size = 0
    file = path.open("wb")
    for line in records(steps):
        if size + len(line) > FILE_BYTES:
            file.close()
            rotate(path, keep=3)
            file, size = path.open("wb"), 0
        size += file.write(line)
    file.close()


def write_ranks(folder: Path) -> None:
    """The reports of ranks that have ended."""
    write_log(folder / "one", range(1, 10_000, 10))
    report = run_report(folder / "one")
    for rank in range(RANKS):
        run = replace(report.run, rank=rank, world_size=RANKS, end="finished")
        write_report(replace(report, run=run), str(folder / "all"))


def measured(words: list[str]) -> tuple[float, float]:
    """CPU seconds of a process, and the MiB at its peak."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(BYTECODE)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{words} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def rows(folder: Path, shown: dict[str, list[str]], rounds: int) -> Iterator[str]:
    """A table's rows: our commands and the plain readers, taking turns."""
    files = sorted(map(str, folder.glob("*.json*")))
    commands = {name: ["-m", "forgather_mem", *words, str(folder)] for name, words in shown.items()}
    for name, what in READERS.items():
        commands[name] = ["-c", PLAIN_READER, what, *files]
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, words in commands.items():
            found_now = measured(words)
            if number:  # the first writes the bytecode
                took[name].append(found_now)
    alone_s = []
    for _ in range(rounds):
        began_s = time.process_time()
        run_report(folder)
        alone_s.append(time.process_time() - began_s)
    floor_s = statistics.median(cpu_s for cpu_s, _ in took["floor: its lines"])
    yield f"{sum(os.path.getsize(file) for file in files) / 1e6:,.1f} MB in {len(files)} files."
    yield from ("", "| | CPU, s | of the floor | peak, MiB |", "|---|---:|---:|---:|")
    for name, found in took.items():
        cpu_s, peak = (statistics.median(column) for column in zip(*found, strict=True))
        yield f"| {name} | {cpu_s:.2f} | {cpu_s / floor_s:.1f} | {peak:.0f} |"
    yield f"| reading alone, in a process that has imported it | {statistics.median(alone_s):.3f} | | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    # As many as there can be after a roll-up
    each, some = (
        steps[: len(steps) // ROLL_UP_RECORDS * ROLL_UP_RECORDS - 1]
        for steps in (range(1, options.steps + 1), range(1, options.steps + 1, EVERY))
    )
    runs: dict[str, Callable[[Path], None]] = {
        f"{some[-1]:,} steps, read at each 64th": lambda folder: write_log(folder, some),
        f"{each[-1]:,} steps, read at each": lambda folder: write_log(folder, each),
        f"{RANKS} ranks, their reports": write_ranks,
    }
    lines = [
        "# What reading a run takes", "",
        f"{date.today()}, Python {platform.python_version()}, {os.cpu_count()} CPUs, load average "
        f"{os.getloadavg()[0]:.1f}. Made by `python benchmarks/reading.py --steps {options.steps} --rounds "
        f"{options.rounds}`; medians.", "",
        "Wanted: 1,000,000 recorded steps, and any other number, read in 0.1 s for a report; 64 ranks in 2 s.",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as top:
        shown = {"report": ["report"], "report --html": ["report", "--html", f"{top}/page.html"]}
        for number, (title, write) in enumerate(runs.items()):
            folder = Path(top, str(number))
            write(folder)
            place = folder / "all" if (folder / "all").exists() else folder
            lines += ["", f"## {title}", "", *rows(place, shown, options.rounds)]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.markdown:
        options.markdown.write_text(text)


if __name__ == "__main__":
    main()
