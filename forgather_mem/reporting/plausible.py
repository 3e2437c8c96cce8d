"""The one place where a figure goes that the report's own shape, type or peak contradicts.

An owner is counted while the training runs and told at its end: by then it may be another one, or a type may not be
what was taken for it. What the peak says was measured by the kernel, and a tensor's shape and type by torch.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from forgather_mem.telemetry.report import LeakSuspect, RunReport

_TENSOR = re.compile(r"\w+ \[([\d, ]*)\] (bool|[a-z_]+?(\d+))\b(?!.*view of)")


def plausible(report: RunReport) -> RunReport:
    """The report without the figures of holders that are above the peak of all memory; a rate is the leak's at most."""
    device_bytes = sum(one.peak_allocated_bytes for one in report.device)
    peak_bytes = report.host.rss_peak_bytes + report.host.workers_peak_bytes + device_bytes
    if not peak_bytes:  # nobody has measured it
        return report
    suspects = []
    for one in report.leak.suspects:
        if max(one.bytes or 0, one.bytes_per_step * (report.steps - report.leak.since_step)) > peak_bytes:
            rate = min(one.bytes_per_step, report.leak.bytes_per_step)
            one = replace(one, bytes=None, count=None, bytes_per_step=rate, count_per_step=0.0)
        suspects.append(one)
    return replace(report, leak=replace(report.leak, suspects=tuple(suspects)))


def each_bytes(suspect: LeakSuspect) -> float:
    """The size of one new item: the quotient of the rates, or what shape and type say if it is about that; 0 if none.

    A quotient below what the shape of a part of it says is none.

    >>> one = LeakSuspect(type="list", bytes_per_step=512, count_per_step=2, held_by="kept")
    >>> [each_bytes(replace(one, each=f"Tensor [8, 8] {kind} on cpu")) for kind in ("int8", "float32", "int64")]
    [256.0, 256, 0.0]
    """
    quotient = suspect.bytes_per_step / suspect.count_per_step if suspect.count_per_step > 0 else 0.0
    found = _TENSOR.search(suspect.each)
    if found is None or not quotient:
        return quotient
    size = math.prod([int(side) for side in found[1].split(",") if side.strip()]) * int(found[3] or 8) // 8
    if abs(quotient - size) <= size / 20 and found.start() == 0:  # the object beside its numbers, and scatter
        return size
    return quotient if quotient > size or suspect.each.startswith("e.g. ") else 0.0
