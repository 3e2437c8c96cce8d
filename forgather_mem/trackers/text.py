"""The output lines of the trackers: bytes in, text out.

The unit word is "MB" and means MiB (2**20 bytes): the lines match those of tools that scripts already parse. Without a
device the GPU part is left out; "at least" marks a peak that is only a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forgather_mem.system.usage import Span, Usage, UsageSpan
from forgather_mem.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One row of a table; `first` if nothing came before, so that there is no change and no peak."""

    name: str
    host: Span
    device: Span | None = None
    first: bool = False
    times: int = 1


def in_mb(num_bytes: float) -> str:
    """Bytes in MiB with the trackers' unit word.

    >>> in_mb(3242 * 2**20), in_mb(-8.7 * 2**20)
    ('3242.0 MB', '-8.7 MB')
    """
    return f"{num_bytes / MIB:.1f} MB"


def usage_text(usage: Usage) -> str:
    """The current memory on one line.

    >>> usage_text(Usage(host_bytes=1634 * 2**20, device_bytes=23 * 2**20))
    'GPU 23.0 MB, CPU 1634.0 MB'
    >>> usage_text(Usage(host_bytes=1634 * 2**20))
    'CPU 1634.0 MB'
    """
    host = f"CPU {in_mb(usage.host_bytes)}"
    return host if usage.device_bytes is None else f"GPU {in_mb(usage.device_bytes)}, {host}"


def batch_line(batch_idx: int, usage: Usage, loss: float | None = None) -> str:
    """The line for one batch of an epoch.

    >>> batch_line(0, Usage(host_bytes=1634 * 2**20, device_bytes=23 * 2**20), 0.00531)
    'Batch 0: GPU 23.0 MB, CPU 1634.0 MB, loss=0.005310'
    """
    line = f"Batch {batch_idx}: {usage_text(usage)}"
    return line if loss is None else f"{line}, loss={loss:.6f}"


def epoch_line(span: UsageSpan) -> str:
    """The line for the end of an epoch; host numbers if there is no device.

    >>> MB = 2**20
    >>> host = Span(start_bytes=1600 * MB, end_bytes=1634 * MB, peak_bytes=1700 * MB)
    >>> epoch_line(UsageSpan(host=host))
    'Epoch end: CPU 1634.0 MB, peak 1700.0 MB'
    >>> device = Span(start_bytes=0, end_bytes=14 * MB, peak_bytes=2880 * MB)
    >>> epoch_line(UsageSpan(host=host, device=device, reserved_bytes=3242 * MB))
    'Epoch end: GPU 14.0 MB allocated, 3242.0 MB reserved, peak 2880.0 MB'
    """
    if span.device is None:
        return f"Epoch end: CPU {in_mb(span.host.end_bytes)}, {_peak(span.host)}"
    parts = [f"{in_mb(span.device.end_bytes)} allocated"]
    if span.reserved_bytes is not None:
        parts.append(f"{in_mb(span.reserved_bytes)} reserved")
    return f"Epoch end: GPU {', '.join(parts)}, {_peak(span.device)}"


def block_lines(label: str, span: UsageSpan, error: str | None = None) -> str:
    """The lines for a block of code: one each for host and device, with aligned columns.

    >>> MB = 2**20
    >>> host = Span(start_bytes=1600 * MB, end_bytes=1634 * MB, peak_bytes=1700 * MB)
    >>> device = Span(start_bytes=23 * MB, end_bytes=14 * MB, peak_bytes=2880 * MB)
    >>> print(block_lines("data loading", UsageSpan(host=host, device=device)))
    data loading: GPU start 23.0 MB, end 14.0 MB, consumed -9.0 MB, peak 2880.0 MB
    data loading: CPU start 1600.0 MB, end 1634.0 MB, consumed +34.0 MB, peak 1700.0 MB
    >>> print(block_lines("data loading", UsageSpan(host=host), error="ValueError"))
    data loading (ended by ValueError): CPU start 1600.0 MB, end 1634.0 MB, consumed +34.0 MB, peak 1700.0 MB
    """
    head = label if error is None else f"{label} (ended by {error})"
    places = [("CPU", span.host)] if span.device is None else [("GPU", span.device), ("CPU", span.host)]
    return "\n".join(f"{head}: {place} {_start_to_peak(part)}" for place, part in places)


def checkpoint_table(title: str, rows: Sequence[Checkpoint]) -> str:
    """Named instants one below the other: memory held, and change and peak since the one before.

    >>> MB = 2**20
    >>> first = Span(start_bytes=1600 * MB, end_bytes=1600 * MB, peak_bytes=1600 * MB)
    >>> second = Span(start_bytes=1600 * MB, end_bytes=1634 * MB, peak_bytes=1700 * MB, exact=False)
    >>> rows = [Checkpoint(name="baseline", host=first, first=True), Checkpoint(name="trained", host=second)]
    >>> print(checkpoint_table("Memory, MB", rows))
    Memory, MB     CPU  change      peak
    baseline    1600.0
    trained     1634.0   +34.0  >=1700.0
    """
    with_device = any(row.device is not None for row in rows)
    with_times = any(row.times != 1 for row in rows)
    head = ["times"] * with_times + ["GPU", "change", "peak"] * with_device + ["CPU", "change", "peak"]
    lines = [[title, *head]]
    for row in rows:
        cells = [str(row.times)] * with_times
        cells += _cells(row.device, row.first) * with_device
        lines.append([row.name, *cells, *_cells(row.host, row.first)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ("  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for name, *cells in lines)
    return "\n".join(text.rstrip() for text in texts)


def _cells(span: Span | None, first: bool) -> list[str]:
    if span is None:
        return ["", "", ""]
    held = f"{span.end_bytes / MIB:.1f}"
    if first:
        return [held, "", ""]
    return [held, f"{span.consumed_bytes / MIB:+.1f}", f"{'' if span.exact else '>='}{span.peak_bytes / MIB:.1f}"]


def _start_to_peak(span: Span) -> str:
    ends = f"start {in_mb(span.start_bytes)}, end {in_mb(span.end_bytes)}"
    return f"{ends}, consumed {span.consumed_bytes / MIB:+.1f} MB, {_peak(span)}"


def _peak(span: Span) -> str:
    return f"peak {'' if span.exact else 'at least '}{in_mb(span.peak_bytes)}"
