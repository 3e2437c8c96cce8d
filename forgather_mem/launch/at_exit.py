"""What a process of a watched command tells the waiting parent when it exits, and how the parent reads it.

Without a Trainer the parent sees a process only from outside. What only the process itself knows, above all about its
device, it writes at exit: no thread, no timer, nothing runs earlier. A process that is killed writes nothing. Python
has then printed the traceback of the error that ended it, and keeps the error as `sys.last_value`. A launcher, as
torchrun, tells how its ranks ended.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from forgather_mem.errors import missing
from forgather_mem.telemetry import events, run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from forgather_mem.reporting.ranks import LauncherWord
    from forgather_mem.telemetry.records import Sample
    from forgather_mem.telemetry.report import RunReport

_RESERVE_BYTES = 16 << 20  # until torch is loaded: much of what explains a failure has then been imported for it
# Errors of these types are never about memory, and not worth an import.
_NEVER = (KeyboardInterrupt, SystemExit, AssertionError, AttributeError, LookupError, NameError, TypeError, SyntaxError)
_MAX_BYTES = 2**20
_FAILED, _ASKED = "ranks failed", "ranks asked"  # kinds of notes
_ELASTIC = "torch.distributed.elastic.multiprocessing."


def watch_process() -> None:
    """At exit of this process, record what has ended it, and write its report unless a better one exists."""
    try:
        piece_bytes = run_session.PIECE_BYTES
        run_session.RESERVE.extend(bytes(piece_bytes) for _ in range(_reserve_bytes() // piece_bytes))
    except (OSError, ValueError, IndexError, MemoryError):  # no room, or no /proc
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

    from forgather_mem.engine.facts import device_sizes, sizes_now
    from forgather_mem.system.procfs import kib_fields
    from forgather_mem.telemetry.records import Sample

    values = sizes_now() | {"gc/collections": gc.get_stats()[-1]["collections"]}
    # The peak of this program; getrusage would include that of an earlier program in this process
    peak = kib_fields(Path("/proc/self/status").read_bytes()).get(b"VmHWM", 0)
    values["host/rss_peak_bytes"] = max(peak, values["host/rss_bytes"])
    peaks = ("reserved_bytes", "reserved_bytes", "peak"), ("step_peak_bytes", "allocated_bytes", "peak")
    values |= device_sizes(peaks)
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


# ---- the error that ended it ----


def write_last_error(folder: str, reserve_bytes: int) -> None:
    """Write what is known about the out-of-memory error that has ended this process, if any.

    `reserve_bytes` were held by us until just now.
    """
    error = getattr(sys, "last_value", None)
    if error is None or (isinstance(error, _NEVER) and error.__cause__ is None and error.__context__ is None):
        return
    from forgather_mem.telemetry.guard import FailureGuard

    FailureGuard().call("run", _write_error, folder, error, reserve_bytes)


def _write_error(folder: str, error: BaseException, reserve_bytes: int) -> None:
    import json

    from forgather_mem.diagnose.oom.recognition import recognise, unexamined
    from forgather_mem.files import replace_file
    from forgather_mem.heap.failed_frames import drop_frames
    from forgather_mem.system.memory_limit import near_a_kill
    from forgather_mem.telemetry.report import Change, LastError
    from forgather_mem.telemetry.report_schema import to_dict

    rank = run_session.rank_and_size()[0]
    path = os.path.join(folder, run_session.LAST_ERROR.format(rank=rank))
    told_before = _load(path)
    if isinstance(told_before, dict) and told_before.get("pid") == os.getpid():
        return  # the training's own reporter knows more
    found = recognise(error)
    if found is None:
        return
    limit = near_a_kill()
    if limit is not None:
        oom, advice = unexamined(found, limit, "other", 0, rank), tuple[Change, ...]()
    else:
        from forgather_mem.diagnose.oom.explanation import explained, failure_outside

        failure = failure_outside(error, found, rank, reserve_bytes)
        drop_frames(error)  # the frames are no longer needed, and writing needs some of their memory
        oom, advice = explained(failure)
    replace_file(path, json.dumps(to_dict(LastError(oom=oom, advice=advice))).encode(), through_links=False)


def add_last_error(report: RunReport, folder: str) -> RunReport:
    """The report of a finished command, with the error that ended it if a process has recorded one."""
    from dataclasses import replace

    from forgather_mem.reporting.build import with_in_use
    from forgather_mem.telemetry.report import LastError
    from forgather_mem.telemetry.report_schema import checked

    if report.oom is not None or report.killed is not None:
        return report
    first = None
    with missing(OSError, ValueError):  # that of the rank that failed first
        first = _load(min(run_session.last_errors(folder), key=os.path.getmtime))
    told = checked(LastError, first)
    if told is None:
        return report
    oom = told.oom
    if oom.phase in events.OPAQUE_PHASES - {"resume"}:  # left over from a training that had already ended
        oom = replace(oom, step=oom.step or report.steps)
    return with_in_use(replace(report, run=replace(report.run, end="oom"), oom=oom, advice=told.advice))


def _load(path: str) -> object:
    """What stands in such a file; None for anything else."""
    import json

    from forgather_mem.files import read_regular

    with missing(OSError, ValueError, RecursionError):
        return json.loads(read_regular(path, _MAX_BYTES))
    return None


# ---- a launcher's word ----


def note_word(error: BaseException | None) -> None:
    """In a launcher that this error has ended: tell the waiting parent which ranks failed, or who asked it to end."""
    failed = getattr(sys.modules.get(f"{_ELASTIC}errors"), "ChildFailedError", ())
    asked = getattr(sys.modules.get(f"{_ELASTIC}api"), "SignalException", ())
    if isinstance(error, failed):
        exits = (f"{rank}:{one.exitcode}:{one.timestamp}" for rank, one in error.failures.items())
        run_session.note(_FAILED, " ".join(exits))
    elif isinstance(error, asked):
        run_session.note(_ASKED, str(int(error.sigval)))


def word_of(folder: str | None) -> LauncherWord:
    """In the parent: what the launcher that ended last has told."""
    import re

    from forgather_mem.reporting.ranks import LauncherWord

    failed, asked = ((run_session.noted(folder, kind) if folder else [])[-1:] for kind in (_FAILED, _ASKED))
    exits = re.findall(r"\b(\d{1,6}):(-?\d{1,4}):(\d{1,12})\b", "".join(failed))
    signal = int(asked[0]) if asked and asked[0].isdecimal() else None
    return LauncherWord({int(rank): (int(code), int(time_s)) for rank, code, time_s in exits}, signal)
