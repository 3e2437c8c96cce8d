"""What is left to say of a process without a Trainer, when it ends?

The waiting parent sees such a process from outside. What only the process itself knows, its device above all, it
writes at its own end: no thread, no timer, nothing is done before. A process that is killed leaves this out.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from forgather_mem import session
from forgather_mem.launch.last_error import tell_last_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap

    from forgather_mem.sample import Sample


_RESERVE_BYTES = 16 << 20


def watch_process() -> None:
    """At the end of this process tell what has ended it; write its report, if nothing better is there."""
    import mmap

    try:  # addresses without memory behind them, given back for what is said at a memory limit
        reserve = [mmap.mmap(-1, _RESERVE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)]
    except OSError:
        reserve = []
    atexit.register(_ends, os.getpid(), time.time(), reserve)


def _ends(pid: int, began_s: float, reserve: list[mmap.mmap]) -> None:
    folder = os.environ.get(session.FOLDER, "")
    if os.getpid() != pid or not os.path.isdir(folder):
        return  # the last: the command has ended before us, and taken its folder away
    reserve_bytes = _RESERVE_BYTES * len(reserve)
    reserve.clear()
    tell_last_error(folder, reserve_bytes)
    if "torch" not in sys.modules or session.registered(folder):
        return
    from forgather_mem.fence import Fence

    Fence().call("run", _write, folder, began_s)


def _write(folder: str, began_s: float) -> None:
    from types import SimpleNamespace

    from forgather_mem.report import build_report, write_report
    from forgather_mem.run_facts import current_device, facts_of, finish_facts
    from forgather_mem.summary import RunSummary

    device = current_device()
    facts = facts_of(SimpleNamespace(), None)
    facts.started_s, facts.folder = began_s, folder
    finish_facts(facts, "finished", None, time.time() - began_s, device)
    summary = RunSummary(facts)
    summary.begin(0)
    summary.add(_sample(device))
    report = build_report(summary)
    if not _is_better_there(report["host"]["rss_peak_bytes"], folder, facts.world_size, facts.rank):
        write_report(report, folder)


def _sample(device: int | None) -> Sample:
    import gc
    from pathlib import Path

    from forgather_mem.probes.allocator import current_allocator, gauge
    from forgather_mem.probes.procfs import kib_fields, own_memory
    from forgather_mem.sample import Sample

    memory = own_memory()
    values: dict[str, float] = {
        "host/rss_bytes": memory.resident_bytes,
        "host/anon_bytes": memory.anonymous_bytes,
        "gc/collections": gc.get_stats()[-1]["collections"],
    }
    try:  # the peak of this program; getrusage would carry over that of the one before it in this process
        values["host/rss_peak_bytes"] = kib_fields(Path("/proc/self/status").read_bytes())[b"VmHWM"]
    except (OSError, KeyError):
        values["host/rss_peak_bytes"] = memory.resident_bytes
    allocator = current_allocator()
    if allocator is not None:
        stats = allocator.stats()
        for name, of, what in (
            ("device/allocated_bytes", "allocated_bytes", "current"),
            ("device/reserved_bytes", "reserved_bytes", "peak"),
            ("device/step_peak_bytes", "allocated_bytes", "peak"),
        ):
            size = gauge(stats, of, what)
            if size is not None:
                values[name] = size
    return Sample("other", 0, None, time.time(), values, device)


def _is_better_there(peak_bytes: int, folder: str, world_size: int, rank: int) -> bool:
    """Whether those have written who matter more: ranks, to their launcher, and the larger of two processes."""
    import json
    from pathlib import Path

    from forgather_mem.report import rank_reports

    try:
        if world_size == 1:
            if rank_reports(folder):
                return True
            name = "report.json"
        else:
            name = f"report.rank{rank}.json"
        report = json.loads((Path(folder) / name).read_bytes())
        return bool(report["host"]["rss_peak_bytes"] > peak_bytes)
    except (OSError, ValueError, KeyError):
        return False
