"""Logs of runs whose process is gone."""

import socket
from pathlib import Path
from typing import Any

from forgather_mem.formats.jsonl import header_line, sample_line
from forgather_mem.telemetry.records import Sample
from forgather_mem.units import GIB, MIB


def log_of(
    folder: Path,
    rank: int = 0,
    world_size: int = 1,
    steps: int = 40,
    left: tuple[float, float] | None = None,
    **header: Any,
) -> Path:
    """A log whose process is gone: its number is one that no process has."""
    said = {
        "pid": 2**22 + 5, "host": socket.gethostname(), "world_size": world_size, "started_s": 1000.0, "script": "a.py",
        "argv": [], "versions": {}, "limit_bytes": 8 * GIB, "limit_kind": "cgroup", **header,
    }  # fmt: skip
    lines = [header_line(rank, said)]
    for step in range(1, steps + 1):
        values = {"host/rss_bytes": 2**30 + (rank + 1) * step * MIB, "host/anon_bytes": 2**30 + step * MIB}
        if left is not None:
            values |= {"host/limit_used_frac": left[0], "host/available_bytes": left[1]}
        lines.append(sample_line(Sample("step_end", step, None, 1000.0 + step, values)))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"memory.rank{rank}.jsonl"
    path.write_bytes(b"".join(lines))
    return path
