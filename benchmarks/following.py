"""What following a run with `report --serve` costs it: the same training, followed by two pages and alone, in turn.

    python benchmarks/following.py [--steps 1500] [--rounds 3] [--out FILE]

The training is a plain loop in `watch()`. A step's processor time is the training process's own; its wall
time also depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAINING = """
import sys, time, torch
import forgather_mem
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(64, 256)
with forgather_mem.watch(quiet=True):
    for step in range(int(sys.argv[1])):
        if step == 100:
            begun, used = time.perf_counter(), time.process_time()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    steps = int(sys.argv[1]) - 100
    print("TIMES", (time.perf_counter() - begun) / steps, (time.process_time() - used) / steps)
"""
PAGES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the table to this file")
    options = parser.parse_args()
    alone, followed, shares, changes = [], [], [], []
    with tempfile.TemporaryDirectory() as top:
        for round_ in range(options.rounds):
            alone.append(trained(Path(top, f"alone{round_}"), options.steps))
            folder = Path(top, f"followed{round_}")
            with following(folder) as seen:
                followed.append(trained(folder, options.steps))
            shares.append(seen["cpu_s"] / seen["wall_s"])
            changes.append(seen["changes"])
    rows = [
        ("what", "alone", "followed"),
        ("---", "---:", "---:"),
        ("processor time of a step, ms", *(median_ms(times, 1) for times in (alone, followed))),
        ("wall time of a step, ms", *(median_ms(times, 0) for times in (alone, followed))),
        ("the server's processor time, % of one core", "", f"{100 * statistics.median(shares):.1f}"),
        (f"changes that {PAGES} pages got", "", f"{statistics.median(changes):.0f}"),
    ]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)


def median_ms(times: list[tuple[float, float]], which: int) -> str:
    found = sorted(1e3 * pair[which] for pair in times)
    return f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


def trained(folder: Path, steps: int) -> tuple[float, float]:
    """Wall and processor seconds of a step."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", TRAINING, str(steps)]
    env = {**os.environ, "FORGATHER_MEM_DIR": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    (line,) = re.findall(r"TIMES (\S+) (\S+)", done.stdout)
    return float(line[0]), float(line[1])


@contextmanager
def following(folder: Path) -> Iterator[dict[str, float]]:
    """Serves the folder as soon as it has a run, to pages that read all they get."""
    seen = {"cpu_s": 0.0, "wall_s": 1.0, "changes": 0.0}
    over = threading.Event()
    thread = threading.Thread(target=serve, args=(folder, seen, over))
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def serve(folder: Path, seen: dict[str, float], over: threading.Event) -> None:
    while not list(folder.rglob("memory.rank0.jsonl")):
        if over.wait(0.2):
            return
    command = [sys.executable, "-m", "forgather_mem", "report", str(folder), "--serve"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split()[1]
    urllib.request.urlopen(f"{address}runs").read()
    begun, used = time.monotonic(), cpu_s(server.pid)
    for _ in range(PAGES):
        threading.Thread(target=read, args=(f"{address}events?run=0", seen), daemon=True).start()
    over.wait()
    seen["wall_s"], seen["cpu_s"] = time.monotonic() - begun, cpu_s(server.pid) - used
    server.terminate()
    server.wait()
    server.stdout.close()


def read(address: str, seen: dict[str, float]) -> None:
    try:
        with urllib.request.urlopen(address) as stream:
            for line in stream:
                seen["changes"] += line.startswith(b"data:")
    except OSError:
        pass  # the server has ended


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
