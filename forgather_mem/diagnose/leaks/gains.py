"""What a process has gained in memory that none of the judged sizes explains.

"No leak" is said of the sizes that were judged. A total (what the process has resident, its other children, /dev/shm,
what the device's allocator holds) that gains more than they do is told as such: it may be a leak in no size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forgather_mem._lazy import dataclass, replace
from forgather_mem.growth.lower_envelope import Point, edges_of
from forgather_mem.growth.trend import GROWTH, Series, Trend
from forgather_mem.units import MIB, format_bytes

# The highest bound at which "no leak" is still said: arenas and maps grow by a MiB at a time.
MOST_PER_STEP = 4 * GROWTH.floor_bytes
# Each total: the sizes that may explain what it gains, and where that is
TOTALS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "process": (("native", "mapped", "shared", "pinned"), "in this process, in none of the sizes that are judged"),
    "children": ((), "in child processes that are not data workers"),
    "workers": (("workers",), "in the data workers"),
    "/dev/shm": (("shared",), "in /dev/shm, which other processes may use, too"),
    "reserved": (("device",), "held by the device's allocator beside the tensors"),
}


@dataclass(frozen=True, slots=True)
class GainLimits:
    """What of a gain is usual.

    Attributes:
        segment_bytes: CUDA's allocator takes 20 MiB at a time: one more segment is no growth.
        fewest_points: Of fewer nothing is said.
        kept_bytes: Freed memory that the C library keeps in any training of some minutes.
    """

    segment_bytes: int = 20 * MIB
    fewest_points: int = 6
    kept_bytes: int = 32 * MIB


_LIMITS = GainLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a total has gained beyond the judged sizes.

    Attributes:
        name: A key of `TOTALS`.
        bytes, steps: By how much, over how many steps.
        kept_bytes: How much of it is free memory that the C library keeps.
    """

    name: str
    bytes: float
    steps: int
    kept_bytes: float = 0.0

    @property
    def per_step(self) -> float:
        return self.bytes / self.steps

    def without_usual_kept(self) -> Gain:
        """What is left of it without the C library's free memory, unless that is more than a training usually gains."""
        return replace(self, bytes=self.bytes - self.kept_bytes) if self.kept_bytes <= _LIMITS.kept_bytes else self


def unexplained(totals: Mapping[str, Series], sizes: Mapping[str, Series], trends: Mapping[str, Trend]) -> list[Gain]:
    """What each total has gained over the later half of the run beyond the sizes judged to hold no leak.

    Args:
        totals: The readings of the totals, and "kept": what the C library keeps free.
        sizes, trends: The readings of the judged sizes, and the judgements.
    """
    gains = []
    for name, (parts, _) in TOTALS.items():
        points = (totals[name] if name in totals else sizes.get(name, Series())).points
        if not points:
            continue
        since = (points[0][0] + points[-1][0]) // 2
        grown, steps = _gained(points, since)
        judged = [part for part in parts if part in trends and trends[part].kind == "no leak"]
        grown -= sum(max(0.0, _gained(sizes[part].points, since)[0]) for part in judged)
        if grown > (_LIMITS.segment_bytes if name == "reserved" else 0):
            kept = _gained(totals["kept"].points, since)[0] if name == "process" and "kept" in totals else 0.0
            gains.append(Gain(name=name, bytes=grown, steps=steps, kept_bytes=min(grown, max(0.0, kept))))
    return gains


def sentence_of(gains: Sequence[Gain]) -> str:
    """The gains in words.

    >>> sentence_of([Gain(name="children", bytes=3 * MIB, steps=100)])
    "3.0 MiB grew that we can't attribute, in 100 steps: in child processes that are not data workers"
    >>> sentence_of([Gain(name="process", bytes=9 * MIB, steps=40, kept_bytes=9 * MIB)])
    'no leak is seen, but 9.0 MiB grew in 40 steps: free memory that the C library keeps (fragmentation)'
    """
    parts = []
    grown, steps = sum(gain.bytes for gain in gains), max(gain.steps for gain in gains)
    size = format_bytes(grown)
    if sum(gain.kept_bytes for gain in gains) > 0.9 * grown:
        free = "free memory that the C library keeps (fragmentation)"
        return f"no leak is seen, but {size} grew in {steps:,} steps: {free}"
    for gain in sorted(gains, key=lambda gain: -gain.bytes):
        part = f"{format_bytes(gain.bytes)} {TOTALS[gain.name][1]}" if len(gains) > 1 else TOTALS[gain.name][1]
        if gain.kept_bytes > 0.1 * gain.bytes:
            part += f" ({format_bytes(gain.kept_bytes)} of it free, kept by the C library: fragmentation)"
        parts.append(part)
    return f"{size} grew that we can't attribute, in {steps:,} steps: {', '.join(parts)}"


def kept_sentence(gain: Gain) -> str:
    """What the C library keeps.

    >>> kept_sentence(Gain(name="process", bytes=5 * MIB, steps=190, kept_bytes=5 * MIB))
    '5.0 MiB that were freed in the last 190 steps stay with the C library'
    """
    return f"{format_bytes(gain.kept_bytes)} that were freed in the last {gain.steps:,} steps stay with the C library"


def _gained(points: Sequence[Point], since: int) -> tuple[float, int]:
    """By how much the lower envelope has risen from this step on, over how many steps; 0 with too few readings."""
    part = [point for point in points if point[0] >= since]
    if len(part) < _LIMITS.fewest_points:
        return 0.0, 0
    edges = edges_of(part, 4)
    return edges[-1][1] - edges[0][1], edges[-1][0] - edges[0][0]
