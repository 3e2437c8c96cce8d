"""Checks whether calling something repeatedly leaks memory, and finds the holder."""

from __future__ import annotations

from collections.abc import Callable

from forgather_mem.actions.collect import collect
from forgather_mem.actions.freeze import HeapHold
from forgather_mem.diagnose.leaks.heap_diff import CloserLook
from forgather_mem.diagnose.leaks.sizes import large_bytes, objects_bytes
from forgather_mem.growth.lower_envelope import Point, rate_of
from forgather_mem.units import format_bytes

_POINTS = 16
# Fraction of the growth implied by the rate that must really have occurred from first to last.
_LEAST_FRAC = 0.6


def growth_of_calls(call: Callable[[], object], *, calls: int, warm_up: int, max_bytes: float) -> str | None:
    """The message about a function that leaves more than `max_bytes` per call; None for one that does not.

    Raises:
        ValueError: for fewer than 32 calls, a warm-up below 0 or a size below 0.
    """
    if calls < 2 * _POINTS or warm_up < 0 or max_bytes < 0:
        given = f"assert_no_growth(calls={calls}, warm_up={warm_up}, max_bytes={max_bytes})"
        raise ValueError(f"{given}: give {2 * _POINTS} calls or more, and neither warm-up nor bytes below 0")
    for _ in range(warm_up):
        call()
    hold = HeapHold()
    hold.take()
    try:
        hold.renew()  # old objects are frozen, so that the collections below are cheap
        look = CloserLook(0)  # nothing is traced while it is measured
        points: list[Point] = []
        first = objects_bytes()
        for number in range(calls):
            call()
            if (number + 1) * _POINTS // calls != number * _POINTS // calls:
                collect()
                points.append((number + 1, large_bytes() + objects_bytes()))
    finally:
        hold.give_back()
    points = points[2:]
    small, rate = (objects_bytes() - first) / calls, rate_of(points).per_step
    grown, span = points[-1][1] - points[0][1], points[-1][0] - points[0][0]
    suspects = look.finish(calls, rate) if rate > max_bytes and grown >= _LEAST_FRAC * rate * span else None
    look.drop()
    if suspects is None:
        return None
    if not suspects or not suspects[0].allocated_at:
        look = CloserLook(calls, far=True, held=suspects[0].place if suspects else None)
        for _ in range(CloserLook.STEPS):
            call()
        suspects = look.finish(calls + CloserLook.STEPS, rate) or suspects
    # Small objects are of a usual size in what was measured; those of the holders are weighed
    weighed = sum(one.bytes_per_step for one in suspects if one.held_by)
    each = weighed if abs(weighed - rate) <= small else grown / span  # not each may leave as much, nor go on to
    if each <= max_bytes:
        return None
    lines = [f"each call leaves {format_bytes(each)} behind, on average of the last {span} of {calls}"]
    for suspect in suspects[:3]:
        told = suspect.reported()
        made = f"{suspect.line_is} at {suspect.allocated_at}: {suspect.source_line}" if suspect.allocated_at else ""
        held = f"held by {suspect.held_by}" if suspect.held_by else told.holder
        lines.append(", ".join(filter(None, (held, made))))
        cure = told.cure if suspect.full_bytes is None else f"a warm_up that fills it first: {suspect.bounded}"
        cure = f"{cure}; if some may stay, a warm_up that fills it" if cure == told.cure and suspect.count else cure
        lines += [f"  try: {cure}"] if cure else []
    return "\n".join(lines)
