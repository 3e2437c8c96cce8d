"""The charts of a run on the Custom Scalars tab."""

from __future__ import annotations

import re
from collections.abc import Collection

from forgather_mem.formats.summaries import Chart

_IN_STEPS, _BETWEEN_STEPS = "(data|forward|backward|optimizer)_gib", "(startup|evaluate|save|generate)_gib"
_HOST, _GPU, _PHASES, _CLEAN_UP = "Host memory", "GPU {i}", "Phases", "Collector and clean-up"
# A {i} stands for a device index; lines are regular expressions. The tags of a margin must have points at the same
# steps, otherwise TensorBoard shows an error: those here come from one reading.
_CHARTS = (
    Chart(
        category=_HOST,
        title="resident, GiB (band: anonymous to highest so far)",
        margin=("mem_host/rss_gib", "mem_host/anon_gib", "mem_host/rss_peak_gib"),
    ),
    Chart(category=_HOST, title="free below the limit, GiB", lines=("mem_host/available_gib",)),
    Chart(
        category=_HOST,
        title="children, shared memory, swap, GiB",
        lines=("mem_host/(children|shm|swap)_gib", "mem_workers/.*_gib"),
    ),
    Chart(
        category=_GPU,
        title="allocated, GiB (band: up to reserved)",
        margin=("mem_gpu{i}/allocated_gib", "mem_gpu{i}/allocated_gib", "mem_gpu{i}/reserved_gib"),
    ),
    Chart(category=_GPU, title="peak of each step and of the run, GiB", lines=("mem_gpu{i}/(step_peak|peak)_gib",)),
    Chart(category=_GPU, title="headroom, GiB", lines=("mem_gpu{i}/(headroom|others)_gib",)),
    Chart(category=_PHASES, title="host peak in the phases of a step, GiB", lines=(f"mem_phase_host/{_IN_STEPS}",)),
    Chart(category=_PHASES, title="host peak between steps, GiB", lines=(f"mem_phase_host/{_BETWEEN_STEPS}",)),
    Chart(
        category=_PHASES, title="GPU {i} peak in the phases of a step, GiB", lines=(f"mem_phase_gpu{{i}}/{_IN_STEPS}",)
    ),
    Chart(category=_PHASES, title="GPU {i} peak between steps, GiB", lines=(f"mem_phase_gpu{{i}}/{_BETWEEN_STEPS}",)),
    Chart(category="Breakdown", title="what the tensors hold, GiB", lines=("mem_tensors/.*",)),
    Chart(
        category=_CLEAN_UP,
        title="pauses and clears in each step, ms",
        lines=("mem_(gc/pause|cache/time|trim/time)_ms",),
    ),
    Chart(category=_CLEAN_UP, title="freed by our actions, GiB", lines=("mem_(cache|trim)/freed_gib",)),
    Chart(category="Ranks", title="lowest and highest, GiB", lines=("mem_ranks/.*_(min|max)_gib",)),
)


def charts_for(tags: Collection[str]) -> list[Chart]:
    """The charts that have data if these tags exist.

    >>> [chart.title for chart in charts_for(["mem_gpu0/headroom_gib"])]
    ['headroom, GiB']
    """
    devices = sorted({int(match[1]) for tag in tags if (match := re.match(r"mem_(?:phase_)?gpu(\d+)/", tag))})
    charts = []
    for chart in _CHARTS:
        per_device = "{i}" in chart.category + chart.title + "".join(chart.lines)
        for i in devices if per_device else [0]:
            shown = _shown(chart, i, tags)
            if shown is not None:
                charts.append(shown)
    return charts


def _shown(chart: Chart, i: int, tags: Collection[str]) -> Chart | None:
    category, title = chart.category.replace("{i}", str(i)), chart.title.replace("{i}", str(i))
    if chart.margin is not None:
        value, lower, upper = (tag.replace("{i}", str(i)) for tag in chart.margin)
        if {value, lower, upper} <= set(tags):
            return Chart(category=category, title=title, margin=(value, lower, upper))
        lines = [f"{re.escape(tag)}$" for tag in (value, lower, upper) if tag in tags]
        title = f"{title.split(' (')[0]}"
    else:
        wanted = [line.replace("{i}", str(i)) + "$" for line in chart.lines]
        lines = [line for line in wanted if any(re.match(line, tag) for tag in tags)]
    return Chart(category=category, title=title, lines=tuple(lines)) if lines else None
