"""How well is an out-of-memory error explained? Runs the scripts of tests/ooms/scripts, each under a limit of its own.

    python benchmarks/ooms.py [--folder tests/ooms/by_guests] [--only NAME ...] [--json OUT]

Each script is run alone, then by `forgather-mem run`, then alone with the first suggestion of the report applied as it
stands: its `set` and `in_script` become options of the command line. Prints a line for each, then how many were right;
then which of the real messages of tests/diagnose are recognised, beside what Lightning and accelerate recognise.

With `--folder` the scripts of another folder: two each of tests/ooms/by_travellers and by_guests, by people who did not
know the diagnosis, or a whole set, from the commit that benchmarks/results/ooms.md names. What is suggested is written
in the place of the script's own constants (`constants` in facts.json), or, where it is no number of theirs, is the
patch of a reader who had only the script and this suggestion (patches/*.diff, which begins with the suggestion).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "tests" / "ooms" / "scripts"
RUN = [sys.executable, "-m", "forgather_mem", "run"]
# From a command and a new folder to the exit code and the traceback
Start = Callable[[list[str], Path], tuple[int, str]]
_SPEED = re.compile(r"^.*\d+%\|.*$\n?", re.M)


@dataclass
class Outcome:
    """What came of one script."""

    name: str
    phases: list[str]
    plain: tuple[int, str] = (0, "")
    watched: tuple[int, str] = (0, "")
    report: dict[str, Any] | None = None
    applied: list[str] = field(default_factory=list)
    helped: bool | None = None

    @property
    def oom(self) -> dict[str, Any]:
        return (self.report or {}).get("oom") or {}

    @property
    def told(self) -> str:
        return str(self.oom.get("phase"))

    @property
    def requested_is_exact(self) -> bool | None:
        """None where the message has no size."""
        size = requested(self.watched[1])
        return None if size is None else self.oom.get("requested_bytes") == size

    @property
    def ends_alike(self) -> bool:
        """The same exit code, and a traceback with no further line of ours and the same kind of error."""
        kinds = [text.strip().splitlines()[-1].partition(":")[0] for _, text in (self.plain, self.watched) if text]
        same = self.plain[0] == self.watched[0] and len(set(kinds)) == 1
        ours = [
            sum("forgather_mem" in line for line in text.splitlines() if line.strip().startswith("File "))
            for _, text in (self.plain, self.watched)
        ]
        return same and ours[0] == ours[1]  # a script may use us itself


def names(folder: Path) -> list[str]:
    """All scripts of a set."""
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "common")


def outcome_of(
    name: str, *, plain: bool = True, advice: bool = True, of: Path = SCRIPTS, start: Start | None = None
) -> Outcome:
    """Run this script of a set alone, watched, and with the first suggestion applied; `start` runs the watched one."""
    path, others = of / f"{name}.py", of != SCRIPTS
    told = facts_of(path)["phase"] if others else re.findall(r"# phase: (.*)", path.read_text())[0]
    found = Outcome(name, told.split(" or "))
    with tempfile.TemporaryDirectory() as folder:
        if plain:
            found.plain = _run([sys.executable, str(path)], Path(folder) / "plain")
        report = Path(folder) / "report.json"
        words = [*RUN, *(() if advice else ("--advice-s", "0")), "--report", str(report), str(path)]
        found.watched = (start or _run)(words, Path(folder) / "watched")
        if report.exists():
            found.report = json.loads(report.read_text())
        entries = (found.report or {}).get("advice") or []
        if advice and entries:
            found.applied = [entries[0]["text"]] if others else options_of(entries[0])
            words = [str(path), *found.applied]
            if others:
                words = [str(changed(path, entries[0], Path(folder)))]
            found.helped = _run([sys.executable, *words], Path(folder) / "helped")[0] == 0
    return found


def facts_of(script: Path) -> dict[str, Any]:
    """What the author of this script says of it."""
    facts: dict[str, Any] = json.loads((script.parent / "facts.json").read_text())[script.stem]
    return facts


def changed(script: Path, entry: dict[str, Any], folder: Path) -> Path:
    """This script of others with the suggestion applied; as it is where nobody knows how."""
    name, text = script.stem, script.read_text()
    path = folder / f"{name}.py"
    path.write_text(text)
    patch = script.parent / "patches" / f"{name}.diff"
    constants = facts_of(script)["constants"]
    values = {**entry["set"], **entry.get("in_script", {})}
    if values and all(key in constants for key in values):
        for key, value in values.items():
            written = f"torch.{value}" if "DTYPE" in constants[key] and name != "double_table" else repr(value)
            text, num = re.subn(rf"^{constants[key]} = .*$", f"{constants[key]} = {written}", text, flags=re.M)
            assert num == 1, (name, key)
        path.write_text(text)
    elif patch.exists() and _words(patch.read_text().partition("\n")[0]) == _words(f"# {entry['text']}"):
        subprocess.run(["git", "apply", "--whitespace=nowarn", str(patch)], cwd=folder, check=True)
    else:
        print(f"  nobody has applied this to {name}: {entry['text']}")
    return path


def options_of(entry: dict[str, Any]) -> list[str]:
    """A suggestion as options of a command line."""
    values = {**entry["set"], **entry.get("in_script", {})}
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def requested(text: str) -> int | None:
    """The size in an error's last line, which torch writes exactly and numpy as a shape."""
    line = text.strip().splitlines()[-1] if text.strip() else ""
    if match := re.search(r"you tried to allocate (\d+) bytes", line):
        return int(match[1])
    if match := re.search(r"array with shape \((.*)\) and data type (?:float|int)(\d+)", line):
        return math.prod(int(number) for number in match[1].split(",") if number) * int(match[2]) // 8
    return None


def _words(suggestion: str) -> str:
    """Without sizes, shapes and numbers of parts, which differ from run to run."""
    return re.sub(r"[\d.,]+ ([KMG]iB|rows|of its [\d,]+ parts)|[\d,]+( x [\d,]+)+", "N", suggestion)


def _run(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code, and the traceback on stderr."""
    folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGATHER_MEM")}
    environment = {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    return done.returncode, traceback_in(done.stderr)


def traceback_in(stderr: str) -> str:
    """The traceback that a script has written, without ours and without bars."""
    text = _SPEED.sub("", stderr).partition("== forgather-mem == ")[0].partition("forgather-mem: out of memory")[0]
    return text[text.find("Traceback (most") :] if "Traceback (most" in text else ""


# ---- recognition ----


def recognition() -> list[tuple[str, int, int, int, int]]:
    """(whose, messages recognised, messages, other errors taken for it, other errors) of ours and the peers."""
    sys.path.insert(0, str(ROOT))
    from accelerate.utils.memory import should_reduce_batch_size

    from forgather_mem.diagnose.oom.recognition import recognise
    from tests.diagnose.oom.oom_messages import OTHERS, OUT_OF_MEMORY

    def ours(error: BaseException) -> bool:
        return recognise(error) is not None

    judges = [("forgather_mem", ours), ("accelerate", should_reduce_batch_size), *_lightning()]
    rows = []
    for name, judge in judges:
        right = sum(bool(judge(case.error)) for case in OUT_OF_MEMORY)
        wrong = sum(bool(judge(error)) for error in OTHERS)
        rows.append((name, right, len(OUT_OF_MEMORY), wrong, len(OTHERS)))
    return rows


def _lightning() -> list[tuple[str, Any]]:
    try:
        from lightning.pytorch.utilities.memory import is_oom_error
    except ImportError:
        return []
    return [("lightning", is_oom_error)]


# ---- the table ----


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=SCRIPTS, help="of the scripts, with their facts.json")
    parser.add_argument("--only", nargs="*", help="names of scripts")
    parser.add_argument("--json", help="write the reports here")
    parser.add_argument("--no-plain", action="store_true", help="leave out the run alone")
    parser.add_argument("--no-advice", action="store_true", help="leave out the run with the suggestion applied")
    parser.add_argument("--check", action="store_true", help="fail below the goals")
    options = parser.parse_args()
    print(f"{'script':<25}{'phase':<11}{'told':<11}{'requested':<11}{'report':<8}{'alike':<7}{'helped':<8}suggestion")
    found = []
    for name in options.only or names(options.folder):
        one = outcome_of(name, plain=not options.no_plain, advice=not options.no_advice, of=options.folder.resolve())
        found.append(one)
        exact = {None: "not said", True: "exact", False: "WRONG"}[one.requested_is_exact]
        alike = "-" if options.no_plain else "yes" if one.ends_alike else "NO"
        helped = {None: "-", True: "yes", False: "NO"}[one.helped]
        print(
            f"{name:<25}{'/'.join(one.phases):<11.10}{one.told:<11}{exact:<11}{'yes' if one.oom else 'NO':<8}{alike:<7}"
            f"{helped:<8}{' '.join(one.applied)}",
            flush=True,
        )
    good = print_figures(found, options)
    print()
    print(f"{'recognised':<16}{'real messages':<16}other errors taken for it")
    for whose, right, num, wrong, others in recognition():
        print(f"{whose:<16}{f'{right} of {num}':<16}{wrong} of {others}")
    if options.json:
        Path(options.json).write_text(json.dumps([{**vars(one), "told": one.told} for one in found]))
    if options.check and not good:
        sys.exit(1)


def print_figures(found: list[Outcome], options: argparse.Namespace) -> bool:
    """How many were right; whether that reaches the goals."""
    num = len(found)
    sized = [one for one in found if one.requested_is_exact is not None]
    figures = [
        ("phase right", sum(one.told in one.phases for one in found), num, 1.0),
        ("requested exact", sum(bool(one.requested_is_exact) for one in sized), len(sized), 1.0),
        ("report written", sum(bool(one.oom) for one in found), num, 1.0),
    ]
    if not options.no_plain:
        figures.append(("ends as alone", sum(one.ends_alike for one in found), num, 1.0))
    if not options.no_advice:
        figures.append(("first suggestion helps", sum(bool(one.helped) for one in found), num, 0.75))
    print()
    for what, right, of, _ in figures:
        print(f"{what:<24}{right} of {of}")
    return all(right >= goal * of for _, right, of, goal in figures)


if __name__ == "__main__":
    main()
