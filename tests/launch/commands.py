"""A command run plainly and watched, side by side."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RUN = [sys.executable, "-m", "forgather_mem", "run"]
PLAN = [*RUN[:-1], "plan"]
# Who asks for a file has a report of the shortest script, too; also a user without rights can write it
_FOLDER = Path(tempfile.mkdtemp())
_FOLDER.chmod(0o777)
JUDGED = [*RUN, "--report", str(_FOLDER / "report.json")]
BEGIN = "forgather-mem: watching "
REPORT = "== forgather-mem == "


@dataclass(frozen=True)
class Result:
    """What somebody sees of a command from outside."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Watched:
    """The same of a watched one, ours taken apart from the rest."""

    plain: Result
    begin: str
    report: str


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGATHER_MEM")}
    return {**kept, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **more}


def run(words: Sequence[str], folder: Path, *, stdin: str | None = None, timeout: float = 300, **more: str) -> Result:
    done = subprocess.run(
        list(words), cwd=folder, env=environment(**more), input=stdin, capture_output=True, text=True, timeout=timeout
    )
    return Result(done.returncode, done.stdout, done.stderr)


def python(*words: str) -> list[str]:
    return [sys.executable, *words]


def watched(words: Sequence[str], folder: Path, **more: str) -> Watched:
    """`forgather-mem run --report FILE WORDS...`."""
    return taken_apart(run([*JUDGED, *words], folder, **more))  # type: ignore[arg-type]


def taken_apart(result: Result) -> Watched:
    begin, _, rest = result.err.partition("\n")
    assert begin.startswith(BEGIN), result.err
    head, found, tail = rest.partition(REPORT)
    assert found, result.err
    assert "failures in a row" not in " ".join(tail.split()), "a part of ours has failed and was switched off"
    head = head.partition("forgather-mem: out of memory in ")[0]  # which is planned then
    return Watched(Result(result.code, result.out, head), begin, found + tail)


def report_in(folder: Path) -> Any:
    """Of the one training in this folder."""
    (path,) = folder.glob("forgather_mem/*/report.json")
    return json.loads(path.read_text())


def the_plan(result: Result) -> Any:
    """The only one that `plan --json` has told."""
    assert result.code == 0, result.err
    (plan,) = json.loads(result.out)["plans"]
    return plan


def working_folders() -> set[str]:
    """Of all processes that can be asked."""
    found = set()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{name}/cwd"))
    return found


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}
