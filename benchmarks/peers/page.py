"""The tables of benchmarks/results/peers.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from judge import TASKS, WITH_A_VERDICT, Task, after_oom, names_it, says_leak
from running import LIMIT_S, Ran

Rows = list[str]
RATIOS = ("wall_median_ms", "cpu_median_ms", "cpu_mean_ms")
YES = {True: "yes", False: "no"}


def summary(
    leaks: Mapping[str, Mapping[str, Ran]], ooms: Mapping[str, Ran], costs: Mapping[str, Sequence[Ran]]
) -> Rows:
    """All parts in a row for each tool."""
    rows = [
        "| | says that it leaks | names what leaks | false alarms | out of memory: names phase, memory, cure "
        "| processor's time of a step: median, mean | memory, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for tool, runs in leaks.items():
        done = [(task, run) for task in TASKS if (run := runs.get(task.script)) and run.exit_code == 0]
        leaking = [(task, run) for task, run in done if task.kind != "innocent"]
        innocent = [run for task, run in done if task.kind == "innocent"]
        said, alarms = "no verdict", "no verdict"
        if tool in WITH_A_VERDICT:
            said = f"{sum(says_leak(run.findings) for _, run in leaking)} of {len(leaking)}"
            alarms = f"{sum(says_leak(run.findings) for run in innocent)} of {len(innocent)}"
        named = f"{sum(_named(task, run) for task, run in leaking)} of {len(leaking)}"
        oom = next((name for name in (tool, f"{tool} run") if name in ooms), None)
        told = ", ".join(_told(ooms["alone"], ooms[oom])) if oom else "not run"
        cost = next((name for name in (tool, f"{tool} run") if any(run.steps for run in costs.get(name, ()))), None)
        keys = ("cpu_median_ms", "cpu_mean_ms") if cost else ()
        took = ", ".join(f"{_more(key, costs[cost], costs['alone']):.2f}" for key in keys) or "not run"
        more = f"{_more('peak_bytes', costs[cost], costs['alone']) / 2**20:+.0f}" if cost else "not run"
        rows.append(f"| {tool} | {said} | {named} | {alarms} | {told} | {took} | {more} |")
    return rows


def _told(alone: Ran, run: Ran) -> list[str]:
    """What a user has after the error, in words."""
    judged = after_oom((alone.exit_code, alone.output), (run.exit_code, run.output), run.findings)
    if not judged.ends_alike:
        return ["ends otherwise"]
    return [name for name in ("phase", "memory", "cure") if getattr(judged, name)] or ["nothing"]


def where_others_are_better(leaks: Mapping[str, Mapping[str, Ran]], costs: Mapping[str, Sequence[Ran]]) -> str:
    """What another tool found and we did not, and which take less than we do."""
    named = {
        tool: {task.script for task in TASKS if task.script in runs and _named(task, runs[task.script])}
        for tool, runs in leaks.items()
    }
    ours, *_ = named
    parts = [
        f"{tool} names {' and '.join(f'`{script}`' for script in sorted(scripts - named[ours]))}, which we don't"
        for tool, scripts in named.items()
        if scripts - named[ours]
    ]
    for key, what in (("cpu_median_ms", "of the processor's time in a median step"), ("peak_bytes", "memory")):
        sizes = {tool: _more(key, runs, costs["alone"]) for tool, runs in costs.items() if any(r.steps for r in runs)}
        less = [tool for tool, size in sizes.items() if tool not in ("alone", ours) and size < sizes[ours]]
        if less:
            parts.append(f"{' and '.join(less)} {'takes' if len(less) == 1 else 'take'} less {what}")
    return f"Where others are better: {'; '.join(parts) or 'nowhere in these tasks'}."


def _named(task: Task, run: Ran) -> bool:
    return task.kind != "innocent" and run.exit_code == 0 and names_it(task, run.findings)


def _more(key: str, runs: Sequence[Ran], alone: Sequence[Ran]) -> float:
    """The median of what it takes more than alone."""
    both = [(run, one) for run, one in zip(runs, alone, strict=False) if run.steps]
    if key == "peak_bytes":
        return statistics.median(run.peak_bytes - one.peak_bytes for run, one in both)
    return statistics.median(run.steps[key] / one.steps[key] for run, one in both)


def leaks(found: Mapping[str, Mapping[str, Ran]]) -> Rows:
    """From the runs of each tool by script: a row for a tool, a column for a script."""
    head = " | ".join(f"{task.kind}: `{task.script}`" for task in TASKS)
    rows = [f"| | {head} |", f"|---|{'---|' * len(TASKS)}"]
    for tool, runs in found.items():
        rows.append(f"| {tool} | {' | '.join(leak_cell(tool, task, runs.get(task.script)) for task in TASKS)} |")
    return rows


def leak_cell(tool: str, task: Task, run: Ran | None) -> str:
    """Whether it says so, and names it."""
    if run is None:
        return "not run"
    if run.exit_code != 0:
        return f"no end in {LIMIT_S} s" if run.exit_code is None else f"exit code {run.exit_code}"
    says = ("says so" if says_leak(run.findings) else "silent") if tool in WITH_A_VERDICT else "no verdict"
    if task.kind == "innocent":
        return says.replace("says so", "FALSE ALARM")
    return f"{says}, {'names it' if names_it(task, run.findings) else 'does not name it'}"


def ooms(found: Mapping[str, Ran]) -> Rows:
    """A row for each tool."""
    rows = ["| | ends with the script's own error | names the phase | names the memory | names a cure |"]
    rows.append("|---|---|---|---|---|")
    alone = found["alone"]
    for tool, run in found.items():
        judged = after_oom((alone.exit_code, alone.output), (run.exit_code, run.output), run.findings)
        cells = " | ".join(YES[one] for one in (judged.ends_alike, judged.phase, judged.memory, judged.cure))
        rows.append(
            f"| {tool} | {cells} |" if run.exit_code is not None else f"| {tool} | no end in {LIMIT_S} s |||| |"
        )
    return rows


def costs(found: Mapping[str, Sequence[Ran]]) -> Rows:
    """A row for each tool: medians over the turns, each beside the one alone of its turn."""
    rows = [
        "| | turns | a step, ms | ratio | processor's time, ratio | of the mean | most memory, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for tool, runs in found.items():
        pairs = [(run, alone) for run, alone in zip(runs, found["alone"], strict=False) if run.steps]
        if not pairs:
            rows.append(f"| {tool} | 0 | did not train to its end | | | | |")
            continue
        median_ms = statistics.median(run.steps["wall_median_ms"] for run, _ in pairs)
        ratios = " | ".join(f"{_more(key, runs, found['alone']):.2f}" for key in RATIOS)
        more = _more("peak_bytes", runs, found["alone"]) / 2**20
        rows.append(f"| {tool} | {len(pairs)} | {median_ms:.1f} | {ratios} | {more:+.0f} |")
    return rows


def plans(found: Mapping[str, Mapping[str, float]]) -> Rows:
    """A row for each model."""
    rows = ["| training | real peak, MiB | forgather-mem plan | accelerate estimate-memory |", "|---|---|---|---|"]
    for name, sizes in found.items():
        cells = [f"{sizes[who] / 2**20:.1f} ({sizes[who] / sizes['real'] - 1:+.0%})" for who in ("ours", "accelerate")]
        rows.append(f"| {name} | {sizes['real'] / 2**20:.1f} | {' | '.join(cells)} |")
    return rows
