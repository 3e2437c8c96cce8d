"""The verdict on the trends of a run, with its confidence.

"No leak" is said of the sizes that were judged. A total (what the process has resident, its other children, /dev/shm,
what the device's allocator holds) that gains more than they do is told as such: it may be a leak in no size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forgather_mem.diagnose.leaks.growing import FLOORS, LEAK, label_of, whole_of
from forgather_mem.diagnose.leaks.sizes import USUAL_BLOCK_BYTES
from forgather_mem.growth.lower_envelope import Point, edges_of
from forgather_mem.growth.trend import GROWTH, Series, Trend
from forgather_mem.system.headroom import device_room, host_rooms
from forgather_mem.telemetry.report import LeakReport, Sure
from forgather_mem.units import format_bytes

if TYPE_CHECKING:
    from forgather_mem.diagnose.leaks.suspects import Suspect

_RARE = ("objects", "workers")
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


def verdict_of(
    trends: Mapping[str, Trend],
    suspects: list[Suspect],
    step: int,
    gains: Sequence[Gain] = (),
    *,
    searched: bool = True,
) -> LeakReport:
    """The verdict.

    Args:
        trends: The trend of each size.
        suspects: The candidates, most likely first.
        step: Number of finished steps.
        gains: What has grown beyond the judged sizes: "no leak" is said only if that is within its bound.
        searched: Whether holders were looked for: if not, what grows may be Python's as well as C's.
    """
    growing = {name: trend for name, trend in trends.items() if trend.kind == "leak"}
    if not growing:
        return _slowing(trends, suspects) or _no_leak(trends, gains, suspects)
    trend = whole_of(growing)
    of_workers = "workers" in growing and 2 * growing["workers"].per_step > trend.per_step
    suspects = [one for one in suspects if one.bytes_per_step >= LEAK.suspect_frac * trend.per_step]
    # The largest first, as the rates of the whole run have it, in the order of the look where they are about alike
    suspects.sort(key=lambda one: (one.last, -round(5 * one.bytes_per_step / trend.per_step)))
    explained = sum(one.bytes_per_step for one in suspects if one.held_by or one.allocated_at)
    bounded = next((one for one in suspects[:1] if one.bounded), None)
    beside = None
    if bounded is not None:
        whole = "" if bounded.full_bytes is None else f", {format_bytes(bounded.full_bytes)} in all"
        beside = f"{bounded.bounded}{whole}: more than is left"
        if not _is_full_before(bounded, "device" in growing):
            why = f"{label_of(growing)} grows {format_bytes(trend.per_step)} a step, but {bounded.bounded}{whole}"
            leak = _undecided("bounded", why, trend.per_step, trend.since_step, suspects, _where(growing, [bounded]))
            is_all = all(one.full_bytes is not None for one in suspects)
            return replace(leak, verdict="no leak") if is_all and explained > LEAK.sure_frac * trend.per_step else leak
    # Items are counted, a rate is of stairs or of a run whose rate has changed, and Python's small objects are
    # estimated: by arenas of a MiB, or as of a usual size. A quarter is a guess. A third: two leaks of floats and small
    # objects were told as +18 to +50 %; half where all is estimated: small tuples, +55 %
    most_off = trend.per_step / (4 if {"mapped", "objects"}.isdisjoint(growing) else 3 if "native" in growing else 2)
    # Where only the number of small objects is known one takes 16 to 512 bytes
    most = 512 / USUAL_BLOCK_BYTES * trend.per_step if growing.keys() == {"objects"} else trend.per_step + most_off
    if trend.per_step - most_off <= explained <= most:
        low, high, since = min(trend.low, explained), max(trend.high, explained), suspects[0].since_step
        trend = replace(trend, per_step=explained, low=low, high=high, since_step=max(0, since) or trend.since_step)
    sure: Sure = "not yet"
    rest = trend.per_step - explained
    is_told = rest <= (1 - LEAK.sure_frac) * trend.per_step
    is_measured = not growing.keys() <= {"mapped", "objects"}  # the number of small objects is known, not their sizes
    if step - trend.since_step >= LEAK.sure_steps:
        sure = "yes" if is_told and LEAK.explains(explained, trend.per_step) else "likely"
    where = "workers" if of_workers else _where(growing, suspects)
    if not suspects and where == "native":
        from forgather_mem.diagnose.leaks.suspects import made_suspect

        where, suspects = "host", [made_suspect(None, trend.per_step)] if searched else []
    is_open = suspects and suspects[0].held_by and is_measured and not is_told
    beside = f"{format_bytes(rest)} of it in no holder that is known" if is_open else beside
    return LeakReport(
        verdict="leak", where=where, suspects=tuple(one.reported() for one in suspects), sure=sure, judged=True,
        why=beside, bytes_per_step=trend.per_step, bytes_per_step_low=trend.low, bytes_per_step_high=trend.high,
        since_step=trend.since_step,
    )  # fmt: skip


def _undecided(
    kind: str, why: str, high: float, since: int = 0, suspects: Sequence[Suspect] = (), where: str | None = None
) -> LeakReport:
    """Growth of at most `high` bytes a step of which it is not known whether it goes on."""
    told = tuple(one.reported() for one in suspects)
    return LeakReport(
        where=where, bytes_per_step_high=high, since_step=since, suspects=told, judged=True, why=why, undecided=kind
    )


def _is_full_before(holder: Suspect, on_device: bool) -> bool:
    """Whether memory will be full before a holder that has a limit has reached it."""
    room = device_room() if on_device else next(iter(host_rooms()), None)
    if room is None or holder.full_bytes is None:
        return False
    return room.num_ranks * (holder.full_bytes - (holder.bytes or 0)) > room.lasting_bytes


def with_copied(leak: LeakReport, suspect: Suspect, since_step: int) -> LeakReport:
    """The verdict with what data workers copy of shared pages: growth, but no leak, since it ends with these pages."""
    told = suspect.reported()
    if leak.verdict == "leak":
        return replace(leak, suspects=(*leak.suspects, told))
    why = suspect.bounded or ""
    if leak.verdict == "no leak" and not leak.undecided:
        why += f". Nothing else grows (under {format_bytes(leak.bytes_per_step_high)} a step)"
        why += f"; {leak.why}" if leak.why else ""
    elif leak.why:
        return replace(leak, why=f"{leak.why}. {why[0].upper()}{why[1:]}", suspects=(*leak.suspects, told))
    copied = _undecided("copied pages", why, suspect.bytes_per_step, since_step, [suspect], "workers")
    return replace(copied, verdict="copied pages" if leak.verdict == "no leak" else leak.verdict)


def _where(growing: Mapping[str, Trend], suspects: list[Suspect]) -> str:
    if "device" in growing:
        return "device"
    if len(growing) == 1 and (only := next(iter(growing))) in ("workers", "shared"):
        return only
    if suspects:
        return suspects[0].where
    return "python" if "objects" in growing and "native" not in growing else "native"


def _slowing(trends: Mapping[str, Trend], suspects: Sequence[Suspect]) -> LeakReport | None:
    """What grows ever less may fill up: not yet a leak, and not free of leaks either."""
    slowing = {name: trend for name, trend in trends.items() if trend.kind == "slowing"}
    if not slowing:
        return None
    whole = whole_of(slowing)
    first, last = format_bytes(whole.high), format_bytes(whole.low)
    why = f"grows, slowing down: {label_of(slowing)} {first} a step in the first third, {last} in the last"
    return _grows("slowing", why, whole.high, slowing, suspects)


def _too_early(trends: Mapping[str, Trend], suspects: Sequence[Suspect], high: float) -> LeakReport:
    """Of too few steps it is told what has risen in them, if that would be no "no leak"."""
    rising = {name: trend for name, trend in trends.items() if name not in _RARE and trend.per_step > MOST_PER_STEP}
    if not rising:
        return LeakReport(bytes_per_step_high=high, judged=True)
    rate = whole_of(rising).per_step
    why = f"{label_of(rising)} grew {format_bytes(rate)} a step over {whole_of(rising).steps:,} steps"
    return _grows("early", why, max(high, rate), rising, suspects)


def _grows(kind: str, why: str, high: float, growing: Mapping[str, Trend], suspects: Sequence[Suspect]) -> LeakReport:
    """Growth of these sizes that is no leak yet, with who holds it, if that is known."""
    held = f", held by {suspects[0].held_by}" if suspects and suspects[0].held_by else ""
    return _undecided(kind, why + held, high, whole_of(growing).since_step, suspects, _where(growing, list(suspects)))


def _no_leak(trends: Mapping[str, Trend], gains: Sequence[Gain], suspects: Sequence[Suspect]) -> LeakReport:
    known = [trend for trend in trends.values() if trend.kind == "no leak"]
    # Sizes that are read rarely (objects, workers) may have too few readings: the others are enough
    open_ = any(trend.kind != "no leak" for name, trend in trends.items() if name not in _RARE or trend.high)
    high = max((trend.high for name, trend in trends.items() if name not in FLOORS), default=0.0)
    if open_ or not known:
        steps = max((trend.steps for trend in trends.values() if trend.kind == "not enough data"), default=0)
        if steps < LEAK.enough_steps:
            return _too_early(trends, suspects, high)
        return _undecided("uneven", f"memory rose too unevenly over {steps:,} steps to say whether it leaks", high)
    bound = max(high, MOST_PER_STEP)
    # What the C library keeps is left out, unless it is more than a training usually gains
    rest = [replace(one, bytes=one.bytes - one.kept_bytes * (one.kept_bytes <= LEAK.kept_bytes)) for one in gains]
    over = [gain for gain, left in zip(gains, rest, strict=True) if left.per_step > bound]
    if over:
        size = round(sum(gain.bytes for gain in over))
        return replace(_undecided("unexplained", sentence_of(over), high), unexplained_bytes=size)
    kept = "; ".join(kept_sentence(gain) for gain in gains if gain.per_step > bound)
    high = max(high, *(left.per_step for left in rest), 0.0)
    return LeakReport(verdict="no leak", bytes_per_step_high=high, sure="yes", judged=True, why=kept or None)


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
        if grown > (LEAK.segment_bytes if name == "reserved" else 0):
            kept = _gained(totals["kept"].points, since)[0] if name == "process" and "kept" in totals else 0.0
            gains.append(Gain(name=name, bytes=grown, steps=steps, kept_bytes=min(grown, max(0.0, kept))))
    return gains


def sentence_of(gains: Sequence[Gain]) -> str:
    """The gains in words.

    >>> sentence_of([Gain(name="children", bytes=3 << 20, steps=100)])
    "3.0 MiB grew that we can't attribute, in 100 steps: in child processes that are not data workers"
    >>> sentence_of([Gain(name="process", bytes=9 << 20, steps=40, kept_bytes=9 << 20)])[-65:]
    'judged (9.0 MiB of it free, kept by the C library: fragmentation)'
    """
    parts = []
    grown, steps = sum(gain.bytes for gain in gains), max(gain.steps for gain in gains)
    size = format_bytes(grown)
    for gain in sorted(gains, key=lambda gain: -gain.bytes):
        part = f"{format_bytes(gain.bytes)} {TOTALS[gain.name][1]}" if len(gains) > 1 else TOTALS[gain.name][1]
        if gain.kept_bytes > 0.1 * gain.bytes:
            part += f" ({format_bytes(gain.kept_bytes)} of it free, kept by the C library: fragmentation)"
        parts.append(part)
    return f"{size} grew that we can't attribute, in {steps:,} steps: {', '.join(parts)}"


def kept_sentence(gain: Gain) -> str:
    """What the C library keeps.

    >>> kept_sentence(Gain(name="process", bytes=5 << 20, steps=190, kept_bytes=5 << 20))
    '5.0 MiB that were freed in the last 190 steps stay with the C library'
    """
    return f"{format_bytes(gain.kept_bytes)} that were freed in the last {gain.steps:,} steps stay with the C library"


def _gained(points: Sequence[Point], since: int) -> tuple[float, int]:
    """By how much the lower envelope has risen from this step on, over how many steps; 0 with too few readings."""
    part = [point for point in points if point[0] >= since]
    if len(part) < LEAK.fewest_gained:
        return 0.0, 0
    edges = edges_of(part, 4)
    return edges[-1][1] - edges[0][1], edges[-1][0] - edges[0][0]
