"""Is what fails late told early, and nothing else? Runs the scripts of tests/late/scripts under `forgather-mem run`.

    python benchmarks/late_failures.py [--only NAME ...] [--markdown OUT]

Each of seven scripts, written after threads of users, is run at a limit at which it fails; without one, for the size
that it really needs; and at the limit with the advice applied. The disks are small file systems in memory (`unshare`,
`mount`). Then the trainings of normal.py, each without a limit and with half more than it has needed: nothing may be
foretold.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "tests" / "late" / "scripts"
DISKS_MIB = {"full_disk": 9, "filling_disk": 25}
FAILING = (
    "eval_logits", "eval_listed", "loop_outputs", "lightning_outputs", "longest_batch", "full_disk", "filling_disk"
)  # fmt: skip
_SIZES = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


@dataclass
class Run:
    """What came of one command."""

    code: int
    output: str

    @property
    def foretold(self) -> str:
        """The line of the report, whole; empty if nothing was."""
        found = re.search(r"^Foretold at (.*?\.)$(?=\n[A-Z=]|\n\s*\n)", self.output, re.M | re.S)
        return " ".join(found[1].split()) if found else ""

    @property
    def peak_mib(self) -> float | None:
        found = re.search(r"^peak ([0-9.]+) MiB", self.output, re.M)
        return float(found[1]) if found else None


def run(name: str, *options: str, disk_mib: int = 0, watched: bool = True) -> Run:
    """Run this script in an empty folder; with a disk of its own below `disk`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *(["-m", "forgather_mem", "run"] if watched else []), str(SCRIPTS / f"{name}.py")]
        command += options
        if disk_mib:
            os.mkdir(f"{folder}/disk")
            mount = f'mount -t tmpfs -o size={disk_mib}m tmpfs disk && exec "$@"'
            command = ["unshare", "-rm", "sh", "-c", mount, "sh", *command, "--folder", "disk"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return Run(ended.returncode, ended.stdout + ended.stderr)


def mib(text: str, before: str) -> float | None:
    """The first size of a text after these words."""
    found = re.search(before + r"\D*?([0-9.]+) (KiB|MiB|GiB)", text)
    return float(found[1]) * _SIZES[found[2]] if found else None


@dataclass
class Row:
    """One failing script."""

    name: str
    failed: Run
    whole: Run
    fixed: Run

    @property
    def foretold_mib(self) -> float | None:
        said = self.failed.foretold
        for words in ("batches,", "needs", "takes", "on the host:"):
            if (size := mib(said, words)) is not None:
                return size
        return None

    @property
    def true_mib(self) -> float | None:
        """What is kept, by the script's own count, or what the advice saves of the peak; the files of a checkpoint."""
        found = re.search(r"^(?:checkpoint|keeps) ([0-9.]+) MiB", self.whole.output, re.M)
        if found or self.name == "longest_batch":
            return float(found[1]) if found else self.whole.peak_mib
        return (self.whole.peak_mib or 0) - (self.fixed.peak_mib or 0)

    def line(self) -> str:
        at = re.search(r"which batch (\d+)|step (\d+)[ )(]", self.failed.foretold.partition(":")[2])
        place = next(filter(None, at.groups()), "-") if at else "-"
        told, true = self.foretold_mib, self.true_mib
        sizes = f"{told:.1f} | {true:.1f}" if told and true else "- | -"
        output = self.failed.output
        failed = re.search(r"in its batch (\d+)", output) or re.search(
            r"(?:memory|exception) after (\d+) steps", output
        )
        where = failed[1] if failed else "no"
        right = bool(self.failed.foretold) and self.failed.code != 0 and self.fixed.code == 0
        return f"| {self.name} | {place} | {where} | {sizes} | {'yes' if right else 'NO'} |"


def failing(name: str) -> Row:
    """This script at its limit, without one, and with the advice."""
    disk = DISKS_MIB.get(name, 0)
    free = () if disk else ("--limit", "0")
    return Row(
        name,
        run(name, disk_mib=disk),
        run(name, *free, disk_mib=1000 if disk else 0, watched=False),
        run(name, "--fixed", disk_mib=disk, watched=False),
    )


def normal(case: str) -> tuple[str, list[str]]:
    """What was foretold of this training, without a limit and at one that it keeps to."""
    free = run("normal", "--case", case)
    limit = round(1.5 * (free.peak_mib or 0) + 40)
    tight = run("normal", "--case", case, "--limit", str(limit))
    told = [one.foretold for one in (free, tight) if one.foretold]
    state = "ok" if free.code == 0 == tight.code else f"failed: {free.code}, {tight.code}"
    return state, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    lines = ["| script | foretold place | failed at | foretold, MiB | true, MiB | right |", "|---|---|---|---|---|---|"]
    print(*lines, sep="\n")
    for name in FAILING:
        if not asked.only or name in asked.only:
            lines.append(failing(name).line())
            print(lines[-1], flush=True)
    cases = run("normal", "--case", "names", watched=False).output.split()
    alarms, count = [], 0
    for case in cases:
        if not asked.only or case in asked.only or "normal" in asked.only:
            state, told = normal(case)
            count += 1
            alarms += [f"{case}: {one}" for one in told]
            print(f"{case}: {state}", *told, flush=True)
    if count:
        lines += ["", f"False alarms in {count} normal trainings, each run twice: {len(alarms)}.", *alarms]
    if asked.markdown:
        asked.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
