"""What ranks leave whose processes are gone, written by our own writers."""

import socket
from pathlib import Path

from forgather_mem.formats.ring_writer import RingWriter, ring_name
from forgather_mem.units import GIB, MIB
from tests.reporting.report_fixtures import report_of, written

LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:28360"


def no_end(folder: Path, rank: int, world_size: int, step: int = 30, phase: str = "backward") -> None:
    """A black box that nobody has closed; its process is one that no machine has."""
    header = {
        "rank": rank, "world_size": world_size, "pid": 2**22 + 5, "host": socket.gethostname(), "script": "train.py",
        "started_s": 1000.0, "limit_bytes": 64 * GIB, "limit_kind": "cgroup",
    }  # fmt: skip
    ring = RingWriter(folder / ring_name(rank), header)
    for done in range(1, step + 1):
        ring.sample(done, {"host/rss_bytes": GIB + (rank * 37 % 64) * MIB}, time_s=1000.0 + done)
    ring.state(step, phase)
    ring.close()


def ended(folder: Path, rank: int, world_size: int, error: str | None = LOST, end: str = "exception") -> None:
    """The report of a rank that has closed its run."""
    run = {"rank": rank, "world_size": world_size, "host": socket.gethostname(), "error": error}
    peak = {"rss_peak_bytes": GIB + (rank * 37 % 64) * MIB, "limit_bytes": 64 * GIB, "limit_kind": "cgroup"}
    written(report_of("train.py", 30, 9.0, end, run=run, host=peak), folder)
