"""How well are leaks found and mended that somebody else wrote, who did not know the detector?

    python benchmarks/leaks_by_others.py [--only NAME ...] [--kinds leaking mended twin innocent] [--reports FOLDER]
                                         [--folder FOLDER]

Runs the scripts of tests/leaks/by_others, each under `forgather-mem run`: 60 to 150 lines with a real Trainer and one
leak among several features, their twins (`twins/*.diff`: only the leak is mended), and innocent ones; with `--folder`
those of whole sets, from the commit that benchmarks/results/leaks.md names. `patches/*.diff` are the patches of readers
who were given a script and its report and nothing else. What the report says is held against facts.json, and what is
mended is judged by the kernel's count of the same script without us, beside the twin's.
Prints a line for each script, then recall, false alarms, how many holders and lines were named, and how many leaks were
mended. A leak counts as told, not as recall, if the verdict is none but says that it grows, and names its true holder:
a cache of all rows, pages that workers copy, growth that becomes slower.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tests" / "leaks" / "by_others"
KINDS = ("leaking", "mended", "twin", "innocent")
# A patched script has no leak left when the kernel counts less than this more a step than in the twin.
MENDED_BYTES = 4096
REPEATS = 3  # of a patched script whose count jumped: the least counts


@dataclass(frozen=True)
class Script:
    """One script and the change that is made to it before it runs."""

    name: str
    kind: str
    path: Path
    diff: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def scripts(folder: Path) -> Iterator[Script]:
    """All of them, in the order of their names."""
    facts = json.loads((folder / "facts.json").read_text())
    for path in sorted((folder / "leaking").glob("*.py")):
        own = facts[path.stem]
        yield Script(path.stem, "leaking", path, facts=own)
        yield Script(path.stem, "mended", path, folder / "patches" / f"{path.stem}.diff", own)
        yield Script(path.stem, "twin", path, folder / "twins" / f"{path.stem}.diff", own)
    for path in sorted((folder / "innocent").glob("*.py")):
        yield Script(path.stem, "innocent", path)


def run(script: Script, reports: Path | None) -> dict[str, Any]:
    """The script under `forgather-mem run`: its leak, and for a patched one what the kernel counts without us."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / f"{script.name}.py"
        path.write_text(script.path.read_text())
        if script.diff is not None:
            subprocess.run(["git", "apply", "--whitespace=nowarn", str(script.diff)], cwd=folder, check=True)
        command = [sys.executable, "-m", "forgather_mem", "run", path.name]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "FORGATHER_MEM_DIR": str(folder / "mem"),
            "PYTHONPATH": str(script.path.parent),  # what a script imports beside it
        }
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"failed": done.stderr[-1500:]}
        report = json.loads(next((folder / "mem").rglob("report.json")).read_text())
        if reports is not None and script.kind == "leaking":
            text = subprocess.run(
                [sys.executable, "-m", "forgather_mem", "report", str(folder / "mem")],
                cwd=folder, capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            (reports / script.name).mkdir(parents=True, exist_ok=True)
            (reports / script.name / "train.py").write_text(path.read_text())
            (reports / script.name / "report.txt").write_text(text.replace(str(folder), "."))
        counted: list[float] = []
        while script.kind in ("mended", "twin") and len(counted) < REPEATS and min(counted, default=1e9) > MENDED_BYTES:
            counted.append(counted_alone(path, environment))
        return {"leak": report["leak"], "kernel": min(counted, default=None)}


def counted_alone(path: Path, environment: dict[str, str]) -> float:
    """Bytes a step in the second half of the script, as the kernel counts them, in a process without us."""
    command = [sys.executable, __file__, "--alone", path.name]
    done = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def alone(path: str) -> None:
    """In the child: run the script, read `/proc/self/status` after each step, print the slope of the second half."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    points: list[int] = []

    def read(*_: object) -> None:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in line)
        points.append(1024 * int(line.split()[1]))

    register_optimizer_step_post_hook(read)
    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")
    half = len(points) // 2
    print(statistics.linear_regression(range(half, len(points)), points[half:]).slope, flush=True)
    os._exit(0)  # threads of the script may wait for ever


def located(script: Script, leak: dict[str, Any]) -> bool:
    """Whether the true holder or line is among the first three suspects."""
    held = script.facts["held"]
    named = any(held and re.search(held, suspect["held_by"] or "") for suspect in leak["suspects"][:3])
    return named or has_line(script, leak)


def has_line(script: Script, leak: dict[str, Any]) -> bool:
    """Whether the true line, or one beside it, is among those of the first three suspects."""
    lines = [re.search(rf"{script.name}\.py:(\d+)$", suspect["allocated_at"] or "") for suspect in leak["suspects"][:3]]
    return any(line and abs(int(line[1]) - true) <= 1 for line in lines for true in script.facts["lines"])


def is_told(script: Script, leak: dict[str, Any]) -> bool:
    """Whether it is a leak by the verdict, or told as growth of its true holder."""
    return leak["verdict"] == "leak" or bool(leak.get("undecided") and located(script, leak))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=SCRIPTS, help="of the scripts, with their facts.json")
    parser.add_argument("--only", nargs="*", help="names of scripts")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--reports", type=Path, help="put each leaking script and its report here, for a reader")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--alone", metavar="SCRIPT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        alone(options.alone)
    chosen = [
        one
        for one in scripts(options.folder.resolve())
        if one.kind in options.kinds and (not options.only or one.name in options.only)
    ]
    chosen = [one for one in chosen if one.diff is None or one.diff.exists()]
    print(f"{'script':<18}{'kind':<10}{'verdict':<17}{'KiB/step':>9}{'kernel':>9}  located  first suspect")
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for script, result in zip(chosen, pool.map(lambda one: run(one, options.reports), chosen), strict=True):
            print(row(script, result), flush=True)
            results.append(result)
    figures(chosen, results)


def row(script: Script, result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"{script.name:<18}{script.kind:<10}FAILED {result['failed']}"
    leak, counted = result["leak"], result["kernel"]
    if script.kind == "leaking":
        counted = script.facts["kernel_bytes_per_step"]
    first = leak["suspects"][0] if leak["suspects"] else None
    found = ("yes" if located(script, leak) else "NO") if script.kind == "leaking" else ""
    kernel = "" if counted is None else f"{counted / 1024:.1f}"
    return (
        f"{script.name:<18}{script.kind:<10}{leak['verdict']:<17}{leak['bytes_per_step'] / 1024:>9.1f}{kernel:>9}  "
        f"{found:<7}  " + (f"{first['held_by']} {first['allocated_at']}" if first else "")
    )


def figures(chosen: list[Script], results: list[dict[str, Any]]) -> None:
    """Recall, false alarms, located, bytes, and mended of those that were located."""
    by_kind: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
    for script, result in zip(chosen, results, strict=True):
        if "failed" not in result:
            by_kind[script.kind][script.name] = result
    leaking, twins, mended = by_kind["leaking"], by_kind["twin"], by_kind["mended"]
    of = {script.name: script for script in chosen}
    found = [name for name, one in leaking.items() if one["leak"]["verdict"] == "leak"]
    told = [name for name, one in leaking.items() if is_told(of[name], one["leak"])]
    right = [name for name in told if located(of[name], leaking[name]["leak"])]
    lines = [name for name in told if has_line(of[name], leaking[name]["leak"])]
    near = [
        name
        for name in found
        if abs(leaking[name]["leak"]["bytes_per_step"] / of[name].facts["kernel_bytes_per_step"] - 1) <= 0.25
    ]
    others = {**{f"{name} (twin)": one for name, one in twins.items()}, **by_kind["innocent"]}
    alarms = [name for name, one in others.items() if one["leak"]["verdict"] == "leak"]
    whole = [
        name
        for name, one in mended.items()
        if one["kernel"] <= MENDED_BYTES + max(0.0, twins.get(name, {}).get("kernel") or 0.0)
    ]
    print()
    if leaking:
        print(f"recall        {len(found)} of {len(leaking)}{missing(leaking, found)}")
        print(f"told          {len(told)} of {len(leaking)}{missing(leaking, told)}")
        print(f"located       {len(right)} of {len(leaking)}{missing(leaking, right)}")
        print(f"line          {len(lines)} of {len(leaking)}{missing(leaking, lines)}")
        print(f"bytes         {len(near)} of {len(found)} within 25 % of the kernel's count{missing(found, near)}")
    if others:
        print(f"false alarms  {len(alarms)} of {len(others)}" + (f": {', '.join(alarms)}" if alarms else ""))
    if mended:
        silent = [name for name, one in mended.items() if one["leak"]["verdict"] != "leak"]
        print(f"mended        {len(whole)} of {len(mended)} by the kernel{missing(mended, whole)}")
        print(f"              {len(silent)} of {len(mended)} by the verdict{missing(mended, silent)}")
        located_and_mended = [name for name in whole if name in right]
        if leaking:
            print(f"              {len(located_and_mended)} of the {len(right)} that were located")


def missing(all_names: Any, those: list[str]) -> str:
    left = [name for name in all_names if name not in those]
    return f" (not: {', '.join(left)})" if left else ""


if __name__ == "__main__":
    main()
