"""The report of a run, made from its summary, and its file; and that of a plan, which was not run.

Nothing here imports torch: a waiting parent writes reports too.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from forgather_mem.engine.summary import GaugeRange, RunFacts, RunSummary, is_spanned
from forgather_mem.errors import ForgatherMemError, ours
from forgather_mem.files import make_real_folder, read_regular, replace_file
from forgather_mem.formats.ring import files_by_rank
from forgather_mem.reporting.hints import hints_of
from forgather_mem.reporting.peaks import device_families, highest_of, report_peaks, span_of
from forgather_mem.reporting.plausible import plausible
from forgather_mem.reporting.table import WHOSE, ledger_table, parts_table
from forgather_mem.reporting.text import report_text
from forgather_mem.telemetry import report as schema
from forgather_mem.telemetry.records import FORETOLD
from forgather_mem.telemetry.report_schema import MAX_REPORT_BYTES, checked, keys_of, to_dict

FILE_NAME = "report.json"
_BUSY_PHASES = ("forward", "backward")


def build_report(summary: RunSummary) -> schema.RunReport:
    """The report of a run, finished or not; without readings its numbers are 0, and nothing is said about leaks.

    >>> report = build_report(RunSummary())
    >>> report.steps, report.leak.verdict
    (0, 'not enough data')
    """
    facts = summary.facts
    header = facts.header
    summary = summary if summary.spans or summary.steps or facts.end == "finished" else _as_begun(summary)
    wall_s = facts.wall_s or (time.time() - header.started_s if header.started_s else 0.0)
    peaks = tuple(report_peaks(summary))
    foretold = [finding for finding in summary.findings if finding.data["what"] == FORETOLD]
    clears = next((row for row in summary.told.ledger if row.what == "clear"), schema.LedgerRow(what="clear"))
    told = summary.told
    if facts.end is None and not told.leak.judged and ("leaks",) in summary.readings:
        told = replace(told, leak=replace(told.leak, why="the training has not ended"))
    report = replace(
        told,
        steps=summary.steps,
        run=_run(facts, wall_s, summary.latest.get("step/startup_s", 0.0)),
        host=_host(summary),
        device=tuple(_device(summary, family, index) for family, index in device_families(summary)),
        peaks=peaks,
        breakdown=_breakdown(summary),
        gc=schema.Collector(
            collections=int(summary.latest.get("gc/collections", 0)),
            pause_total_s=summary.latest.get("gc/pause_total_s", 0.0),
            pause_max_s=summary.latest.get("gc/pause_max_s", 0.0),
        ),
        cache=schema.CacheClears(clears=clears.calls, freed_bytes=clears.freed_bytes, time_s=clears.time_s),
        overhead=_overhead(summary, wall_s),
        switched_off=tuple(summary.switched_off),
        foretold=tuple(f"step {finding.step:,}: {finding.text}" for finding in foretold),
        planned=_planned(summary),
        hints=tuple(_hints(summary, peaks)),
    )
    return plausible(with_in_use(report))


def _hints(summary: RunSummary, peaks: tuple[schema.Peak, ...]) -> Iterable[str]:
    header = summary.facts.header
    stayed = schema.Peak(where="host", bytes=int(span_of(summary, "host/rss_bytes").highest), step=0, phase="other")
    unlike = () if summary.told.leak.verdict == "leak" else (*peaks, stayed)  # what grows to the end peaks there
    return hints_of(unlike, counts_passes=header.counts_passes, tick_s=header.tick_s) if header.is_observed else ()


def with_in_use(report: schema.RunReport) -> schema.RunReport:
    """The report in whose parts of the peak is what was in use when memory ran out: at first nothing else counts it."""
    oom, of = report.oom, report.breakdown
    if oom is None or (oom.where == "host") == bool(report.device):
        return report
    names = {part.name: part.name.removesuffix("_peak") for part in fields(of) if part.name not in ("cached", "other")}
    known = {name: max(getattr(of, name), oom.in_use.get(part, 0)) for name, part in names.items()}
    more = sum(known.values()) - sum(getattr(of, name) for name in known)
    return replace(report, breakdown=replace(of, **known, other=max(0, of.other - more)))


def verdict(report: schema.RunReport) -> tuple[str, dict[str, object]]:
    """The finding that closes a run: text and tables for TensorBoard's text page, the whole report for the log.

    The text lacks the line that says how to open that page.
    """
    text = report_text(replace(report, run=replace(report.run, event_folder=None)))
    tables = {title: [header, *rows] for title, header, rows in (parts_table(report), ledger_table(report)) if rows}
    return text, {"tables": tables, "report": to_dict(report)}


def write_report(report: schema.RunReport, folder: str | Path) -> Path:
    """Write the report as JSON into `folder`, created if needed; readers see either all of it or nothing.

    No part of the path may be a link: where the folder was reached through one, its real path is known.

    Returns:
        The file: `report.json` for a single process and for merged reports, else `report.rank{r}.json`.

    Raises:
        ValueError: for a number that JSON can't represent (NaN, infinity).
        OSError: if the folder can't be written, or has become a link.
    """
    text = json.dumps(to_dict(report), indent=1, allow_nan=False) + "\n"
    whole = report.ranks is not None or report.run.world_size == 1
    path = Path(folder) / (FILE_NAME if whole else f"report.rank{report.run.rank}.json")
    make_real_folder(path.parent)
    replace_file(path, text.encode(), through_links=False)
    return path


def rank_reports(folder: str | Path) -> dict[int, Path]:
    """The reports of single ranks in a run's folder."""
    return files_by_rank(folder, r"report\.rank(\d{1,6})\.json")


def planned_of(plan: Mapping[str, object]) -> schema.Planned | None:
    """What it said; None for what is no plan. The file may be anybody's.

    >>> row = {"step": 2, "phase": "backward", "bytes": 3, "parts": {"activations": 3}}
    >>> planned_of({"peak_bytes": 3, "phase": "backward", "phases": [row]}).phases[0].parts
    {'activations': 3}
    """
    rows = checked(tuple[schema.PlannedPhase, ...], plan.get("phases"))
    peak_bytes, phase = checked(int, plan.get("peak_bytes")), checked(str, plan.get("phase"))
    if not rows or peak_bytes is None or phase is None:
        return None
    of_phases = [[row for row in rows if row.phase == name] for name in dict.fromkeys(row.phase for row in rows)]
    highest = tuple(max(of_phase, key=lambda row: row.bytes) for of_phase in of_phases)
    return schema.Planned(planned_bytes=peak_bytes, phase=phase, phases=highest)


def report_of_plan(path: str | Path) -> schema.RunReport | None:
    """The first plan in a file, as the report of a training that has not been run; None without one.

    The file, which a person has named, is that of `plan --json`, or has what `Plan.to_dict` gives.

    Raises:
        ForgatherMemError: where it says why there is none.
    """
    try:
        answer = json.loads(read_regular(path, MAX_REPORT_BYTES, follow=True))
        if "refused" in answer:
            raise ForgatherMemError(f"{str(path)!r} is of no plan: {answer['refused']}")
        plan, *others = answer.get("plans", [answer])
        planned = planned_of(plan)
    except ours(OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None
    settings = checked(Mapping[str, str], answer.get("settings")) or {}  # type: ignore[type-abstract]
    rows = {f"batch.{name}": str(plan[name]) for name in ("rows", "length") if isinstance(plan.get(name), int)}
    of = schema.Training(script=checked(str, answer.get("script")) or "", settings={**settings, **rows}, end="finished")
    hint = f"only the first of its {len(others) + 1} plans is read; --set with one value plans another alone"
    return None if planned is None else schema.RunReport(run=of, planned=planned, hints=(hint,) * bool(others))


def _as_begun(summary: RunSummary) -> RunSummary:
    """That of a run that ended before its first step and record: what it began with was read."""
    begun, header = copy.copy(summary), summary.facts.header
    most = max((size for _, size in header.startup), default=0.0)
    begun.spans = {
        name: GaugeRange(size, size, max(size, most if name == "host/rss_bytes" else size), 0, "startup")
        for name, size in summary.started_with.items()
        if is_spanned(name)
    }
    if begun.spans and header.process_started_s:
        begun.latest = {"step/startup_s": header.started_s - header.process_started_s, **summary.latest}
    return begun


def _run(facts: RunFacts, wall_s: float, startup_s: float) -> schema.Training:
    header = facts.header
    names = keys_of(schema.Training)
    known = {name: getattr(part, name) for part in (header, facts) for name in names if hasattr(part, name)}
    host = header.host or None if header.world_size > 1 else None
    return schema.Training(**known | {"wall_s": wall_s, "startup_s": startup_s, "host": host})


def _host(summary: RunSummary) -> schema.HostMemory:
    limit_kind = summary.facts.header.limit_kind
    return schema.HostMemory(
        rss_start_bytes=int(_start(summary, "host/rss_bytes")),
        rss_end_bytes=int(span_of(summary, "host/rss_bytes").last),
        rss_peak_bytes=int(highest_of(summary, "host").highest),
        limit_bytes=summary.facts.header.limit_bytes,
        limit_kind=limit_kind,
        limit_used_frac=0.0 if limit_kind in WHOSE else summary.latest.get("host/limit_used_frac", 0.0),
        workers_peak_bytes=int(summary.highest("workers/pss_bytes") or 0),
        allocated_start_bytes=int(summary.started_with.get("host/allocated_bytes", 0)),
        allocated_end_bytes=summary.facts.allocated_end_bytes,
        gaps_start_bytes=int(summary.started_with.get("host/gaps_bytes", 0)),
        activations_bytes=int(summary.highest("tensors/activations_bytes") or 0),
    )


def _device(summary: RunSummary, family: str, index: int) -> schema.DeviceMemory:
    name, total_bytes = summary.facts.devices.get(index, ("", 0))
    allocated, reserved = span_of(summary, f"{family}/allocated_bytes"), span_of(summary, f"{family}/reserved_bytes")
    return schema.DeviceMemory(
        name=name, index=index, peak_allocated_bytes=int(highest_of(summary, family).highest),
        peak_reserved_bytes=int(reserved.highest), total_bytes=total_bytes,
        allocated_start_bytes=int(_start(summary, f"{family}/allocated_bytes")),
        allocated_end_bytes=int(allocated.last),
        reserved_start_bytes=int(_start(summary, f"{family}/reserved_bytes")), reserved_end_bytes=int(reserved.last),
    )  # fmt: skip


def _planned(summary: RunSummary) -> schema.Planned | None:
    header = summary.facts.header
    plan = None if header.plan is None else planned_of(header.plan)
    if plan is None:
        return None
    sizes = {name: size for name in schema.TENSORS if (size := summary.highest(f"tensors/{name}_bytes")) is not None}
    most = {name: max((row.parts.get(name, 0) for row in plan.phases), default=0) for name in sizes}
    parts = [schema.PlannedPart(name=name, planned_bytes=most[name], measured_bytes=int(sizes[name])) for name in sizes]
    on_device = int(highest_of(summary, "device", but="startup").highest)
    return replace(plan, measured_bytes=on_device or None, parts=tuple(parts))


def _breakdown(summary: RunSummary) -> schema.Breakdown:
    """The parts of the peak, each at its own maximum; they need not have been in memory at the same time.

    Activations, including the intermediates of both passes, are the maximum that the forward and backward passes of a
    step hold beyond the memory at its end, without the gradients. On the host freed memory stays resident: anonymous
    memory added since the first step, apart from the optimizer's state, is included, together with whatever Python and
    libraries have allocated since. Other is the rest of the peak, and on a device at least the rest of what is held
    between steps. With several devices it is of all of them; only the current one's activations are known, so those of
    others are in the rest.
    """
    parameters, gradients, optimizer = (int(summary.highest(f"tensors/{part}_bytes") or 0) for part in schema.TENSORS)
    on_device = "device/allocated_bytes" in summary.spans
    families = [family for family, _ in device_families(summary)]  # the model's parts are counted on all devices
    place = "device" if on_device else "host"
    peaks = [highest_of(summary, family, but="startup") for family in (families if on_device else ["host"])]
    before, least = summary.started_with.get("host/anon_bytes"), summary.least_anon_bytes
    # What the first steps have added beside the optimizer's state
    stays = 0.0 if on_device or before is None or least is None else max(0.0, least - before - optimizer)
    forward, backward = (summary.rises.get(f"phase/{place}/{phase}_peak_bytes", 0.0) for phase in _BUSY_PHASES)
    if summary.facts.header.micro_batches > 1:  # gradients of the earlier micro-batches are in memory
        forward -= gradients
    forward += max(0.0, stays - gradients)
    backward += stays - gradients
    activations = max(0, int(forward), int(backward)) if summary.rises else 0
    rest = sum(peak.highest for peak in peaks) - (parameters + gradients + optimizer) - activations
    cached = 0.0
    if on_device:
        between = sum(span_of(summary, f"{family}/allocated_bytes").last for family in families)
        rest = max(rest, between - parameters - optimizer)
        cached = sum(span_of(summary, f"{family}/reserved_bytes").last for family in families) - between
    return schema.Breakdown(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        activations_peak=activations,
        cached=max(0, int(cached)),
        other=max(0, int(rest)),
    )


def _overhead(summary: RunSummary, wall_s: float) -> schema.Overhead:
    """What watching costs in each step in steady state, and once; without the actions that free memory."""
    seconds = summary.self_s + summary.facts.header.setup_s
    steady_steps = summary.steady_steps if 2 * summary.steady_steps >= summary.steps else 0  # else not of all steps
    rarer = (one for one in summary.findings if one.kind == "backed_off")
    return schema.Overhead(
        seconds=seconds,
        share_of_run=seconds / wall_s if wall_s > 0 else 0.0,
        share_of_step=summary.steady_self_s / summary.steady_s if summary.steady_s > 0 else 0.0,
        step_s=summary.steady_self_s / steady_steps if steady_steps else 0.0,
        once_s=max(0.0, seconds - summary.steady_self_s / steady_steps * summary.steps) if steady_steps else seconds,
        once_bytes=summary.facts.header.setup_bytes,
        backed_off=tuple(schema.BackedOff(what=one.data["what"], text=one.text) for one in rarer),
    )


def _start(summary: RunSummary, name: str) -> float:
    """The value before the first step; if unknown, at the first record."""
    first = span_of(summary, name).first
    return summary.started_with.get(name, first) if first else first
