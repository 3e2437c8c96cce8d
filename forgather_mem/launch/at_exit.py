"""What a process without a Trainer reports when it exits.

The waiting parent sees such a process only from outside. What only the process itself knows, above all about its
device, it writes at exit: no thread, no timer, nothing runs earlier. A process that is killed writes nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from forgather_mem.launch.last_error import write_last_error
from forgather_mem.launch.launcher_word import note_word
from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from forgather_mem.telemetry.records import Sample
    from forgather_mem.telemetry.report import RunReport

_RESERVE_BYTES = 16 << 20  # until torch is loaded: much of what explains a failure has then been imported for it


def watch_process() -> None:
    """At exit of this process, record what has ended it, and write its report unless a better one exists."""
    try:
        run_session.RESERVE.extend(
            bytes(run_session.PIECE_BYTES) for _ in range(_reserve_bytes() // run_session.PIECE_BYTES)
        )
    except (OSError, ValueError, MemoryError):  # no room, or no /proc
        run_session.RESERVE.clear()
    atexit.register(_ends, os.getpid(), time.time())


def _reserve_bytes() -> int:
    """What is kept to report; below a limit of this process little of what it leaves.

    As `memory_limit.spare_bytes`, but nothing is imported: this is any process of the command.
    """
    with open("/proc/self/statm", "rb") as file:
        addresses, *_, data, _ = (int(pages) * os.sysconf("SC_PAGE_SIZE") for pages in file.read().split())
    with open("/proc/self/limits", "rb") as file:
        limits = file.read()
    kept = _RESERVE_BYTES
    for name, used_bytes in ((b"Max address space", addresses), (b"Max data size", data)):
        limit = limits.partition(name)[2].split(None, 1)[0]
        if limit != b"unlimited":
            kept = min(kept, max(0, int(limit) - used_bytes) // 16)
    return kept


def _ends(pid: int, began_s: float) -> None:
    folder = run_session.folder()
    if os.getpid() != pid or folder is None:
        return  # the last: there is no place, or the command has ended before us
    reserve_bytes = sum(map(len, run_session.RESERVE))
    run_session.RESERVE.clear()
    write_last_error(folder, reserve_bytes)
    if "torch" not in sys.modules:
        return
    run_session.note(run_session.TORCH)
    from forgather_mem.system.process_end import keep_ctrl_c
    from forgather_mem.telemetry.guard import FailureGuard

    FailureGuard().call("run", note_word, getattr(sys, "last_value", None))
    if not run_session.registered(folder):
        FailureGuard().call("run", _write, folder, began_s)
    keep_ctrl_c()


def _write(folder: str, began_s: float) -> None:
    from dataclasses import replace
    from types import SimpleNamespace

    from forgather_mem.engine.facts import current_device, finish_facts, header_of
    from forgather_mem.engine.summary import RunFacts, RunSummary
    from forgather_mem.reporting.build import build_report, write_report
    from forgather_mem.reporting.hints import hints_without_steps
    from forgather_mem.system.process_end import last_error

    device = current_device()
    facts = RunFacts(replace(header_of(SimpleNamespace()), started_s=began_s, folder=folder))
    error = last_error()
    end = "finished" if error is None else "interrupted" if isinstance(error, KeyboardInterrupt) else "exception"
    finish_facts(facts, end, time.time() - began_s, device)
    if error is not None:
        facts.failed_by(error)
    summary = RunSummary(facts)
    summary.begin(0)
    summary.add(_sample(device))
    report = replace(build_report(summary), hints=tuple(hints_without_steps()))
    if not _is_better_there(report, folder):
        write_report(report, folder)


def _sample(device: int | None) -> Sample:
    import gc
    from pathlib import Path

    from forgather_mem.engine.facts import sizes_now
    from forgather_mem.system.allocator import gauge, used_allocators
    from forgather_mem.system.procfs import kib_fields
    from forgather_mem.telemetry.records import Sample

    values = sizes_now() | {"gc/collections": gc.get_stats()[-1]["collections"]}
    # The peak of this program; getrusage would include that of an earlier program in this process
    peak = kib_fields(Path("/proc/self/status").read_bytes()).get(b"VmHWM", 0)
    values["host/rss_peak_bytes"] = max(peak, values["host/rss_bytes"])
    for number, allocator in enumerate(used_allocators()):
        stats, family = allocator.stats(), f"device{allocator.index}" if number else "device"
        for name, of in (("reserved_bytes", "reserved_bytes"), ("step_peak_bytes", "allocated_bytes")):
            size = gauge(stats, of, "peak")
            if size is not None:
                values[f"{family}/{name}"] = size
    return Sample("other", 0, None, time.time(), values, device)


def _is_better_there(ours: RunReport, folder: str) -> bool:
    """Whether a more relevant process has written: ranks (for their launcher), who failed first, or who was larger."""
    from forgather_mem.reporting.build import FILE_NAME, rank_reports
    from forgather_mem.telemetry.report_schema import read_report

    alone = ours.run.world_size == 1
    if alone and rank_reports(folder):
        return True
    theirs, _ = read_report(os.path.join(folder, FILE_NAME if alone else f"report.rank{ours.run.rank}.json"))
    if theirs is None:
        return False
    both_failed = theirs.run.end == ours.run.end == "exception"  # ours is then of the one that has waited for it
    return both_failed or theirs.host.rss_peak_bytes > ours.host.rss_peak_bytes
