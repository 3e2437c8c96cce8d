"""Is what fails late told early, and nothing else? Runs the scripts of tests/late/scripts under `forgather-mem run`.

    python benchmarks/late_failures.py [--folder tests/late/scripts] [--only NAME ...] [--markdown OUT]

Each of two scripts, written after threads of users, is run at a limit at which it fails; without one, for the size
that it really needs; and at the limit with the advice applied. Then the trainings of normal.py, each without a limit
and with half more than it has needed, as forks of this process: nothing may be foretold. They are so short that they
wait for their plan. With `--folder` all late_*.py and normal*.py of an older commit, which
benchmarks/results/late_failures.md names.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
os.environ["OMP_NUM_THREADS"] = "1"  # threads of OpenMP don't survive a fork
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from _watched_forks import Fork, Ran, in_turn, prepare  # noqa: E402

SCRIPTS = ROOT / "tests" / "late" / "scripts"
FAILING = ("eval_logits", "longest_batch")
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
        return peak_mib(self.output)


def peak_mib(output: str) -> float | None:
    found = re.search(r"^peak ([0-9.]+) MiB", output, re.M)
    return float(found[1]) if found else None


def run(name: str, *options: str, watched: bool = True) -> Run:
    """Run this script in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *(["-m", "forgather_mem", "run"] if watched else []), str(SCRIPTS / f"{name}.py")]
        command += options
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
        for words in ("batches,", "needs", "on the host:"):
            if (size := mib(said, words)) is not None:
                return size
        return None

    @property
    def true_mib(self) -> float | None:
        """What is kept, by the script's own count, or what the advice saves of the peak."""
        found = re.search(r"^keeps ([0-9.]+) MiB", self.whole.output, re.M)
        if found or self.name == "longest_batch":
            return float(found[1]) if found else self.whole.peak_mib
        return (self.whole.peak_mib or 0) - (self.fixed.peak_mib or 0)

    def line(self) -> str:
        at = re.search(r"which batch (\d+)|step (\d+)[ )(]", self.failed.foretold.partition(":")[2])
        place = next(filter(None, at.groups()), "-") if at else "-"
        told, true = self.foretold_mib, self.true_mib
        sizes = f"{told:.1f} | {true:.1f}" if told and true else "- | -"
        output = self.failed.output
        failed = re.search(r"(?:memory|exception) after (\d+) steps", output)
        where = failed[1] if failed else "no"
        right = bool(self.failed.foretold) and self.failed.code != 0 and self.fixed.code == 0
        return f"| {self.name} | {place} | {where} | {sizes} | {'yes' if right else 'NO'} |"


def failing(name: str) -> Row:
    """This script at its limit, without one, and with the advice."""
    return Row(name, run(name), run(name, "--limit", "0", watched=False), run(name, "--fixed", watched=False))


def normal(cases: Sequence[tuple[Path, str]], at_once: int) -> tuple[list[str], int]:
    """What was foretold of these trainings, without a limit and at one that they keep to; and of how many runs."""
    starts = [partial(Fork, path, ["--case", case]) for path, case in cases]
    tight, alarms = [], []
    for (path, case), ran in zip(cases, in_turn(starts, at_once), strict=True):
        limit = round(1.5 * (peak_mib(ran.output) or 0) + 40)
        tight.append((f"{case}, {limit} MiB", partial(Fork, path, ["--case", case, "--limit", str(limit)])))
        alarms += note(case, ran)
    for (what, _), ran in zip(tight, in_turn([start for _, start in tight], at_once), strict=True):
        alarms += note(what, ran)
    return alarms, 2 * len(cases)


def late(cases: Sequence[tuple[Path, str]], at_once: int) -> list[str]:
    """A line for each of these trainings: whether it failed, and what was foretold of it."""
    starts = [partial(Fork, path, ["--case", case]) for path, case in cases]
    lines = []
    for (_, case), ran in zip(cases, in_turn(starts, at_once), strict=True):
        state = "fails" if ran.code else "DOES NOT FAIL"
        lines.append(f"{case}: {state}, foretold: {'; '.join(ran.foretold) or 'NOTHING'}")
        print(lines[-1], flush=True)
    return lines


def note(what: str, ran: Ran) -> list[str]:
    """Print how a normal training went; what was foretold of it."""
    state = "ok" if ran.code == 0 and ran.num_reports else f"FAILED: exit {ran.code}, {ran.num_reports} reports"
    state += ", planned" * ("planned: Outlook" in ran.output)
    print(f"{what}: {state}", *ran.foretold, flush=True)
    if not ran.num_reports or ran.code:
        print(ran.output[-1500:])
    return [f"{what}: {said}" for said in ran.foretold]


def wait_for_plans() -> None:
    """Let trainings that end before they are planned wait for it, and say what was planned."""
    from forgather_mem.diagnose.alerts import planned

    planned._WHEN = planned._WHEN._replace(budget_frac=math.inf, patience_s=100.0)
    logging.basicConfig()
    planned.logger.setLevel(logging.DEBUG)


def forked(folder: Path, only: Sequence[str], at_once: int) -> list[str]:
    """What came of the scripts with many trainings each, or of those asked for."""
    prepare(("torch", "transformers.trainer", "lightning"))
    wait_for_plans()
    known = [
        (path, case)
        for path in sorted((*folder.glob("late_*.py"), *folder.glob("normal*.py")))
        for case in Fork(path, ["--case", "names"]).wait().output.split()
    ]
    known = [one for one in known if not only or {one[0].stem, one[1]} & {*only}]
    lines = late([one for one in known if one[0].stem.startswith("late")], at_once)
    cases = [one for one in known if one[0].stem.startswith("normal")]
    alarms, count = normal(cases, at_once) if cases else ([], 0)
    summary = [f"False alarms in {count} runs of {len(cases)} normal trainings: {len(alarms)}.", *alarms]
    print(*summary, sep="\n")
    return [*lines, *summary]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=SCRIPTS, help="of the scripts with many trainings each")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--at-once", type=int, default=2, help="normal trainings at once (2)")
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    lines = ["| script | foretold place | failed at | foretold, MiB | true, MiB | right |", "|---|---|---|---|---|---|"]
    print(*lines, sep="\n")
    for name in FAILING:
        if not asked.only or name in asked.only:
            lines.append(failing(name).line())
            print(lines[-1], flush=True)
    if not asked.only or any(name not in FAILING for name in asked.only):
        lines += ["", *forked(asked.folder.resolve(), asked.only, asked.at_once)]
    if asked.markdown:
        asked.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
