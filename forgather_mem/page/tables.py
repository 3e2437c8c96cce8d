"""A run in words and tables, as the page shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from forgather_mem.reporting import problems, table
from forgather_mem.reporting.text import is_plan, time_taken
from forgather_mem.telemetry.report import LeakReport, LeakSuspect, Planned, RunReport
from forgather_mem.units import format_bytes, format_duration, format_share

_MAX_ROWS = 40
BADGES = {
    "leak": "LEAK", "oom": "OUT OF MEMORY", "killed": "ENDED", "well": "NO LEAK", "unknown": "NOT JUDGED",
    "grows": "GROWS", "planned": "PLANNED",
}  # fmt: skip
_WIDE = 10_000  # no line is folded


def headline(report: RunReport) -> tuple[str, str, str]:
    """The kind of verdict, the verdict in a sentence, and what belongs to it."""
    leak, peaks, told = report.leak, _peaks(report), problems.no_leak_sentence(report)
    keeps = _leak_sentence(leak)
    if (planned := report.planned) is not None and is_plan(report):
        said = f"{format_bytes(planned.planned_bytes)} of tensors at the planned peak, in {planned.phase}."
        return "planned", said, "Nothing has been measured."
    if report.oom is not None:
        first, *rest = problems.oom_lines(report, report.oom, _WIDE)
        return "oom", *_in_sentences(_after_label(first), rest)
    if report.killed is not None:
        of_memory = problems.was_killed_for_memory(report.killed, report.host)
        first, *rest = [keeps] * (of_memory and keeps != "") + problems.killed_lines(report, report.killed, _WIDE)
        said, more = _in_sentences(first.removeprefix("ENDED "), rest or [peaks, keeps or told])  # the badge says so
        return "oom" if of_memory else "killed", said, more
    if leak.verdict == "leak":
        said = _after_label(problems.leak_lines(report, _WIDE)[0])
        return "leak", keeps or said, f"{said} {peaks}" if keeps else peaks
    if report.run.end not in ("finished", None):
        ended = {"exception": "Ended by an exception", "interrupted": "Ended early"}.get(report.run.end, report.run.end)
        at = f" at {report.run.error_line}" if report.run.error_line else ""
        return "killed", f"{ended}{at}{': ' + report.run.error if report.run.error else ''}.", f"{peaks} {told}".strip()
    if leak.undecided:
        why, _, more = told.partition(". ")  # the first sentence is the headline
        return "grows", f"{why.rstrip('.')}.", f"{more} {peaks}".strip()
    if not report.steps and report.host.rss_peak_bytes:
        return "unknown", f"No training step was seen; peak host {format_bytes(report.host.rss_peak_bytes)}.", told
    return "well" if leak.verdict == "no leak" else "unknown", peaks or told, told if peaks else ""


def in_short(report: RunReport) -> str:
    """Script, verdict and peak, for a list of runs."""
    peaks = (f"{it.label.removesuffix(' used')} {format_bytes(it.peak_bytes)}" for it in table.places(report) if it.at)
    return ", ".join([problems.script_name(report), BADGES[headline(report)[0]].lower(), *peaks])


def tables(report: RunReport) -> Iterator[table.Table]:
    """Title, header and rows of each table that has rows, the first of very many."""
    for title, header, rows in _tables(report):
        more = [(f"and {len(rows) - _MAX_ROWS:,} more: see report --json",)] if len(rows) > _MAX_ROWS else []
        if rows:
            yield title, header, [*rows[:_MAX_ROWS], *more]


def _tables(report: RunReport) -> Iterator[table.Table]:
    run = report.run
    holders = [_holder(holder) for holder in report.leak.suspects]
    yield "Who holds what grows", ("held by", "a step", "holds", "at", "the line", "each is", "try"), holders
    yield "Peaks", ("where", "size", "step", "phase"), [
        (
            table.format_place(peak.where) + ("" if peak.rank is None else f", rank {peak.rank}"),
            format_bytes(peak.bytes), f"{peak.step:,}", table.format_phase(peak),
        )
        for peak in report.peaks
    ]  # fmt: skip
    yield table.parts_table(report)
    yield "To change", ("what", "", "planned peak"), [
        (row.text, row.note or "", format_bytes(row.predicted_bytes) if row.predicted_bytes else "")
        for row in report.advice
    ]  # fmt: skip
    yield table.ledger_table(report)
    yield "Clean-up calls", ("what", "where", "whose", "calls", "time", "of the run", "freed"), [
        (
            row.what, f"{row.file}:{row.line}", row.whose, f"{row.calls:,}", format_duration(row.seconds),
            format_share(row.seconds / run.wall_s if run.wall_s else 0.0), format_bytes(row.freed_bytes),
        )
        for row in report.cleanup_calls
    ]  # fmt: skip
    yield "Ranks", ("rank", "end", "steps", "host peak", "GPU peak", "GPU reserved", "leak"), [
        (
            str(row.rank), row.end or "not known", f"{row.steps:,}",
            *map(format_bytes, (row.host_peak_bytes, row.device_peak_bytes, row.device_reserved_bytes)), row.leak,
        )
        for row in report.ranks or ()
    ]  # fmt: skip
    planned = report.planned
    yield _planned_phases(planned)
    yield "Planned and measured", ("part", "planned", "measured"), [
        (row.name, format_bytes(row.planned_bytes), format_bytes(row.measured_bytes))
        for row in (planned.parts if planned else ())
    ]  # fmt: skip
    yield "Switched off", ("what",), [(sentence,) for sentence in report.switched_off]
    facts = [] if is_plan(report) else _facts(report)
    yield "The run", ("", ""), [(name, text) for name, text in facts if text]


def _planned_phases(planned: Planned | None) -> table.Table:
    """What each part takes in each phase."""
    phases = planned.phases if planned else ()
    parts = dict.fromkeys(part for row in phases for part in row.parts)
    rows = [(part, *(format_bytes(row.parts.get(part, 0)) for row in phases)) for part in parts]
    if phases:
        rows.append(("all", *(format_bytes(row.bytes) for row in phases)))
    return "Planned, in each phase", ("part", *(row.phase for row in phases)), rows


def _holder(holder: LeakSuspect) -> Sequence[str]:
    holds = [f"{holder.count:,.0f} items"] if holder.count else []
    holds += [format_bytes(holder.bytes)] if holder.bytes else []
    line = holder.allocated_at or "", holder.source_line
    return holder.holder, format_bytes(holder.bytes_per_step), ", ".join(holds), *line, holder.each, holder.cure or ""


def _facts(report: RunReport) -> Iterable[tuple[str, str]]:
    run = report.run
    yield "command", " ".join([run.script, *run.argv])
    yield "ended", f"{run.end or 'not known'}" + (f", exit {run.exit_code}" if run.exit_code is not None else "")
    yield "took", time_taken(report)
    yield "versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())
    yield "folder", run.folder or ""
    yield "TensorBoard", run.event_folder or ""


def _leak_sentence(leak: LeakReport) -> str:
    """Who keeps what of a leak; "" where that is not known, or it is only read, as by data workers."""
    for holder in leak.suspects[:1] if leak.verdict == "leak" else ():
        if holder.held_by and (leak.where != "workers" or holder.kind == "workers"):
            each = f"{format_bytes(holder.bytes_per_step * leak.per_steps)} {leak.per}"
            made = f", {holder.line_is} at {holder.allocated_at}" if holder.allocated_at else ""
            return f"{holder.held_by} keeps {each}, since step {leak.since_step:,}{made}."
    return ""


def _peaks(report: RunReport) -> str:
    peaks, workers = table.peaks_sentence(report), report.host.workers_peak_bytes
    beside = f", and {format_bytes(workers)} in data workers at their own peak" if workers else ""
    return f"{peaks.rstrip('.')}{beside}." if peaks else ""


def _in_sentences(first: str, rest: Sequence[str]) -> tuple[str, str]:
    """The first line of what went wrong as a sentence, and the two lines below it."""
    return f"{first[:1].upper()}{first[1:].removesuffix('.')}.", " ".join(line.strip() for line in rest[:2]).strip()


def _after_label(line: str) -> str:
    return line.partition("   ")[2].strip()
