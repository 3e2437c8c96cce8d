"""How well are leaks found? Runs the zoo of tests/leaks/zoo: leaking scripts, their mended twins, innocent ones.

    python benchmarks/leaks.py [--governor] [--only NAME ...] [--json OUT]
    python benchmarks/leaks.py --simulated [--seeds N] [--steps N] [--every N]

Prints a line for each script, then recall, false alarms, how many holders were named, and the error in bytes. With
`--simulated`, what is said while a run goes on: of made-up series that look like a leak for a while, and of leaks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import re
import statistics
import sys
import tempfile
import traceback
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parent.parent
ZOO = ROOT / "tests" / "leaks" / "zoo"


@dataclass(frozen=True)
class Script:
    """One script: its text, and what is true of it."""

    name: str
    kind: str  # leaking, twin, innocent
    text: str
    held: str = ""
    line: int = 0
    per_step: float = 0.0


def scripts() -> list[Script]:
    """All of the zoo, each leaking one followed by its twin."""
    found = []
    for path in sorted((ZOO / "leaking").glob("*.py")):
        text = path.read_text()
        facts = dict(re.findall(r"^# (held|leaks|mended|bytes): (.*)$", text, re.M))
        line = next(n for n, row in enumerate(text.splitlines(), 1) if facts["leaks"] in row and row[0] != "#")
        per_step = float(facts.get("bytes", 0))
        found.append(Script(path.stem, "leaking", text, facts["held"], line, per_step))
        head, body = text.split(f"# mended: {facts['mended']}", 1)
        found.append(Script(path.stem, "twin", head + body.replace(facts["leaks"], facts["mended"])))
    found += [Script(path.stem, "innocent", path.read_text()) for path in sorted((ZOO / "innocent").glob("*.py"))]
    return found


def run_all(chosen: list[Script], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Each in a forked process of its own, so many at a time; what the harness wrote down, {} for one that failed."""
    sys.path[:0] = [str(ZOO), str(ROOT)]
    importlib.import_module("harness")  # torch and transformers, once for all
    with tempfile.TemporaryDirectory() as folder:
        running: dict[int, int] = {}
        todo = list(enumerate(chosen))
        while todo or running:
            if todo and len(running) < options.jobs:
                number, script = todo.pop(0)
                pid = os.fork()
                if not pid:
                    _child(script, Path(folder) / str(number), options.governor)
                running[pid] = number
                continue
            pid, _ = os.wait()
            running.pop(pid, None)
        return [_read(script, Path(folder) / str(number)) for number, script in enumerate(chosen)]


def _child(script: Script, folder: Path, governor: bool) -> NoReturn:
    """The script as the main program of this process; does not return."""
    status = 1
    try:
        folder.mkdir()
        os.environ |= {"ZOO_OUT": str(folder / "out.json"), "OMP_NUM_THREADS": "1"}
        if governor:
            os.environ["ZOO_GOVERNOR"] = "1"
        tempfile.tempdir = str(folder)
        sys.stderr = sys.stdout = open(folder / "said", "w")  # noqa: SIM115  # open until the end
        path = folder / f"{script.name}.py"
        path.write_text(script.text)
        program = types.ModuleType("__main__")
        program.__file__ = str(path)
        sys.modules["__main__"] = program
        exec(compile(script.text, str(path), "exec"), vars(program))
        status = 0
    except BaseException:  # noqa: BLE001  # whatever a script does, the others run
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _read(script: Script, folder: Path) -> dict[str, Any]:
    said = (folder / "said").read_text()
    if not (folder / "out.json").exists():
        print(f"{script.kind} {script.name} failed:\n{said[-1500:]}", file=sys.stderr)
        return {}
    return {**json.loads((folder / "out.json").read_text()), "said": said.splitlines()}


def printed_at(result: dict[str, Any]) -> int | None:
    """The step at which growth was first printed while the script ran."""
    found = re.search(r"forgather-mem: step ([\d,]+): (?!taken back)[^:]*? grows? ", " ".join(result["said"]))
    return int(found[1].replace(",", "")) if found else None


def located(script: Script, leak: dict[str, Any]) -> bool:
    """Whether the true holder or line is among the first three suspects."""
    for suspect in leak["suspects"][:3]:
        line = re.search(r":(\d+)$", suspect["allocated_at"] or "")
        near_line = line is not None and abs(int(line[1]) - script.line) <= 1 and script.name in suspect["allocated_at"]
        if near_line or (script.held in (suspect["held_by"] or "")):
            return True
    return False


def print_simulated(options: argparse.Namespace) -> None:
    """What is said of series while they grow, as Markdown: how many runs, and the median step of the first time."""
    sys.path.insert(0, str(ROOT))
    series = importlib.import_module("tests.diagnose.leaks.live_series")
    print(f"{options.seeds} runs of {options.steps:,} steps a line, read at every {options.every}th step.\n")
    print(
        "| series | looked into | printed | printed if a look finds a holder that nothing empties |\n|---|---|---|---|"
    )
    for kind in (*series.INNOCENT, *series.LEAKS):
        runs = [kind(random.Random(f"{kind.__name__} {seed}"), options.steps) for seed in range(options.seeds)]
        plain = [series.told(sizes, options.every) for sizes in runs]
        held = [series.told(sizes, options.every, held=True) for sizes in runs]
        cells = [[one.suspected for one in plain], [one.printed for one in plain], [one.printed for one in held]]
        print(f"| {kind.__name__.replace('_', ' ')} | {' | '.join(map(_counted, cells))} |", flush=True)


def _counted(steps: Iterable[int | None]) -> str:
    every = list(steps)
    known = [step for step in every if step is not None]
    return f"{len(known)} of {len(every)}" + (f", step {statistics.median_low(known):,}" if known else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--governor", action="store_true", help="with ScheduledGarbageCollector on")
    parser.add_argument("--only", nargs="*", help="names of scripts")
    parser.add_argument("--kinds", nargs="*", default=["leaking", "twin", "innocent"])
    parser.add_argument("--json", help="write all results here")
    parser.add_argument(
        "--check", action="store_true", help="fail below the goals: recall 95 %%, no alarm, 85 %% named"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--simulated", action="store_true", help="series instead of scripts")
    parser.add_argument("--seeds", type=int, default=40, help="runs of each series")
    parser.add_argument("--steps", type=int, default=8000, help="length of a series")
    parser.add_argument("--every", type=int, default=4, help="steps between two readings of a series")
    options = parser.parse_args()
    if options.simulated:
        print_simulated(options)
        return
    chosen = [
        script
        for script in scripts()
        if script.kind in options.kinds and (not options.only or script.name in options.only)
    ]
    done = [(script, found) for script, found in zip(chosen, run_all(chosen, options), strict=True) if found]
    chosen, results = [script for script, _ in done], [found for _, found in done]
    print(f"{'script':<24}{'kind':<10}{'verdict':<17}{'KiB/step':>9}{'truth':>9}  located  first suspect")
    for script, result in zip(chosen, results, strict=True):
        leak = result["leak"]
        truth = script.per_step or (result["measured"] if script.kind == "leaking" else 0.0)
        first = leak["suspects"][0] if leak["suspects"] else {"held_by": None, "allocated_at": None}
        found = ("yes" if located(script, leak) else "NO") if script.kind == "leaking" else ""
        shown = f"{first['held_by']} {first['allocated_at']}" if leak["suspects"] else ""
        print(
            f"{script.name:<24}{script.kind:<10}{leak['verdict']:<17}{leak['bytes_per_step'] / 1024:>9.1f}"
            f"{truth / 1024:>9.1f}  {found:<7}  {shown}"
        )
    good = print_figures(chosen, results)
    if options.json:
        Path(options.json).write_text(json.dumps([{**vars(s), **r} for s, r in zip(chosen, results, strict=True)]))
    if options.check and not good:
        sys.exit(1)


def print_figures(chosen: list[Script], results: list[dict[str, Any]]) -> bool:
    """Recall, false alarms, located, and bytes; whether these reach the goals."""
    pairs = list(zip(chosen, results, strict=True))
    leaking = [(script, result) for script, result in pairs if script.kind == "leaking"]
    found = [(script, result) for script, result in leaking if result["leak"]["verdict"] == "leak"]
    alarms = [script for script, result in pairs if script.kind != "leaking" and result["leak"]["verdict"] == "leak"]
    right = sum(located(script, result["leak"]) for script, result in leaking)
    errors = []
    for script, result in found:
        truth = script.per_step or result["measured"]
        errors.append(abs(result["leak"]["bytes_per_step"] / truth - 1) if truth else math.inf)
    print()
    if leaking:
        print(f"recall        {len(found)} of {len(leaking)}")
        print(f"located       {right} of {len(leaking)} among the first three")
        print(f"bytes         {sum(error <= 0.25 for error in errors)} of {len(found)} within 25 %")
        print(f"while running {_counted(printed_at(result) for _, result in leaking)} (median)")
    others = [result for script, result in pairs if script.kind != "leaking"]
    print(
        f"false alarms  {len(alarms)} of {len(others)}" + (f": {', '.join(s.name for s in alarms)}" if alarms else "")
    )
    print(f"while running {_counted(map(printed_at, others))}")
    num = max(1, len(leaking))
    return len(found) >= 0.95 * num and right >= 0.85 * num and not alarms


if __name__ == "__main__":
    main()
