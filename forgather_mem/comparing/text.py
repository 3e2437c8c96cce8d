"""A comparison for people: the verdict, then tables; as text of a terminal, or as Markdown for a pull request."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from forgather_mem.comparing.causes import Changed
from forgather_mem.comparing.comparison import Comparison, Grown
from forgather_mem.comparing.side import HELD, LEAK, OTHERS, PLANNED, WORKERS, Difference
from forgather_mem.errors import escape_controls, shown
from forgather_mem.reporting.markdown import markdown_text
from forgather_mem.reporting.text import with_texts
from forgather_mem.telemetry.report import LeakReport, RunReport
from forgather_mem.units import MIB, format_bytes

WIDTH = 80
_PLAN_BOTH = "forgather-mem plan --json of both, compared, says more"
_BEGINS_A_BLOCK = re.compile(r"\A\d*(?=[-+=#.)])")  # in Markdown: a list, a heading
_WORDS = {
    WORKERS: "memory of data workers",
    LEAK: "a leak",
    HELD: "held memory",
    OTHERS: "other models' parameters",
    "results": "what evaluations gather",
    "batch": "the batch",
    "optimizer": "the optimizer's state",
}

Table = list[tuple[str, ...]]


def comparison_text(comparison: Comparison) -> str:
    """The comparison in 80 columns, without a newline at its end."""
    comparison = with_texts(comparison, escape_controls)
    lines = [textwrap.fill(sentence, WIDTH, subsequent_indent="  ") for sentence in sentences(comparison)]
    for rows in _tables(comparison):
        lines += ["", *_columns(rows)]
    return shown("\n".join(lines))


def comparison_markdown(comparison: Comparison) -> str:
    """The comparison for a pull request, without a newline at its end."""
    comparison = with_texts(comparison, escape_controls)
    first, *others = map(markdown_text, sentences(comparison))
    lines = [f"**{first}**", "", *(_BEGINS_A_BLOCK.sub(r"\g<0>\\", sentence) + "  " for sentence in others)]
    for header, *rows in _tables(comparison):
        lines += ["", _row(header), _row(["---", *["---:"] * (len(header) - 1)]), *map(_row, rows)]
    return shown("\n".join(lines))


def sentences(comparison: Comparison) -> list[str]:
    """What is known of the difference, the verdict first."""
    told = [_headline(comparison)]
    causes = {grown.part: _causes(grown.causes) for grown in comparison.grown if grown.causes}
    told += [f"{', '.join(one for one in causes if causes[one] == of)}: {of}" for of in dict.fromkeys(causes.values())]
    differ = [one for one in comparison.settings if one.comparable]
    if differ and not any(grown.causes for grown in comparison.grown):
        told.append(f"settings that differ: {_causes(differ)}")
    told += [f"new leak: {_leak(leak)}" for leak in comparison.new_leaks]
    told += [f"leak gone: {_leak(leak)}" for leak in comparison.gone_leaks]
    before, after = comparison.before, comparison.after
    if comparison.planned and comparison.differences:
        one = comparison.differences[0]
        told.append(f"resident: {_more(one.bytes)}{'' if one.is_sure else ', which equal runs differ by, too'}")
    told += [
        f"{'one of ' * (len(side.reports) > 1)}{side.name} {unfinished(report)}"
        for side in (before, after)
        for report in side.reports
        if unfinished(report)
    ]
    scripts = dict.fromkeys(side.first.run.script for side in (before, after))
    told += [f"scripts: {' and '.join(scripts)}"] * (len(scripts) > 1 and all(scripts))
    if before.steps != after.steps and comparison.differences:
        told.append(f"steps: {before.steps:,} and {after.steps:,}; what grows over steps differs for that alone")
    for side, other in ((before, after), (after, before)):
        if side.leak is not None and not other.is_judged:
            why = next((f": {one.leak.why}" for one in other.reports if one.leak.why), "")
            told.append(f"{side.name}: a leak, {_leak(side.leak)}; {other.name}: no verdict on leaks{why}")
        told += [f"{side.name}: {hint}" for hint in side.first.hints if side.is_plan]
        if all(name.startswith("batch.") for name in side.first.run.settings):
            told.append(f"{side.name}: no settings{' but its batch' * bool(side.first.run.settings)}")
    return told


def _headline(comparison: Comparison) -> str:
    name, peak, grown = comparison.after.name, comparison.peak, comparison.grown
    where = "at the planned peak" if comparison.planned else f"at the peak ({comparison.place})"
    takes, it = ("takes", "it takes") if len(comparison.after.reports) == 1 else ("take", "they take")
    sides = comparison.before, comparison.after
    for side, other in (sides, sides[::-1]):
        if not comparison.planned and other.steps and not all(report.steps for report in side.reports):
            return f"{side.name}: no step was done, so there is little to compare."
    unread = [side for side, size in zip(sides, (peak.before, peak.after), strict=True) if not size]
    if unread:
        return f"{unread[0].name}: no reading of memory ({comparison.place}), so there is nothing to compare."
    parts = ", ".join(f"{_word(one)} {_signed(one.bytes)}{_phase(one)}" for one in grown[:3])
    more = f"{takes} {_more(peak.bytes)}" if peak.bytes else f"{takes} as much"
    if comparison.planned and not peak.bytes:
        said = f"{name}: {parts}; {it}" if grown else f"No difference: {name} {takes}"
        return f"{said} as much {where}, to the byte."
    if not grown and not peak.is_sure:
        return (
            f"No difference can be told: {name} {more} {where}, "
            f"which is within the noise of equal runs ({format_bytes(peak.high - peak.bytes)})."
        )
    if not grown:
        return f"{name} {more} {where}; can't tell what it is: {_PLAN_BOTH}."
    is_all = comparison.planned or abs(peak.bytes - sum(one.bytes for one in grown)) <= peak.high - peak.bytes
    rest = "" if is_all else f"; can't tell what the rest is: {_PLAN_BOTH}"
    if not peak.is_sure:
        return f"{name}: {parts}; whether the peak ({comparison.place}) differs can't be told."
    if comparison.place == "host":  # resident memory may differ by more than what is counted, for reasons nobody knows
        return f"{name}: {parts}. Of resident memory {it} {_more(peak.bytes)} {where}{rest}."
    return f"{name} {more} {where}: {parts}{rest}."


def unfinished(report: RunReport) -> str:
    """How a run ended that did not finish; "" for others, and where a log can't tell."""
    run, steps = report.run, f"after {report.steps:,} step{'s' * (report.steps != 1)}"
    if run.end is None:
        # TensorBoard's tags tell neither script nor end
        return f"has not recorded its end {steps}: it still runs, or was killed" if run.script else ""
    words = {"oom": "ran out of memory", "killed": "was killed", "interrupted": "was interrupted"}
    return "" if run.end == "finished" else f"{words.get(run.end, 'ended with an exception')} {steps}"


def _word(grown: Grown) -> str:
    return _WORDS.get(grown.part, grown.part) + (f" ({grown.holder})" if grown.holder else "")


def _phase(grown: Grown) -> str:
    is_clear = not grown.phase or grown.part == "results" or grown.phase in (grown.part, "optimizer")
    return "" if is_clear else f" in {grown.phase}"


def _causes(settings: Sequence[Changed]) -> str:
    named = ((one.name.removeprefix("arguments."), *_values(one)) for one in settings[:3])
    return "; ".join(f"{name} {after} instead of {before}" for name, before, after in named)


def _values(setting: Changed) -> tuple[str, str]:
    none = "not set" if setting.comparable else "-"  # what a plan, or a plain loop, can't tell
    told = setting.before or none, setting.after or none
    before, after = (f"{int(value):,}" if value.isdecimal() else value for value in told)
    return before, after


def _leak(leak: LeakReport) -> str:
    told = (one for suspect in leak.suspects[:1] for one in (suspect.held_by, suspect.allocated_at) if one)
    return ", ".join([f"{format_bytes(leak.bytes_per_step)} a step from step {leak.since_step:,} on", *told])


def _tables(comparison: Comparison) -> Iterator[Table]:
    names = (comparison.before.name, comparison.after.name)
    told = [one for one in comparison.differences if max(one.before, one.after) >= MIB or (one.counted and one.is_sure)]
    if comparison.planned:
        yield [("plan", *names, "difference"), _size_row(comparison.peak)]
        yield from _by_phase(comparison.planned)
    if told:
        yield [("memory", *names, "difference"), *map(_size_row, told)]
    for title, changes in (("setting", comparison.settings), ("version", comparison.versions)):
        first = sorted(changes, key=lambda one: not one.comparable)[:12]  # `--json` has all
        rows = [(one.name, *_values(one)) for one in first]
        if len(changes) > len(first):
            rows.append((f"{len(changes) - len(first)} more: --json", "", ""))
        if rows:
            yield [(title, *names), *rows]


def _by_phase(planned: Sequence[Difference]) -> Iterator[Table]:
    """How much more each part takes in each phase; nothing where none differs."""
    rows = planned[1:]
    phases = list(dict.fromkeys(one.phase for one in rows))
    cells = {(one.name, one.phase): _signed(one.bytes) for one in rows if one.is_sure}
    names = dict.fromkeys(name for name, _ in cells if name != PLANNED)
    if cells:
        lines = [(name, *(cells.get((name, phase), "=") for phase in phases)) for name in (*names, PLANNED)]
        yield [("part in", *phases), *((name.replace(PLANNED, "all"), *told) for name, *told in lines)]


def _size_row(one: Difference) -> tuple[str, ...]:
    sizes = format_bytes(one.before), format_bytes(one.after)
    said = _signed(one.bytes) if one.is_sure else "can't tell" if len(set(sizes)) > 1 else "="
    return "planned peak" if one.name == PLANNED else one.name, *sizes, said


def _columns(rows: Table) -> Iterator[str]:
    """Rows in columns; the first to the left, the others to the right. Where there is no room values are cut first."""
    least = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    room = WIDTH - 2 * (len(least) - 1)
    while sum(least) > room:
        widest = max(range(len(least)), key=lambda place: (place > 0 and least[place] > WIDTH // 6, least[place]))
        least[widest] -= 1
    for row in rows:
        cells = [_cut(cell, width) for cell, width in zip(row, least, strict=True)]
        yield "  ".join([cells[0].ljust(least[0]), *map(str.rjust, cells[1:], least[1:])]).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"...{text[len(text) - width + 3 :].lstrip('.')}"


def _signed(num_bytes: float) -> str:
    return f"{'+' if num_bytes >= 0 else '-'}{format_bytes(abs(num_bytes))}"


def _more(num_bytes: float) -> str:
    return f"{format_bytes(abs(num_bytes))} {'more' if num_bytes >= 0 else 'less'}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown_text, cells))} |"
