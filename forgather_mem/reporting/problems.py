"""What went wrong in a run: a leak, memory that ran out, or a kill, as the first lines of a report's text."""

from __future__ import annotations

import os
import re
import shlex
import signal as signals
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from forgather_mem.reporting.plausible import each_bytes
from forgather_mem.reporting.table import WHOSE, format_place, format_time
from forgather_mem.telemetry.report import HostMemory, KilledReport, LeakReport, LeakSuspect, OomReport, RunReport
from forgather_mem.units import GIB, MIB, format_bytes, format_duration, format_pace

# After which Python's faulthandler, where it is on, shows the line
CRASHES = (signals.SIGSEGV, signals.SIGBUS, signals.SIGFPE, signals.SIGILL, signals.SIGABRT)
PLANNED_PHASES = ("forward", "backward", "optimizer", "evaluate")  # phases that a plan has


@dataclass(frozen=True, slots=True)
class ProblemLimits:
    """When something is told of what went wrong.

    Attributes:
        full_frac: Of the limit: from here on a SIGKILL without a kernel count was most likely the kernel's.
        others_bytes: What other processes of the group hold; less is not told.
        silence_s: From the last record to the end; less is not told.
        advice: Of what the program itself has advised.
    """

    full_frac: float = 0.9
    others_bytes: int = 100 * MIB
    silence_s: float = 5.0
    advice: int = 4


_LIMITS = ProblemLimits()


def leak_lines(report: RunReport, width: int) -> list[str]:
    """What grows, how fast, who holds it, and what to do: of the first suspect in full, of the others in a line."""
    leak, where = report.leak, what_grows(report)
    grow = (leak.grows or "grows").split()[-1]
    leaking = [str(row.rank) for row in report.ranks or () if row.leak == "leak"]
    if 0 < len(leaking) < report.run.world_size:
        where += f" of rank {', '.join(leaking[:8])}"
    elif report.run.worker and report.ranks is None:
        where += f" of {report.run.worker}"
    first = f"LEAK   {where} {grow} {format_bytes(leak.bytes_per_step * leak.per_steps)} {leak.per}"
    first += f", since step {leak.since_step:,}"
    if leak.full_at_step is not None:
        first += f", full near step {leak.full_at_step:,} at its last pace"
    sure = f"low (only {report.steps:,} steps seen)" if leak.sure == "not yet" else leak.sure.replace("yes", "high")
    beside = f" {leak.why}." if leak.why else ""
    lines = textwrap.wrap(f"{first}. Confidence: {sure}.{beside}", width, subsequent_indent=" " * 7)
    if not leak.suspects:
        if leak.where == "host":
            lines.append("  held by   not looked for: the run ended first; a longer run names it")
        return lines
    # Of what runs still, or was killed, what came since the last look is an estimate
    about = "about " * (not report.host.allocated_end_bytes and report.run.end in (None, "killed", "interrupted"))
    lines += ["", *_suspect_lines(leak.suspects[0], width, leak, about)]
    if len(leak.suspects) > 1:
        others = []
        for one in leak.suspects[1:]:
            rate = f"{format_bytes(one.bytes_per_step * leak.per_steps)} {leak.per}"
            others.append(", ".join(filter(None, (one.holder, rate, one.allocated_at))))
        lines += textwrap.wrap(f"  also      {'; '.join(others)}", width, subsequent_indent=" " * 12)
    return [*lines, ""]


def no_leak_sentence(report: RunReport) -> str:
    """What is known of leaks where none was found: silence would be read as "no leak"; "" if nobody has looked."""
    leak, steps = report.leak, report.steps
    if leak.verdict == "no leak" and not leak.undecided:
        beside = f"; {leak.why}" if leak.why else ""
        return f"No leak (under {format_bytes(leak.bytes_per_step_high)} a step over {steps:,} steps){beside}."
    if leak.verdict == "leak" or report.oom or not steps or not (leak.judged or leak.why or report.killed):
        return ""
    told = [leak.why] if leak.undecided and leak.why else []
    if steps < leak.judged_steps and (leak.undecided == "early" or not leak.why):
        told.append(f"no verdict on leaks before about {leak.judged_steps:,} steps")
    if text := "; ".join(told):
        return f"{text[0].upper()}{text[1:]}."
    too_few = f"of {steps:,} steps too few were read, or memory has only begun to rise"
    ended = "the process ended before one was made"
    return f"No verdict on leaks: {leak.why or (too_few if leak.judged else ended)}."


def what_grows(report: RunReport) -> str:
    """The kind of memory that the leak is in."""
    return report.leak.grows.rpartition(" ")[0] or _device_place(report)


def oom_lines(report: RunReport, oom: OomReport, width: int) -> list[str]:
    """Where memory ran out, why at that moment, what was in it, and what would have fitted."""
    at = format_time(oom.step, oom.phase) if oom.step else oom.phase
    at = f"after step {oom.step:,}, between steps" if oom.step and at == f"step {report.steps:,}" else at
    in_layer = f", in {oom.layer}" if oom.layer else ""
    device = oom.limit if oom.limit and oom.limit.startswith("GPU") else _device_place(report)
    place = device if oom.where == "device" else "host"
    if report.run.world_size > 1:
        place += f", rank {oom.rank}"
    cause = ": a leak" if (oom.why_now or "").startswith("a leak") else ""
    head = f"OUT OF MEMORY   {place}, {at}{in_layer}{cause}"
    lines = textwrap.wrap(head, width, subsequent_indent=" " * 16, break_on_hyphens=False)
    of_place = report.host.limit_bytes if oom.where == "host" else sum(one.total_bytes for one in report.device[:1])
    limit_bytes = oom.limit_bytes or of_place
    of = f" of {format_bytes(limit_bytes)}{_whose(oom)}" if limit_bytes else ""
    wanted = [f"wanted {format_bytes(oom.requested_bytes)}"] if oom.requested_bytes is not None else []
    if oom.free_bytes is not None:
        is_pythons = oom.kind == "MemoryError" and not wanted  # which tells no size
        wanted.append(f"{'wanted more than was free,' if is_pythons else 'free'} {format_bytes(oom.free_bytes)}{of}")
    elif wanted and of:
        wanted.append(f"more than was free{of}")
    if wanted:
        text = ", ".join(wanted)
        lines += _indented(f"{text[0].upper()}{text[1:]}.", width)
    if oom.why_now:
        lines += _indented(f"Why now: {oom.why_now}", width, hanging=9)
    lines += _indented(" ".join(f"{reason}." for reason in oom.not_because), width)
    # What the error freed on its way is known as far as the limit shows it
    lines += _in_use_lines(oom.in_use, width, of_least=oom.where == "host" and oom.free_bytes is None)
    lines += _advice_lines(report, limit_bytes, oom.fit, width)
    if oom.no_help:
        lines += _indented(f"No help here: {oom.no_help}", width, hanging=2)
    if oom.fit is None and oom.phase in PLANNED_PHASES and limit_bytes and report.run.script:  # nobody has planned it
        words = ["--card", format_bytes(limit_bytes).replace(" ", ""), report.run.script, *report.run.argv]
        command = f"forgather-mem plan {shlex.join(words)}"
        of = "your trainer" if any(one.startswith("trainer.") for one in report.run.settings) else "a one-step function"
        how = f"forgather_mem.plan(...) of {of}, in a cell" if script_name(report) == "notebook" else command
        lines += _indented(f"What would fit: {how}", width, hanging=2)
    return lines


def killed_lines(report: RunReport, killed: KilledReport, width: int) -> list[str]:
    """Who ended the run, its position, what was in memory, and what had grown."""
    if was_interrupted(killed):
        # Of a training that closed itself, how many steps were over
        at = f" at {format_time(killed.step, killed.phase)}" if killed.phase != "other" else ""
        steps = f" after {killed.step:,} whole step{'s' * (killed.step != 1)}" if killed.step and not at else ""
        return [f"INTERRUPTED (Ctrl-C){at or steps}."]
    text = _killer(killed, report.host)
    if report.first_failure is None and (killed.step or killed.phase != "other"):
        at = format_time(killed.step, killed.phase)
        silent_s = killed.silent_s or 0.0
        before = f", {format_duration(silent_s)} before the end" if silent_s >= _LIMITS.silence_s else ""
        text = f"{text} Last sign of life: {'training ended after ' * killed.has_trained}{at}{before}."
    lines = textwrap.wrap(text, width, subsequent_indent="  ")
    if killed.signal not in (None, signals.SIGKILL):  # it crashed, or somebody asked it to end
        return lines
    lines += _indented(_at_the_end(report, killed), width)
    lines += _indented(f"Why now: {killed.why_now}", width, hanging=9) if killed.why_now else []
    lines += _in_use_lines(killed.in_use, width)
    # Of what is named the process's pace may tell more
    lines += [] if killed.why_now and report.advice else _indented(_growth(killed), width)
    leak = report.leak
    if not was_killed_for_memory(killed, report.host):  # then a leak is no cause, and stands by itself
        return lines
    if leak.verdict == "leak" and leak.suspects:
        lines += _cause_lines(leak, width)
    tries = [suspect.cure for suspect in leak.suspects[:1] if suspect.cure]
    if not tries and (killed.workers_bytes_per_step or 0) > max(0, killed.process_bytes_per_step or 0):
        cause = "Cause: the workers keep what they load, or touch Python objects and so copy the pages they are on."
        lines += _indented(cause, width, hanging=2)
        tries = ["rows as one array or Arrow table, and nothing kept in the workers"]
    basis = killed.fit or ("planned" if any(advice.predicted_bytes for advice in report.advice) else None)
    tries += [advice.text for advice in report.advice[:1] if basis is None]
    if tries:
        lines += _indented(f"Try: {'; '.join(tries)}.", width, hanging=2)
    has_more = basis and (report.advice or not tries)
    return [*lines, *(_advice_lines(report, report.host.limit_bytes, basis, width) if has_more else ())]


def _in_use_lines(in_use: Mapping[str, int], width: int, of_least: bool = False) -> Sequence[str]:
    sizes = sorted(in_use.items(), key=lambda part: (part[0] == "other", -part[1]))
    total = sum(in_use.values())
    unit, decimals = (GIB, 1) if total >= 4 * GIB else (MIB, 0)
    parts = [f"{part} {size / unit:,.{decimals}f}" for part, size in sizes if size >= unit * 0.5 / 10**decimals]
    whole = f"{total / unit:,.{decimals}f} {'GiB' if unit == GIB else 'MiB'}"
    told, further = f"  In use {'at least ' * of_least}{whole}: {', '.join(parts)}", " " * 19
    return textwrap.wrap(told, width, subsequent_indent=further, break_on_hyphens=False) if in_use else []


def _at_the_end(report: RunReport, killed: KilledReport) -> str:
    """What the process, its workers and others held; "" where that is not known."""
    process, workers = killed.process_bytes, killed.workers_bytes
    if process is None:
        return ""
    ours = process + (workers or 0) + (killed.others_bytes or 0)
    total = max(killed.used_bytes or 0, ours)
    where = "in the whole container" if report.host.limit_kind == "cgroup" else "on the whole machine"
    of_others = f" {where}" if total - ours >= _LIMITS.others_bytes else ""
    is_full = total >= _LIMITS.full_frac * report.host.limit_bytes or not was_killed_for_memory(killed, report.host)
    at = "At the end" if is_full else "At the last reading"
    sizes = f"{at} {total / GIB:,.1f} GiB{of_others}: this process {process / GIB:,.1f}"
    if report.host.rss_peak_bytes - process >= _LIMITS.others_bytes and not is_full:
        sizes += f" (highest {report.host.rss_peak_bytes / GIB:,.1f})"
    if total > report.host.limit_bytes > 0 and killed.file_bytes:
        sizes += f" ({killed.file_bytes / GIB:,.1f} of it in pages of files, which the limit may not count)"
    if workers is not None:
        count = f"{killed.num_workers} " if killed.num_workers else ""
        sizes += f", {count}data workers {workers / GIB:,.1f} (counted once)"
    if (killed.others_bytes or 0) >= _LIMITS.others_bytes:
        sizes += f", other children {(killed.others_bytes or 0) / GIB:,.1f}"
    return sizes + "."


def was_out_of_memory(killed: KilledReport) -> bool:
    """Whether the kernel has counted an out-of-memory kill."""
    before, after = killed.oom_kill_before, killed.oom_kill_after
    return before is not None and after is not None and after > before


def was_interrupted(killed: KilledReport) -> bool:
    """Whether somebody has pressed Ctrl-C."""
    return killed.signal == signals.SIGINT and not was_out_of_memory(killed)


def was_killed_for_memory(killed: KilledReport, host: HostMemory) -> bool:
    """Whether the kernel has, or most likely has, ended it for memory."""
    before, after, used_bytes = killed.oom_kill_before, killed.oom_kill_after, killed.used_bytes
    if None not in (before, after):
        return was_out_of_memory(killed)
    limit_bytes = host.limit_bytes if host.limit_kind in WHOSE else 0
    return killed.signal == signals.SIGKILL and (used_bytes or 0) >= _LIMITS.full_frac * limit_bytes > 0


def signal_name(number: int) -> str:
    """The usual name of a signal.

    >>> signal_name(9), signal_name(99)
    ('SIGKILL', 'signal 99')
    """
    return signals.Signals(number).name if number in set(signals.Signals) else f"signal {number}"


def _killer(killed: KilledReport, host: HostMemory) -> str:
    before, after, number = killed.oom_kill_before, killed.oom_kill_after, killed.signal
    limit = f", {format_bytes(host.limit_bytes)}," if host.limit_kind in WHOSE else ""  # no other one kills
    whose = ("the container's memory limit" if host.limit_kind == "cgroup" else "the machine's memory") + limit
    if was_out_of_memory(killed):
        if number is None:  # its end was not observed
            return f"MOST LIKELY KILLED BY THE KERNEL for memory (oom_kill {before} -> {after}): {whose} was reached."
        return f"KILLED BY THE KERNEL: {whose} was reached (oom_kill {before} -> {after})."
    if number is None:
        return "ENDED UNEXPECTEDLY: killed, crashed, or the machine went down."
    name = signal_name(number)
    if number != signals.SIGKILL:
        hint = " With PYTHONFAULTHANDLER=1 Python shows the line where it crashed." if number in CRASHES else ""
        return f"ENDED BY {name}, signal {number} ({(signals.strsignal(number) or 'unknown').lower()}).{hint}"
    if before is not None and after is not None:
        return f"KILLED BY {name}, but not for memory: the kernel counted no out-of-memory kill (oom_kill {after})."
    if was_killed_for_memory(killed, host):
        return f"KILLED BY {name}, most likely by the kernel: {whose} was nearly reached."
    return f"KILLED BY {name}; the sender is not known."


def _growth(killed: KilledReport) -> str:
    slopes = [("workers", killed.workers_bytes_per_step), ("this process", killed.process_bytes_per_step)]
    grown = [f"{who} {format_bytes(slope)} a step" for who, slope in slopes if slope is not None and slope > 0]
    flat = [who for who, slope in slopes if slope is not None and slope <= 0]
    if grown:
        since = f" since step {killed.since_step:,}" if killed.since_step is not None else ""
        return f"Growth: {', '.join(grown)}{since}{f'; {flat[0]} flat' if flat else ''}."
    return f"No growth from step to step ({' and '.join(flat)} flat)." if flat else ""


def _cause_lines(leak: LeakReport, width: int) -> Iterator[str]:
    suspect = leak.suspects[0]
    sure = "" if leak.sure == "yes" else f" ({leak.sure})"
    if suspect.kind == "workers":
        cause = f"the workers keep {format_bytes(suspect.bytes_per_step)} more a step, all together:"
    elif leak.where == "workers":
        cause = f"workers copy the pages of a Python {suspect.type} that they only read:"
    else:
        cause = f"this grows by {format_bytes(suspect.bytes_per_step)} a step:"
    count = f"about {suspect.count:,} objects" if suspect.count else ""
    details = [detail for detail in (suspect.held_by, count, suspect.allocated_at) if detail]
    yield from _indented(f"Cause{sure}: {cause}", width, hanging=2)
    yield from textwrap.wrap(", ".join(details) + ".", width, initial_indent="    ", subsequent_indent="    ")


def _suspect_lines(suspect: LeakSuspect, width: int, leak: LeakReport, about: str = "") -> Iterator[str]:
    library = " (library code, not yours)" if suspect.whose == "library" else ""
    held = [suspect.type]
    if suspect.count_per_step:
        held.append(format_pace(suspect.count_per_step * leak.per_steps, " item", leak.per))
    if suspect.count:
        held.append(f"{about}{suspect.count:,} items")
    if suspect.bytes:
        held.append(f"{about * (not suspect.count)}{format_bytes(suspect.bytes)}")
    each, piece = each_bytes(suspect), suspect.each
    of_all = "on average " if piece.startswith("e.g. ") else ""
    size = re.sub(r"(?<=\d{3})\.\d", "", f", {of_all}{format_bytes(each)}") if each and piece else ""  # a quotient
    rows = (
        ("held by", f"{suspect.holder:<25} {', '.join(held)}"),
        (f"{suspect.line_is} at", f"{suspect.allocated_at}{library}" if suspect.allocated_at else ""),
        ("", suspect.source_line.strip()),
        ("each is", f"{piece}{size}" if piece else ""),
        ("try", suspect.cure or ""),
    )
    for label, text in rows:
        if text:
            wrapped = textwrap.wrap(text, width - 12, max_lines=2, placeholder=" ...") or [""]
            yield f"  {label:<10}{wrapped[0]}"
            yield from (" " * 12 + line for line in wrapped[1:])


def _advice_lines(report: RunReport, limit_bytes: int, basis: str | None, width: int) -> Iterator[str]:
    """Under one heading what was planned to fit, under another what may help without a plan."""
    heading = ""
    in_order = sorted(report.advice[: _LIMITS.advice], key=lambda advice: advice.predicted_bytes is None)
    is_planned = (basis or "").startswith("planned")
    if basis and is_planned and not any(advice.predicted_bytes is not None for advice in in_order):
        is_planned, basis = False, f"nothing that was planned is sure to fit{basis.removeprefix('planned')}"
    if not in_order and basis:
        yield from textwrap.wrap(f"NO REMEDY KNOWN  ({basis})", width, subsequent_indent="  ")
    for at, advice in enumerate(in_order, 1):
        predicted, notes = advice.predicted_bytes, [advice.note or ""]
        if predicted is not None:
            notes.insert(0, f"peak {format_bytes(predicted)}, leaves {format_bytes(max(0, limit_bytes - predicted))}")
        title = "WOULD HAVE FIT" if predicted is not None else "MAY HELP"
        if title != heading:
            heading = title
            of = basis or "not planned"
            if is_planned is (predicted is None):
                of = "not planned" if is_planned else "by what was in use"
            yield from textwrap.wrap(f"{title}  ({of})", width, subsequent_indent="  ")
        text, note = advice.text, "; ".join(filter(None, notes))
        room = width - len(note) - len(f"  {at}  ") - 3
        if len(text) <= room:
            yield f"  {at}  {text:<{room}}   {note}".rstrip()
        else:
            yield from textwrap.wrap(f"{text}   {note}", width, initial_indent=f"  {at}  ", subsequent_indent=" " * 5)


def script_name(report: RunReport) -> str:
    """What was run, in a word: the script without its folder, or the package of `python -m package`."""
    folder, name = os.path.split(report.run.script)
    if name == "__main__.py":  # python -m package
        name = os.path.basename(folder)
    return "notebook" if name == "ipykernel_launcher.py" else name or "training"


def _whose(oom: OomReport) -> str:
    """The source of the limit, if the host has several."""
    limit = oom.limit if oom.where == "host" else None
    return f" ({limit.replace(' (', ', ').rstrip(')')})" if limit else ""


def _device_place(report: RunReport) -> str:
    return format_place(report.device[0].where if report.device else "gpu0")


def _indented(text: str, width: int, hanging: int = 0) -> Sequence[str]:
    """The text indented by two columns, further lines by `hanging` more, at most three lines.

    What is too long loses whole sentences; the first is cut.
    """
    while True:
        lines = textwrap.wrap(
            text,
            width,
            initial_indent="  ",
            subsequent_indent=" " * (2 + hanging),
            break_on_hyphens=False,
            max_lines=3,
            placeholder=" ...",
        )
        shorter, end, _ = text[:-1].rpartition(". ")
        if not end or not lines[-1].endswith(" ..."):
            return lines
        text = f"{shorter}."
