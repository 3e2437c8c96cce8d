"""The report as an HTML page: one file, without external scripts, pictures or styles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from forgather_mem.reporting.from_events import STARTUP, Curve
from forgather_mem.reporting.html_plot import Marks, Plot, PlotLine, bar_html, escape, plot_html
from forgather_mem.reporting.html_style import SCRIPT, STYLE
from forgather_mem.reporting.table import format_place, place_of_parts
from forgather_mem.reporting.text import report_text, script_name
from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.report import Peak, RunReport
from forgather_mem.units import format_bytes, format_duration, format_share

# The curves on the page.
CURVES = (
    "host/rss_bytes", "host/anon_bytes", "workers/pss_bytes", "host/other_children_pss_bytes",
    "device/allocated_bytes", "device/reserved_bytes", "device/step_peak_bytes", "gc/pause_s", "cache/time_s",
    "cache/freed_bytes", "collect/time_s", "collect/freed_bytes", "trim/time_s", "trim/freed_bytes", "step/time_s",
    "phase/", STARTUP,
)  # fmt: skip
_ACTIONS = (
    ("collect", "collect", "our collections", 5),
    ("cache", "clear", "cache clears", 4),
    ("trim", "trim", "trims", 7),
)

Curves = Mapping[str, Curve]


def report_html(report: RunReport, curves: Curves) -> str:
    """The page: the text, the curves over the steps, and all numbers as tables.

    Args:
        report: The report.
        curves: The available curves, by the names in `CURVES`.
    """
    title = escape(f"{script_name(report)}: where the memory went")
    body = [
        f'<pre class="text">{escape(report_text(report))}</pre>',
        *_plots(report, curves),
        _breakdown(report),
        *(_table(caption, header, rows) for caption, header, rows in _tables(report)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body><main><h1>{title}</h1>\n"
        + "\n".join(part for part in body if part)
        + f"\n</main><script>{SCRIPT}</script></body></html>\n"
    )


def _plots(report: RunReport, curves: Curves) -> Iterator[str]:
    if before := curves.get(STARTUP):
        lines = [PlotLine(label="resident", curve=before, colour=6, area=True)]
        plot = Plot(title="Memory of the host before the first step, over seconds", lines=lines, over="second")
        yield plot_html(plot, 0, max(before.steps))
    over_steps = [curve for name, curve in curves.items() if name != STARTUP]
    steps = [step for curve in over_steps if curve.steps for step in (min(curve.steps), max(curve.steps))]
    if not steps:
        yield "<p>This run left no log of its steps, so there are no curves.</p>"
        return
    first, last = min(steps), max(steps)
    for plot in _wanted(report, curves):
        yield plot_html(plot, first, last)


def _wanted(report: RunReport, curves: Curves) -> Iterator[Plot]:
    marks = list(_marks(curves))
    for device in report.device:
        if device.rank != report.device[0].rank:  # the curves are one rank's
            continue
        total, family = device.total_bytes, f"device{device.index}"
        if f"{family}/allocated_bytes" not in curves:  # the current one
            family = "device"
        yield Plot(
            title=f"Memory of {format_place(device.where)}",
            lines=_lines(
                curves,
                (f"{family}/reserved_bytes", "reserved", 6, "area"),
                (f"{family}/allocated_bytes", "in tensors", 1, "area"),
                (f"{family}/step_peak_bytes", "peak of the step", 2, ""),
            ),
            marks=marks,
            limit=("total", total) if total else None,
        )
    limit = report.host.limit_bytes
    whose = "container's limit" if report.host.limit_kind == "cgroup" else "machine's memory"
    yield Plot(
        title="Memory of the host",
        lines=_lines(
            curves,
            ("host/rss_bytes", "resident", 6, "area"),
            ("host/anon_bytes", "anonymous", 1, "area"),
            ("workers/pss_bytes", "data workers", 2, ""),
            ("host/other_children_pss_bytes", "other children", 3, ""),
        ),
        marks=marks,
        limit=(whose, limit) if limit else None,
    )
    for family, where in (("phase/device/", "the device"), ("phase/host/", "the host")):
        names = [(f"{family}{phase}_peak_bytes", phase, 1 + number % 7, "") for number, phase in enumerate(PHASES)]
        yield Plot(title=f"Peak in each phase, on {where}", lines=_lines(curves, *names))
    yield Plot(
        title="Pauses: Python's collector, and our actions",
        lines=_lines(
            curves,
            ("gc/pause_s", "Python's collector", 3, "stems"),
            *((f"{name}/time_s", label, colour, "stems") for name, _, label, colour in _ACTIONS),
        ),
        unit="ms",
    )


def _lines(curves: Curves, *wanted: tuple[str, str, int, str]) -> list[PlotLine]:
    return [
        PlotLine(label=label, curve=curves[name], colour=colour, area=form == "area", stems=form == "stems")
        for name, label, colour, form in wanted
        if name in curves
    ]


def _marks(curves: Curves) -> Iterator[Marks]:
    for name, _, label, colour in _ACTIONS:
        times, freed = curves.get(f"{name}/time_s"), curves.get(f"{name}/freed_bytes")
        if times is None:
            continue
        sizes = dict(zip(freed.steps, freed.values, strict=True)) if freed is not None else {}
        points = [
            (step, f"step {step:,}: {label}, {format_duration(time_s)}, freed {format_bytes(sizes.get(step, 0))}")
            for step, time_s in zip(times.steps, times.values, strict=True)
        ]
        yield Marks(label=label, points=points, colour=colour)


def _breakdown(report: RunReport) -> str:
    if not report.breakdown.parameters:
        return ""
    where = place_of_parts(report) if report.device else "the host"
    bar = bar_html([(part, size) for part, size in report.breakdown.sizes().items() if part != "cached"])
    return f"<section><h2>What was in the memory of {where}, each part at its peak</h2>{bar}</section>"


Table = tuple[str, Sequence[str], list[Sequence[str]]]


def _tables(report: RunReport) -> Iterator[Table]:
    run = report.run
    yield (
        "Peaks",
        ("where", "size", "step", "phase"),
        [
            (format_place(peak.where) + _rank(peak.rank), _size(peak), f"{peak.step:,}", peak.phase)
            for peak in report.peaks
        ],
    )
    yield (
        "Clean-up calls",
        ("what", "where", "whose", "calls", "time", "of the run", "freed"),
        [
            (
                row.what, f"{row.file}:{row.line}", row.whose, f"{row.calls:,}",
                format_duration(row.seconds), format_share(row.seconds / run.wall_s if run.wall_s else 0.0),
                format_bytes(row.freed_bytes),
            )
            for row in report.cleanup_calls
        ],
    )  # fmt: skip
    yield (
        "What our actions freed and cost",
        ("what", "calls", "time", "next steps longer by", "freed", "taken again"),
        [
            (
                row.what, f"{row.calls:,}", format_duration(row.time_s),
                format_duration(max(0.0, row.next_step_excess_s)), format_bytes(row.freed_bytes),
                format_bytes(row.retaken_bytes),
            )
            for row in report.ledger
        ],
    )  # fmt: skip
    yield (
        "Ranks",
        ("rank", "end", "steps", "host peak", "GPU peak", "GPU reserved"),
        [
            (
                str(row.rank), str(row.end or "not known"), f"{row.steps:,}",
                *map(format_bytes, (row.host_peak_bytes, row.device_peak_bytes, row.device_reserved_bytes)),
            )
            for row in report.ranks or ()
        ],
    )  # fmt: skip
    yield "Sampled less often to stay within budget", ("what",), [(row.text,) for row in report.overhead.backed_off]
    yield "Switched off", ("what",), [(sentence,) for sentence in report.switched_off]
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    facts = [
        ("command", " ".join([run.script, *run.argv])),
        (
            "ended",
            f"{run.end or 'not known'}" + (f", exit {run.exit_code}" if run.exit_code is not None else ""),
        ),
        ("took", format_duration(run.wall_s)),
        ("versions", versions),
        ("folder", run.folder or ""),
        ("TensorBoard", run.event_folder or ""),
    ]
    yield "The run", ("", ""), [fact for fact in facts if fact[1]]


def _size(peak: Peak) -> str:
    since = peak.not_read_since
    return format_bytes(peak.bytes) + (f" (not read since step {since:,})" if since is not None else "")


def _rank(rank: int | None) -> str:
    return f", rank {rank}" if rank is not None else ""


def _table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    if not lines:
        return ""
    names = "".join(f"<th>{escape(name)}</th>" for name in header) if any(header) else ""
    head = f"<thead><tr>{names}</tr></thead>" if names else ""
    table = f"<table>{head}<tbody>{lines}</tbody></table>"
    return f'<section><h2>{escape(caption)}</h2><div class="scroll">{table}</div></section>'
