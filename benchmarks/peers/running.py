"""One tool beside one script, in fresh processes: its output, what it found, its time and the memory of them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tools import Tool

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "out" / "peers"  # what was printed, to be judged again without running again
LIMIT_S = 300
# TraceML gives its second process 15 s, which on a busy machine are not always enough: it is started again
NOT_STARTED, STARTS = "training was not started", 3


@dataclass(frozen=True)
class Ran:
    """What came of a run.

    Attributes:
        exit_code: None where it was still running after `LIMIT_S`.
        wall_s: From the start to its end.
        peak_bytes: The most resident memory of the process and its children together, looked at every 0.2 s.
        output: What the terminal showed.
        findings: What the tool found, apart from the output of the script.
        steps: Of `steps.py`: the median and the mean of a step, in ms.
    """

    exit_code: int | None
    wall_s: float
    peak_bytes: int
    output: str
    findings: str
    steps: dict[str, float]


def ran(part: str, tool: Tool, script: Path, turn: int = 0, **environment: str) -> Ran:
    """The kept run, or a new one."""
    file = KEPT / f"{part}.{script.stem}.{tool.name.replace(' ', '_')}.{turn}.json"
    if not file.exists():
        for _ in range(STARTS):
            found = _run(tool, script, environment)
            if NOT_STARTED not in found.output:
                break
        KEPT.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(found), indent=1))
        print(f"{file.stem}: {found.wall_s:.1f} s, exit {found.exit_code}", file=sys.stderr, flush=True)
    return Ran(**json.loads(file.read_text()))


def _run(tool: Tool, script: Path, environment: dict[str, str]) -> Ran:
    # Else each run would compile torch and transformers anew
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables = {
        **inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(script.parent), **tool.environment, **environment
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        output, began_s = Path(folder) / "output.txt", time.monotonic()
        with output.open("w") as file:
            process = subprocess.Popen(
                tool.command(script), cwd=folder, env=variables, stdout=file, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            exit_code, peak_bytes = _wait(process)
        wall_s = time.monotonic() - began_s
        findings = _findings(tool, script, Path(folder), variables, output.read_text(errors="replace"))
        steps = Path(folder) / "steps.json"
        return Ran(
            exit_code, wall_s, peak_bytes, output.read_text(errors="replace")[-20_000:], findings[-20_000:],
            json.loads(steps.read_text()) if steps.exists() else {},
        )  # fmt: skip


def _findings(tool: Tool, script: Path, folder: Path, variables: dict[str, str], output: str) -> str:
    if tool.read is None:
        written = folder / "findings.txt"
        return written.read_text() if written.exists() else ""
    # PYTHONPATH is for the script only
    try:
        told = subprocess.run(
            tool.read(script), cwd=folder, env={**variables, "PYTHONPATH": ""}, capture_output=True, text=True,
            timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not read in {LIMIT_S} s\n"
    return told.stdout or told.stderr[-2000:]


def _wait(process: subprocess.Popen[bytes]) -> tuple[int | None, int]:
    """The exit code and the peak; ends what takes too long."""
    peak_bytes, ended = 0, threading.Event()
    watched = psutil.Process(process.pid)

    def look() -> None:
        nonlocal peak_bytes
        while not ended.wait(0.2):
            total = 0
            try:
                for one in (watched, *watched.children(recursive=True)):
                    total += one.memory_info().rss
            except psutil.Error:
                continue  # one of them has just ended
            peak_bytes = max(peak_bytes, total)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        return process.wait(LIMIT_S), peak_bytes
    except subprocess.TimeoutExpired:
        for one in (*watched.children(recursive=True), watched):
            one.kill()
        process.wait()
        return None, peak_bytes
    finally:
        ended.set()
        thread.join()
