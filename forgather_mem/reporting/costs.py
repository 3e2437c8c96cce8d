"""Report sentences about the cost and benefit of collecting, clearing and watching."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forgather_mem.reporting.table import part_sizes, place_of_parts
from forgather_mem.telemetry.report import CleanupCall, Collector, LedgerRow, RunReport
from forgather_mem.units import MIB, format_bytes, format_duration, format_share

_ACTIONS = {"collect": "collection", "clear": "clear", "trim": "trim"}
_WITHOUT = {"collect": "`gc: null`", "clear": "`clear_cache: null`"}  # in a child of callbacks/memory.yaml


@dataclass(frozen=True, slots=True)
class CostThresholds:
    """From when on a cost is told.

    Attributes:
        share_s: From so long on a run's share of our own cost says something.
        kept_frac: Of what they freed: so much must stay free.
        least_objects, least_bytes: A call that gives less of both is not worth its time.
        dear_frac: Of the run's time: from so much on calls by other code are told, and pauses of Python's collector.
        as_planned_frac: Of the planned peak: a part that differs by less is as predicted.
    """

    share_s: float = 60.0
    kept_frac: float = 0.2
    least_objects: int = 1000
    least_bytes: int = MIB
    dear_frac: float = 0.01
    as_planned_frac: float = 0.01


_COSTS = CostThresholds()


def cleanup_sentences(report: RunReport) -> Iterator[str]:
    """Expensive calls of the script and its libraries, Python's collector, and our own actions."""
    wall_s = report.run.wall_s
    # Lines that exceeded their budget, most expensive first; our own calls are in the ledger
    least_s = _COSTS.dear_frac * wall_s
    rows = [row for row in report.cleanup_calls if row.whose != "us" and row.seconds > least_s > 0]
    dear = sorted(rows, key=lambda row: -row.seconds)
    yield from (_call(row, wall_s) for row in dear)
    pause_s = report.gc.pause_total_s
    told_s = sum(row.seconds for row in dear if row.what == "gc.collect")
    told_s += sum(row.time_s for row in report.ledger if row.what == "collect")
    if report.gc.collections and pause_s - told_s > least_s:
        yield _collector(report.gc, wall_s)
    yield from map(_given_back, report.ledger)


def parts_sentences(report: RunReport) -> Iterator[str]:
    """The parts of the peak."""
    if not report.breakdown.parameters:
        return
    parts = part_sizes(report)
    cached = parts.pop("cached")
    sizes = sorted(((size, part) for part, size in parts.items() if size), reverse=True)
    several = f", on {place_of_parts(report)}" if report.ranks is None and len(report.device) > 1 else ""
    text = f"each at its peak{several}: " + ", ".join(f"{part} {format_bytes(size)}" for size, part in sizes)
    yield text + (f"; cached at the end {format_bytes(cached)}" if cached else "")


def planned_sentences(report: RunReport) -> Iterator[str]:
    """What a plan said of the peak, and what it was; of parts only those that were something else."""
    plan = report.planned
    if plan is None:
        return
    text = f"predicted {format_bytes(plan.planned_bytes)} of tensors at the peak ({plan.phase})"
    if plan.measured_bytes is not None:
        off = f" ({100 * (plan.measured_bytes / plan.planned_bytes - 1):+.1f} %)" if plan.planned_bytes else ""
        text += f", was {format_bytes(plan.measured_bytes)}{off}"
    others = [
        part
        for part in plan.parts
        if abs(part.measured_bytes - part.planned_bytes) > _COSTS.as_planned_frac * plan.planned_bytes
    ]
    for part in others:
        text += f"; {part.name} {format_bytes(part.planned_bytes)}, was {format_bytes(part.measured_bytes)}"
    if not plan.parts and report.steps:
        text += f"; its parts were not counted in {report.steps:,} step{'s' * (report.steps != 1)}"
    if plan.parts and not others:
        text += "; " + ", ".join(part.name for part in plan.parts) + " as predicted"
    yield text
    passed = max((row.parts.get("activations", 0) for row in plan.phases), default=0)
    if passed and report.host.activations_bytes:
        was = format_bytes(report.host.activations_bytes)
        yield f"after a forward pass {format_bytes(passed)} of activations, was {was}"


def own_sentence(report: RunReport) -> str:
    """What watching cost; what we were asked to collect and clear stands apart. Shares are only for longer runs."""
    ours = report.overhead
    once = f"{format_duration(ours.once_s if ours.step_s else ours.seconds)}"
    once += f" and {format_bytes(ours.once_bytes)}" if ours.once_bytes else ""
    of = f" of {format_duration(ours.step_s / ours.share_of_step)}" if ours.share_of_step else ""
    text = f"{format_duration(ours.step_s)} in each step{of}, {once} once" if ours.step_s else once
    wall_s = report.run.wall_s
    return text + (f"; {format_share(ours.seconds / wall_s)} of the run" if wall_s >= _COSTS.share_s else "")


def _call(row: CleanupCall, wall_s: float) -> str:
    where = f"{row.file}:{row.line}" + (" (a library)" if row.whose == "library" else "")
    calls = f"{row.calls:,} call{'s' * (row.calls != 1)}"
    cost = f"{format_duration(row.seconds)} ({format_share(row.seconds / wall_s)} of the run)"
    freed = format_bytes(row.freed_bytes) if row.freed_bytes > 0 else "nothing"
    advice = " Remove it." if row.freed_bytes <= 0 and row.whose == "user" and row.calls > 1 else ""
    return f"{row.what}() at {where}: {calls}, {cost}, freed {freed}.{advice}"


def _collector(collector: Collector, wall_s: float) -> str:
    share = f" ({format_share(collector.pause_total_s / wall_s)} of the run)" if wall_s else ""
    return (
        f"Python's collector: {collector.collections:,} full collections, all pauses"
        f" {format_duration(collector.pause_total_s)}{share}, the longest"
        f" {format_duration(collector.pause_max_s)}."
    )


def _given_back(row: LedgerRow) -> str:
    """The cost and yield of our own calls of one kind, and whether they are worthwhile."""

    freed_bytes, retaken_bytes, objects = row.freed_bytes, row.retaken_bytes, row.objects
    cost_s = row.time_s + row.next_step_excess_s
    least_bytes = max(_COSTS.kept_frac * freed_bytes, _COSTS.least_bytes * row.calls)
    useless = objects < _COSTS.least_objects * row.calls and freed_bytes - retaken_bytes <= least_bytes
    told = [f"took {format_duration(row.time_s)}"]
    if objects:
        told.append(f"found {objects:,} unreachable objects")
    if freed_bytes > 0 or not objects:
        told.append(f"freed {format_bytes(freed_bytes) if freed_bytes > 0 else 'nothing'}")
    if retaken_bytes > freed_bytes / 2:
        told[-1] += f" ({format_bytes(retaken_bytes)} of it allocated again at once)"
    calls = f"{row.calls:,} {_ACTIONS[row.what]}s" if row.calls != 1 else _ACTIONS[row.what]
    if useless:
        told[-1] += f": {_WITHOUT.get(row.what, 'leaving them out')} saves {format_duration(cost_s)}"
    return f"our {calls} {', '.join(told[:-1])} and {told[-1]}."
