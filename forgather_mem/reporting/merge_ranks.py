"""Merges the reports of all ranks into one: the worst of each value, and the spread over the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from forgather_mem.reporting.first_failure import NO_WORD, LauncherWord, first_failure
from forgather_mem.telemetry.report import Extremes, FirstFailure, RankRow, RunReport, Spread

# The later, the worse.
_ENDS = ("finished", None, "interrupted", "exception", "killed", "oom")


def merge_ranks(reports: Sequence[RunReport], word: LauncherWord = NO_WORD) -> RunReport:
    """The report over all ranks; for a single process, its own.

    The rank that failed first, else the one with the worst end, and among equals the one with the highest peak on its
    device, else on the host, provides what the schema has once: script, breakdown, out-of-memory. Host, collector,
    leak, clean-up calls and our overhead come from the rank where each is worst; devices and peaks are listed for all
    ranks, the highest first, each with its `rank`. Added keys: `ranks`, one row per rank; `spread`; `missing_ranks`,
    those that left no files; `first_failure`.

    Args:
        reports: At least one.
        word: What the launcher has told of their ends.

    >>> from forgather_mem.telemetry.report import HostMemory, Training
    >>> def report(rank, peak):
    ...     return RunReport(run=Training(rank=rank, world_size=3), host=HostMemory(rss_peak_bytes=peak))
    >>> merged = merge_ranks([report(0, 100), report(2, 300)])
    >>> peaks = merged.spread.host_peak_bytes
    >>> merged.host.rank, (peaks.min, peaks.max, peaks.argmax), merged.missing_ranks
    (2, (100, 300, 2), (1,))
    """
    if len(reports) == 1 and reports[0].run.world_size == 1:
        return reports[0]
    first = first_failure(reports, word)
    worst = max(reports, key=lambda report: (_badness(report), _device_peak(report), _host_peak(report)))
    if first is not None:
        worst = next((_ended(report, first) for report in reports if report.run.rank == first.rank), worst)
    host = max(reports, key=_host_peak)
    gc = max(reports, key=lambda report: report.gc.pause_total_s)
    leak = _worst_leak(reports)
    overhead = max(reports, key=lambda report: report.overhead.share_of_run)
    cleaning = max(reports, key=lambda report: sum(row.seconds for row in report.cleanup_calls))
    acting = max(reports, key=lambda report: sum(row.time_s for row in report.ledger))
    devices = [replace(row, rank=report.run.rank) for report in reports for row in report.device]
    peaks = [replace(row, rank=report.run.rank) for report in reports for row in report.peaks]
    rows = tuple(_row(report, word) for report in reports)
    there = {row.rank for row in rows}
    return replace(
        worst,
        steps=max(report.steps for report in reports),
        run=replace(
            worst.run,
            wall_s=max(report.run.wall_s for report in reports),
            # Only rank 0 has a page
            folder=next((report.run.folder for report in reports if report.run.folder), None),
            event_folder=next((report.run.event_folder for report in reports if report.run.event_folder), None),
        ),
        host=replace(host.host, rank=host.run.rank),
        device=tuple(sorted(devices, key=lambda row: -row.peak_allocated_bytes)),
        peaks=tuple(sorted(peaks, key=lambda row: -row.bytes)),
        gc=replace(gc.gc, rank=gc.run.rank),
        cleanup_calls=cleaning.cleanup_calls,
        leak=replace(leak.leak, rank=leak.run.rank),
        ledger=acting.ledger,
        overhead=replace(overhead.overhead, rank=overhead.run.rank),
        switched_off=tuple(
            f"rank {report.run.rank}: {sentence}" for report in reports for sentence in report.switched_off
        ),
        ranks=rows,
        spread=Spread(
            host_peak_bytes=_extremes(rows, lambda row: row.host_peak_bytes),
            device_peak_bytes=_extremes(rows, lambda row: row.device_peak_bytes),
            device_reserved_bytes=_extremes(rows, lambda row: row.device_reserved_bytes),
            host_sum_bytes=_host_sum(reports),
        ),
        missing_ranks=tuple(rank for rank in range(worst.run.world_size) if rank not in there),
        first_failure=first,
    )


def _ended(report: RunReport, first: FirstFailure) -> RunReport:
    """The report of the rank that failed first, with what its launcher knows of its end."""
    run, killed = replace(report.run, exit_code=first.exit_code or report.run.exit_code), report.killed
    if first.how == "exited" and killed is not None:  # it called os._exit
        run, killed = replace(run, end="interrupted"), None
    elif killed is not None and first.signal is not None:
        killed = replace(killed, signal=first.signal)
        run = replace(run, end="interrupted" if first.how == "behind" else "killed")
    return replace(report, run=run, killed=killed)


def _row(report: RunReport, word: LauncherWord) -> RankRow:
    code, _ = word.exits.get(report.run.rank, (report.run.exit_code, 0))
    return RankRow(
        signal=-code if code is not None and code < 0 else None,
        error=report.run.error,
        rank=report.run.rank,
        end=report.run.end,
        exit_code=report.run.exit_code if code is None or code < 0 else code,
        steps=report.steps,
        host_peak_bytes=_host_peak(report),
        device_peak_bytes=_device_peak(report),
        device_reserved_bytes=max((device.peak_reserved_bytes for device in report.device), default=0),
        leak=report.leak.verdict,
        bytes_per_step=report.leak.bytes_per_step,
    )


def _extremes(rows: Sequence[RankRow], size: Callable[[RankRow], int]) -> Extremes:
    highest, ordered = max(rows, key=size), sorted(rows, key=size)
    extremes = Extremes(min=size(ordered[0]), max=size(highest), argmax=highest.rank)
    if len(rows) < 3:
        return extremes
    middle = ordered[(len(ordered) - 1) // 2]
    return replace(extremes, argmin=ordered[0].rank, median=size(middle), argmedian=middle.rank)


def _host_sum(reports: Sequence[RunReport]) -> int | None:
    """The largest sum of peaks on one machine; None if no two ranks are known to share one."""
    sums, counts = Counter[str](), Counter[str]()
    for report in reports:
        if report.run.host is not None:
            sums[report.run.host] += _host_peak(report)
            counts[report.run.host] += 1
    return max((size for host, size in sums.items() if counts[host] > 1), default=None)


def _worst_leak(reports: Sequence[RunReport]) -> RunReport:
    """The rank that leaks most; of those that leak about as much, one whose report names the holder."""
    worst = max(reports, key=lambda report: (report.leak.verdict == "leak", report.leak.bytes_per_step))
    near = [report for report in reports if 2 * report.leak.bytes_per_step >= worst.leak.bytes_per_step]
    named = [report for report in near if report.leak.suspects and report.leak.suspects[0].held_by]
    leaking = [report for report in named if report.leak.verdict == "leak"]
    return max(leaking, key=lambda report: report.leak.bytes_per_step, default=worst)


def _badness(report: RunReport) -> int:
    end = report.run.end
    return 2 * (_ENDS.index(end) if end in _ENDS else 0) + (report.run.exit_code not in (None, 0))


def _host_peak(report: RunReport) -> int:
    return report.host.rss_peak_bytes


def _device_peak(report: RunReport) -> int:
    return max((device.peak_allocated_bytes for device in report.device), default=0)
