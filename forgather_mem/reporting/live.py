"""A running training in a few lines, from its black boxes, which tell of each step and phase.

Nothing here imports torch.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from forgather_mem.errors import escape_controls, missing, shown
from forgather_mem.formats.ring import Ring, read_ring, ring_files
from forgather_mem.reporting.table import format_time
from forgather_mem.system.process_start import is_process_running
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.report_schema import from_dict
from forgather_mem.units import GIB, format_bytes, format_duration

BLOCKS = "_.-=+*%#"
"""From the lowest to the highest, for a curve on any terminal."""
_MAX_RANKS, _MAX_FINDINGS, _LABEL = 8, 3, 10
_NOT_SHOWN = ("settings", "cleanup_calls", "grows")  # of which the data is for the report
# Of each place: label, what it has now, its peak, what is left
_PLACES = (
    ("host", "host/rss_bytes", "host/rss_peak_bytes", "host/available_bytes"),
    ("GPU", "device/allocated_bytes", "device/step_peak_bytes", "device/headroom_bytes"),
    ("workers", "workers/pss_bytes", "", ""),
)


def running(folder: Path) -> dict[int, Ring]:
    """The black boxes of a run's ranks that have not ended, by rank; empty when it is over, or has none."""
    found = {}
    for rank, path in ring_files(folder).items():
        with missing(OSError, ValueError):  # just being made
            ring = read_ring(path)
            header = from_dict(RunHeader, ring.header)
            # Where this machine can't know whether its process is there, it is
            is_gone = header.pid and is_process_running(header.pid, header.host, header.process) is False
            if ring.state.end == "running" and not is_gone:
                found[rank] = ring
    return found


def live_text(rings: Mapping[int, Ring], now_s: float, width: int = 80) -> str:
    """The run now: step and phase, memory with its curve over the last 512 records, and what was found last.

    Args:
        rings: Of its ranks, one at least.
        now_s: Seconds since 1970.
        width: Number of columns.
    """
    ring = rings[min(rings)]
    state, script = ring.state, os.path.basename(str(ring.header.get("script") or "")) or "training"
    ago = format_duration(max(0.0, now_s - state.time_s))
    head = f"== forgather-mem live == {script} == {format_time(state.step, state.phase)}, {ago} ago "
    lines = [head.ljust(width, "="), *_memory(ring, width)]
    if times := _read(ring, "step/time_s"):
        lines.append(f"{'speed':<{_LABEL}}{format_duration(sorted(times)[len(times) // 2])} a step")
    if len(rings) > 1:
        lines += [_rank_line(number, one) for number, one in sorted(rings.items())[:_MAX_RANKS]]
    for finding in [finding for finding in ring.findings if finding.kind not in _NOT_SHOWN][-_MAX_FINDINGS:]:
        told = f"{f'step {finding.step:,}':<{_LABEL}} {'; '.join(finding.text.splitlines())}"
        lines += textwrap.wrap(told, width, subsequent_indent=" " * (_LABEL + 1), max_lines=2, placeholder=" ...")
    return shown("\n".join(escape_controls(line)[:width] for line in lines))


def _memory(ring: Ring, width: int) -> Iterator[str]:
    """A line for each place of which there are readings: now, the peak, what is left, and the curve."""
    for label, used, peak, left in _PLACES:
        sizes = _read(ring, used)
        if not sizes:
            continue
        text = f"{label:<{_LABEL}}{format_bytes(sizes[-1])}"
        if peaks := _read(ring, peak):
            text += f", peak {format_bytes(max(peaks))}"
        if rooms := _read(ring, left):
            text += f", {format_bytes(rooms[-1])} left"
        yield f"{text:<50}  {_curve(sizes, max(10, width - 52))}".rstrip()


def _read(ring: Ring, name: str) -> list[float]:
    """The values of a name, where it was read."""
    return [sample.values[name] for sample in ring.samples if name in sample.values]


def _rank_line(rank: int, ring: Ring) -> str:
    values = ring.samples[-1].values if ring.samples else {}
    sizes = [f"{label} {values[used] / GIB:,.2f} GiB" for label, used, *_ in _PLACES if used in values]
    return f"{f'rank {rank}':<{_LABEL}}{', '.join([format_time(ring.state.step, ring.state.phase), *sizes])}"


def _curve(sizes: Sequence[float], width: int) -> str:
    """The highest of each stretch, from the lowest to the highest of all; flat where they differ by under 1 %."""
    num = min(width, len(sizes))
    tops = [max(sizes[len(sizes) * at // num : len(sizes) * (at + 1) // num]) for at in range(num)]
    low, high = min(tops), max(tops)
    if high - low < 0.01 * high:
        return BLOCKS[0] * num
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((top - low) / (high - low) * len(BLOCKS)))] for top in tops)
