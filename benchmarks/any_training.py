"""Are scripts of others watched that know nothing of us: unchanged, with a leak, and out of memory?

    python benchmarks/any_training.py --scripts FOLDER [--only NAME ...] [--keep FOLDER]

FOLDER holds the scripts, unchanged, at the `path` of `_scripts_of_others.SCRIPTS`; its `source` names repository, path
and commit: `git -C CLONE show COMMIT:PATH > FOLDER/...`. Beside our own dependencies they need Lightning, datasets and
evaluate; Forgather's also torchdata and platformdirs.

Each runs alone and under `forgather-mem run`: exit code, stdout (but times), last weights and the number of steps are
compared. Then each runs with a list that gets 256 KiB a step, with one that gets each loss and its graph, and with a
batch that is too large, under a limit of 200 MiB more than there is. One table is printed: what was told of each.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _scripts_of_others import HEAD, LEAKS, OOM_BATCH, SCRIPTS, Script, prepare

TIMES = re.compile(
    r"\d+\.\d+s|ms/batch +\d+\.\d+|(\d+:)+\d\d|\d+\.\d+it/s|time: +\d+\.\d+"
    r"|(_per_second|_runtime): \d+\.\d+|[━╸╺ ]{3,}"
)
COLUMNS = ("exit", "stdout", "weights", "steps", "phases", "leak", "graph", "OOM")


class Outcome:
    """What a command has left."""

    def __init__(self, folder: Path, script: Script, done: subprocess.CompletedProcess[bytes]) -> None:
        self.exit_code, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr.decode(errors="replace")
        self.weights = {str(path.relative_to(folder)): _tensors(path) for path in sorted(folder.glob(script.weights))}
        self.report: dict[str, Any] = {}
        for path in folder.glob("mem/**/report.json"):
            self.report = json.loads(path.read_text())


def _tensors(path: Path) -> str:
    """A digest of all tensors of a file of weights; torch's own files are zip archives with one entry for each."""
    digest = hashlib.sha256()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in sorted(name for name in archive.namelist() if "/data/" in name):
                digest.update(archive.read(name))
    else:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def run(script: Script, scripts: Path, data: Path, folder: Path, *, watched: bool, plant: str = "") -> Outcome:
    """Run it in this new folder, with something planted in it or as it is."""
    shutil.copytree(data, folder)
    for path in sorted(scripts.glob(script.files)):
        copy = folder / path.relative_to(scripts)
        copy.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy)(path, copy)
    copy = folder / script.path
    for old, new in script.changed:
        assert old in copy.read_text(), old
        copy.write_text(copy.read_text().replace(old, new))
    if plant:
        _plant(script, folder / (script.planted or script.path), plant)
    started = [str(Path(sys.executable).parent / script.launcher[0]), *script.launcher[1:]] if script.launcher else []
    command = [sys.executable, "-m", "forgather_mem", "run"] if watched else [] if started else [sys.executable]
    command += [*started, script.path, *script.argv]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "FORGATHER_MEM_DIR": str(folder / "mem"),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(folder / "forgather" / "src"),
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    outcome = Outcome(folder, script, done)
    (folder / "stdout").write_bytes(done.stdout)
    (folder / "stderr").write_bytes(done.stderr)
    return outcome


def _plant(script: Script, path: Path, plant: str) -> None:
    """Add lines to the copied script, at the places that `script` names."""
    code = LEAKS.get(plant) or f"if next(COUNT) == {OOM_BATCH}: _limit(); {script.oom}"
    anchor = script.leak_at if plant in LEAKS else script.oom_at
    lines = path.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line == "import torch")
    at = next(number for number, line in enumerate(lines) if line.strip() == anchor)
    opens = anchor.endswith(":")
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())] + (" " * 4 if opens else "")
    lines.insert(at + 1, f"{indent}{code}")
    lines.insert(first + 1, HEAD)
    path.write_text("\n".join(lines) + "\n")


def judge(script: Script, scripts: Path, data: Path, folder: Path) -> dict[str, str]:
    """All runs of one script: a word for each column, "yes" or what is not so."""
    folder.mkdir(parents=True)
    alone = run(script, scripts, data, folder / "alone", watched=False)
    watched = run(script, scripts, data, folder / "watched", watched=True)
    told = watched.report.get("steps")
    phases = {peak["phase"] for peak in watched.report.get("peaks", [])}
    missing = {"forward", "backward", "optimizer", *script.phases} - phases
    row = {
        "exit": _same(alone.exit_code, watched.exit_code),
        "stdout": _same_lines(alone.stdout, watched.stdout),
        "weights": _same(alone.weights, watched.weights) if alone.weights else "none",
        "steps": "yes" if told == script.steps else f"{told}, not {script.steps}",
        "phases": "yes" if not missing else f"no {', '.join(sorted(missing))}",
    }
    for plant, column in (("tensor", "leak"), ("graph", "graph")):
        outcome = run(script, scripts, data, folder / plant, watched=True, plant=plant)
        row[column] = _leak(outcome, LEAKS[plant])
    row["OOM"] = _oom(script, run(script, scripts, data, folder / "oom", watched=True, plant="oom"))
    return row


def _same(alone: object, watched: object) -> str:
    return "yes" if alone == watched else f"{watched}, not {alone}"


def _same_lines(alone: bytes, watched: bytes) -> str:
    first, second = (TIMES.sub("T", text.decode(errors="replace")).splitlines() for text in (alone, watched))
    return "yes" if first == second else "; ".join(list(difflib.unified_diff(first, second, n=0, lineterm=""))[3:6])


def _leak(outcome: Outcome, code: str) -> str:
    leak = outcome.report.get("leak") or {}
    suspects = leak.get("suspects") or []
    if leak.get("verdict") != "leak":
        return f"{leak.get('verdict')}, exit {outcome.exit_code}"
    holder = code.partition(".")[0]
    named = [number for number, one in enumerate(suspects) if holder in str(one.get("path", one))]
    lines = [number for number in named if code in json.dumps(suspects[number])]
    return "yes" if lines and lines[0] == 0 else f"holder {named}, line {lines} of {len(suspects)}"


def _oom(script: Script, outcome: Outcome) -> str:
    oom = outcome.report.get("oom")
    if not oom:
        return f"{(outcome.report.get('run') or {}).get('end')}, exit {outcome.exit_code}"
    told = f"step {oom.get('step')}, {oom.get('phase')}"
    return "yes" if told == f"step {script.oom_step}, forward" else told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--keep", type=Path, help="leave what the runs wrote in this new folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = (arguments.keep or Path(name) / "runs").resolve()
        data = Path(name) / "data"
        data.mkdir()
        prepare(data, arguments.scripts.resolve())
        print("| script |", " | ".join(COLUMNS), "|")
        print("|---" * (len(COLUMNS) + 1) + "|")
        for script in SCRIPTS:
            if not arguments.only or any(part in script.name for part in arguments.only):
                folder = place / script.name.replace(" ", "_").replace(",", "")
                row = judge(script, arguments.scripts.resolve(), data, folder)
                print(f"| {script.name} |", " | ".join(row[column] for column in COLUMNS), "|", flush=True)


if __name__ == "__main__":
    main()
