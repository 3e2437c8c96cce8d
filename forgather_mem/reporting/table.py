"""A report's sizes as a small table: at the start, at the end, and the peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from forgather_mem.telemetry.report import THERE_BEFORE, Peak, RunReport
from forgather_mem.units import GIB, format_bytes, format_duration, format_share

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, header, rows

MAX_DEVICES = 8  # of a process; the JSON has all
RISE = "rise in a step"
"""Of resident memory, above what is held after the step."""
OTHER = "other since the start"
"""The rest of what came later than `THERE_BEFORE`."""
WHOSE = {"cgroup": "container", "host": "machine"}
"""Whom a limit is of that processes share; any other is of one process, and has its own name."""


class MemoryRow(NamedTuple):
    """One kind of memory: `at` is when its peak was, `whose` the source of the limit, if there is one to show.

    `other_limit` is one in words that counts something else than this.
    """

    label: str
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    at: str
    limit_bytes: int
    whose: str
    other_limit: str = ""


def format_place(where: str) -> str:
    """Host or device in the usual notation.

    >>> format_place("gpu0"), format_place("host")
    ('GPU 0', 'host')
    """
    return f"GPU {where[3:]}" if where.startswith("gpu") else where


def place_of_parts(report: RunReport) -> str:
    """Whose parts the breakdown has: those of all devices of a process; of several ranks, the worst one's.

    >>> place_of_parts(RunReport())
    'host'
    """
    if report.ranks is None and len(report.device) > 1:
        return f"{len(report.device)} GPUs"
    return format_place(report.device[0].where) if report.device else "host"


def format_time(step: int, phase: str) -> str:
    """When something was in a run.

    >>> format_time(1998, "backward"), format_time(3, "other")
    ('step 1,998, backward', 'step 3')
    >>> format_time(0, "startup")
    'startup'
    """
    if phase in ("startup", "evaluate", "generate") and not step:
        return phase
    return f"step {step:,}" + (f", {phase}" if phase and phase != "other" else "")


def format_phase(peak: Peak) -> str:
    """A phase, and since when its peak is not known."""
    hidden = "" if peak.not_read_since is None else f" (since step {peak.not_read_since:,} hidden by a higher peak)"
    return ("not known" if peak.phase == "other" else peak.phase) + hidden


def places(report: RunReport) -> Iterator[MemoryRow]:
    """Each kind of memory of a report; with several ranks, the device that was fullest."""
    times = {peak.where: format_time(peak.step, peak.phase) for peak in reversed(report.peaks)}
    # Of a loop that is heard from the optimizer of its first step on
    times = {where: time.replace("step 1, startup", "startup or step 1") for where, time in times.items()}
    for number, device in enumerate(report.device[:MAX_DEVICES] if report.ranks is None else report.device[:1]):
        label, at = format_place(device.where), times.get(device.where, "")
        start, end, peak = device.allocated_start_bytes, device.allocated_end_bytes, device.peak_allocated_bytes
        yield MemoryRow(f"{label} used", start, end, peak, at, device.total_bytes, "")
        if number:  # of the others one line is enough
            continue
        start, end, peak = device.reserved_start_bytes, device.reserved_end_bytes, device.peak_reserved_bytes
        yield MemoryRow(f"{label} reserved", start, end, peak, "", 0, "")
    host = report.host
    if host.rss_peak_bytes:
        at = times.get("host", "")
        sizes = host.rss_start_bytes, host.rss_end_bytes, host.rss_peak_bytes
        if host.limit_kind in WHOSE or not host.limit_bytes:
            whose = WHOSE.get(host.limit_kind, "") if host.limit_bytes else ""
            yield MemoryRow("host", *sizes, at, host.limit_bytes, whose)
        else:
            what = "data, without mapped files" if host.limit_kind == "RLIMIT_DATA" else "addresses"
            used = f", {format_share(host.limit_used_frac)} used at the end" if host.limit_used_frac else ""
            told = f"{host.limit_kind} ({what}): {format_bytes(host.limit_bytes)}{used}"
            yield MemoryRow("host", *sizes, at, 0, "", told)


def peaks_sentence(report: RunReport) -> str:
    """The peak of each kind of memory, its limit, and when it was; "" without any."""
    rows = list(places(report))
    decimals = _decimals(rows)
    peaks = [
        f"{row.label.removesuffix(' used')} {row.peak_bytes / GIB:,.{decimals}f}"
        f"{f' of {row.limit_bytes / GIB:,.1f}' if row.limit_bytes else ''} GiB"
        f"{f' ({row.whose})' if row.whose else ''} at {row.at}{f', {row.other_limit}' if row.other_limit else ''}"
        for row in rows
        if row.at
    ]
    return f"Peak {'; '.join(peaks)}.".replace("Peak host", "Peak") if peaks else ""


def _decimals(rows: Sequence[MemoryRow]) -> int:
    return 1 if any(row.peak_bytes >= 10 * GIB for row in rows) else 2


def startup_sentences(report: RunReport) -> Iterator[str]:
    """How long the process had run before its first step, and its highest memory until then."""
    if not report.run.startup_s:
        return
    found = {peak.where: peak for peak in reversed(report.peaks) if peak.phase == "startup"}
    sizes = "".join(f", {format_place(where)} {format_bytes(peak.bytes)}" for where, peak in sorted(found.items()))
    # A loop that is only observed is heard from the optimizer of that step on
    yield f"{format_duration(report.run.startup_s)} up to the first step{', peak' if sizes else ''}{sizes.lstrip(',')}"


def table_lines(report: RunReport) -> list[str]:
    """The table, in GiB."""
    rows = list(places(report))
    if not rows:
        return ["MEMORY  nothing was measured"]
    decimals = _decimals(rows)
    lines = [f"{'MEMORY, GiB':<16}{'start':>6}{'end':>6}{'peak':>6}  {'at':<22}{'limit':>6}"]
    for row in rows:
        numbers = (size / GIB for size in (row.start_bytes, row.end_bytes, row.peak_bytes))
        sizes = "".join(f"{number:>6,.{decimals if number < 999 else 0}f}" for number in numbers)
        is_last = report.run.end in ("killed", "interrupted") and not report.host.allocated_end_bytes
        if not report.steps or is_last:  # it is what was read last
            sizes = f"{sizes[:6]}{'-':>6}{sizes[12:]}"
        limit = f"{row.limit_bytes / GIB:>6,.1f} {row.whose}" if row.limit_bytes else ""
        lines.append(f"  {row.label:<14}{sizes}  {row.at:<22}{limit}".rstrip())
        lines += [f"  {row.other_limit}"] * bool(row.other_limit)
    if report.ranks is None and len(report.device) > MAX_DEVICES:
        lines.append(f"  and {len(report.device) - MAX_DEVICES} more devices: see the JSON")
    return lines


def part_sizes(report: RunReport) -> dict[str, int]:
    """The parts of the peak, each at its own peak, by the names that people read.

    On the host activations are what was counted of a forward pass, as in a comparison: what resident memory rises by in
    a step is more, and has another name where nothing was counted.
    """
    parts, counted = report.breakdown.sizes(), report.host.activations_bytes
    if report.device:
        return parts
    rises, rest = parts.pop("activations"), parts.pop("other")
    rest += max(-rest, rises - counted) if counted else 0  # later batches may be larger
    before = min(rest, max(0, report.host.rss_start_bytes - parts["parameters"]))
    parts |= {"activations of modules (early steps)": counted} if counted else {RISE: rises}
    return parts | {THERE_BEFORE: before, OTHER: rest - before}


def parts_sentences(report: RunReport) -> Iterator[str]:
    """The parts of the peak."""
    if not report.breakdown.parameters:
        return
    parts = part_sizes(report)
    cached = parts.pop("cached")
    sizes = sorted(((size, part) for part, size in parts.items() if size), reverse=True)
    several = f", on {place_of_parts(report)}" if report.ranks is None and len(report.device) > 1 else ""
    text = ", ".join(f"{format_bytes(size)} {part}" for size, part in sizes) + f"; each at its own peak{several}"
    yield text + (f"; cached at the end {format_bytes(cached)}" if cached else "")


def parts_table(report: RunReport) -> Table:
    """What the peak consisted of; no rows where that is not known, or where it is told what was in use instead."""
    rows = [(part, format_bytes(size)) for part, size in part_sizes(report).items() if size]
    title = f"What was in the memory of the {place_of_parts(report)}"
    return title, ("part", "at its peak"), rows if report.breakdown.parameters and report.oom is None else []


def ledger_table(report: RunReport) -> Table:
    """What each kind of our own actions freed and cost."""
    header = ("what", "calls", "time", "next steps longer by", "freed", "taken again", "objects found")
    rows = [
        (
            row.what,
            f"{row.calls:,}",
            *map(format_duration, (row.time_s, max(0.0, row.next_step_excess_s))),
            *map(format_bytes, (row.freed_bytes, row.retaken_bytes)),
            f"{row.objects:,}" if row.what == "collect" else "",
        )
        for row in report.ledger
    ]
    return "What our actions freed and cost", header, rows
