"""Reports of several ranks as one: the worst of each value, how far the ranks are apart, and which failed first.

When one rank fails, the others lose their peer or are ended, and say so as loudly.
"""

from __future__ import annotations

import math
import re
import signal
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from forgather_mem.reporting.problems import signal_name, was_out_of_memory
from forgather_mem.reporting.table import format_time
from forgather_mem.telemetry.events import PHASES, STEP_PHASES
from forgather_mem.telemetry.report import Extremes, FirstFailure, RankRow, RunReport, Spread, Training

# The later, the worse.
_ENDS = ("finished", None, "interrupted", "exception", "killed", "oom")
# What gloo, NCCL and the store of torch say on a rank whose peer has gone, or does not come; some have no type.
_LOST_PEER = re.compile(
    r"Dist\w*Error|RuntimeError: .*(by peer|\bgloo\b|\bnccl\b|watchdog|socket timeout|TCPStore)", re.IGNORECASE
)
# A launcher that sees one rank fail ends the others, and kills after 30 seconds those that stay.
_TOGETHER_S = 10.0
_NAMED = 8
_OTHERS = {"exception": "ended by an exception", "killed": "left no end", "oom": "out of memory"}


class LauncherWord(NamedTuple):
    """What a launcher has told at its end.

    Attributes:
        exits: Of those of its own ranks that failed the exit code, or minus the signal, and when, in whole seconds.
        asked: The signal by which it was asked to end, if that was why.
    """

    exits: Mapping[int, tuple[int, int]] = {}
    asked: int | None = None


NO_WORD = LauncherWord()
# How likely it failed first (0 most), when its end was seen, how far it had come, its rank
_Suspect = tuple[int, float, tuple[int, int], int, FirstFailure]


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
    worst = max(reports, key=lambda report: (_badness(report), _device_peak(report), report.host.rss_peak_bytes))
    if first is not None:
        worst = next((_ended(report, first) for report in reports if report.run.rank == first.rank), worst)
    host = max(reports, key=lambda report: report.host.rss_peak_bytes)
    gc = max(reports, key=lambda report: report.gc.pause_total_s)
    leak = _worst_leak(reports)
    overhead = max(reports, key=lambda report: report.overhead.share_of_run)
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
        cleanup_calls=max((one.cleanup_calls for one in reports), key=lambda rows: sum(row.seconds for row in rows)),
        leak=replace(leak.leak, rank=leak.run.rank),
        ledger=max((one.ledger for one in reports), key=lambda rows: sum(row.time_s for row in rows)),
        overhead=replace(overhead.overhead, rank=overhead.run.rank),
        switched_off=tuple(f"rank {one.run.rank}: {sentence}" for one in reports for sentence in one.switched_off),
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
        signal=-code if code is not None and code < 0 else None, error=report.run.error, rank=report.run.rank,
        end=report.run.end, exit_code=report.run.exit_code if code is None or code < 0 else code, steps=report.steps,
        host_peak_bytes=report.host.rss_peak_bytes, device_peak_bytes=_device_peak(report),
        device_reserved_bytes=max((device.peak_reserved_bytes for device in report.device), default=0),
        leak=report.leak.verdict, bytes_per_step=report.leak.bytes_per_step,
    )  # fmt: skip


def _extremes(rows: Sequence[RankRow], size: Callable[[RankRow], int]) -> Extremes:
    highest, ordered = max(rows, key=size), sorted(rows, key=size)
    extremes = Extremes(min=size(ordered[0]), max=size(highest), argmax=highest.rank)
    if len(rows) < 3:
        return extremes
    middle = ordered[(len(ordered) - 1) // 2]
    return replace(extremes, argmin=ordered[0].rank, median=size(middle), argmedian=middle.rank)


def _host_sum(reports: Sequence[RunReport]) -> int | None:
    """The largest sum of peaks on one machine; None if no two ranks are known to share one."""
    peaks: dict[str | None, list[int]] = {}
    for report in reports:
        peaks.setdefault(report.run.host, []).append(report.host.rss_peak_bytes)
    return max((sum(sizes) for host, sizes in peaks.items() if host is not None and len(sizes) > 1), default=None)


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


def _device_peak(report: RunReport) -> int:
    return max((device.peak_allocated_bytes for device in report.device), default=0)


def first_failure(reports: Sequence[RunReport], word: LauncherWord = NO_WORD) -> FirstFailure | None:
    """The rank that failed first; None if none is known to have failed by itself.

    A signal that was not the launcher's own counts most, and memory that ran out; then a rank's own error; then that
    it has recorded no end, where the one that had come least far has most likely failed, for the others wait for it.
    Ranks that lost their peer, or were interrupted, follow others.

    Args:
        reports: Of each rank that has left one.
        word: What the launcher has told.

    >>> from forgather_mem.telemetry.report import Training
    >>> errors = "RuntimeError: Connection closed by peer", "ValueError: no such row"
    >>> ranks = [Training(rank=rank, end="exception", error=error) for rank, error in enumerate(errors)]
    >>> first_failure([RunReport(run=run) for run in ranks]).rank
    1
    """
    if word.asked is not None:
        return _behind(reports, word.asked)
    known = {report.run.rank: report for report in reports}
    found = (_suspect(rank, known.get(rank), word) for rank in sorted({*known, *word.exits}))
    first, *others = sorted(suspect for suspect in found if suspect is not None) or (None,)
    if first is None:
        return None
    alike = [one for one in others if one[0] == first[0]]
    equal = tuple(rank for *key, rank, _ in alike if tuple(key) == first[:3])
    if len(equal) + 1 == len(reports) > 1:  # all at once, as when the machine goes down
        return None
    return replace(first[-1], or_ranks=equal, sure=not alike or alike[0][1] > first[1])


def _suspect(rank: int, report: RunReport | None, word: LauncherWord) -> _Suspect | None:
    run = Training() if report is None else report.run
    seen_code, time_s = word.exits.get(rank, (None, math.inf))
    code, number = (seen_code, None) if seen_code is None or seen_code > 0 else (None, -seen_code)
    late = seen_code is not None and time_s > min(when for _, when in word.exits.values()) + _TOGETHER_S
    if run.end == "oom":
        likely, how = 0, "oom"
    elif run.end == "interrupted" or (run.error is not None and _LOST_PEER.match(run.error)):
        return None
    elif run.end == "exception":
        likely, how = (1 if run.error else 3), "exception"
    elif late or number == signal.SIGTERM:
        return None
    elif number is not None:  # who waits for another in vain is aborted, too
        likely, how = (2 if number == signal.SIGABRT else 0), "killed"
    elif code is not None:
        likely, how = 1, "exited"
    elif report is not None and report.killed is not None:
        likely, how = (0 if was_out_of_memory(report.killed) else 2), "no end"
    else:
        return None
    step, phase = _last_sign(report)
    what = FirstFailure(rank=rank, how=how, step=step, phase=phase, signal=number, exit_code=code, error=run.error)
    return likely, time_s, _position(step, phase), rank, what


def _behind(reports: Sequence[RunReport], asked: int) -> FirstFailure | None:
    """Of ranks that were asked to end and could not answer, the one for which the others waited; None without one."""
    silent = sorted((_position(*_last_sign(one)), one.run.rank, *_last_sign(one)) for one in reports if one.killed)
    if not silent or len(reports) == 1 or (len(silent) > 1 and silent[0][0] == silent[1][0]):
        return None
    _, rank, step, phase = silent[0]
    return FirstFailure(rank=rank, how="behind", step=step, phase=phase, signal=asked, sure=False)


def _last_sign(report: RunReport | None) -> tuple[int, str]:
    """Step and phase; of a rank that recorded its end without them the steps that it had done."""
    if report is None:
        return 0, "other"
    told = report.killed or report.oom
    return (told.step, told.phase) if told is not None else (report.steps, "other")


def _position(step: int, phase: str) -> tuple[int, int]:
    return step, PHASES.index(phase) if phase in STEP_PHASES else len(PHASES)


def first_failure_lines(report: RunReport, first: FirstFailure, width: int) -> list[str]:
    """Which rank failed first, how, where it was, and how the others ended."""
    ranks = (first.rank, *first.or_ranks)
    named = ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
    who = f"RANK {named} OF {report.run.world_size}" if len(ranks) == 1 else f"ONE OF RANKS {named}"
    at = f"at {format_time(first.step, first.phase)}"
    if first.how == "exception" and first.step:
        at = f"after {first.step:,} step{'s' * (first.step != 1)}"
    elif first.phase == "other":
        at = f"after step {first.step:,}" if first.step else "before its first step"
    if first.how == "behind":
        text = f"{who} WAS BEHIND the others, {at}, when all were asked to end"
    else:
        text = f"{who} {'' if first.sure else 'MOST LIKELY '}FAILED FIRST, {at}"
        cause = first.error or (f"exit code {first.exit_code}" if first.exit_code else "")
        if first.signal and report.killed is None:  # else it is told below
            cause = signal_name(first.signal)
        text += f": {cause}" if cause else ""
    ends = Counter(row.end for row in report.ranks or () if row.rank != first.rank)
    told = ", ".join(f"{num:,} {_OTHERS.get(end or '', end or 'without an end')}" for end, num in ends.most_common())
    lines = textwrap.wrap(f"{text}.", width, subsequent_indent="  ", max_lines=3, placeholder=" ...")
    return [*lines, *textwrap.wrap(f"  The others: {told}.", width, subsequent_indent="    ")] if told else lines
