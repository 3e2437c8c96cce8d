"""What did giving memory back cost, and what did it bring? Every collection, clear and trim is booked here.

What a clear costs shows mostly in the steps after it, and what it freed may be taken again at once. So
each booking is followed for some steps before it counts as closed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from forgather_mem.probes.allocator import current_allocator, gauge
from forgather_mem.probes.procfs import own_memory
from forgather_mem.sample import Outcome
from forgather_mem.units import format_bytes, format_duration

RETAKEN_WITHIN_STEPS = 3
_USUAL_STEPS = 4  # the steps after the next one, whose median is what a step usually takes


@dataclass(slots=True)
class Row:
    """One kind of action, summed over a run.

    Attributes:
        what: "collect", "clear" or "trim".
        calls: How often.
        time_s: Seconds inside the calls.
        next_step_excess_s: Seconds that the steps right after took longer than the usual step.
        freed_bytes: Given back by the calls.
        retaken_bytes: Of these, allocated again within `RETAKEN_WITHIN_STEPS` steps.
    """

    what: str
    calls: int = 0
    time_s: float = 0.0
    next_step_excess_s: float = 0.0
    freed_bytes: int = 0
    retaken_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As the report's `ledger` has it."""
        return asdict(self)


class _Booking:
    """One action that is still followed."""

    __slots__ = ("after_bytes", "ended_s", "excess_counts", "freed_bytes", "level", "retaken_bytes", "step", "time_s")

    def __init__(self, step: int, now_s: float, time_s: float, freed_bytes: float, level: Level) -> None:
        self.step = step
        self.time_s = time_s
        self.freed_bytes = freed_bytes
        self.level = level
        self.after_bytes = level() if freed_bytes > 0 else None
        self.retaken_bytes = 0.0
        self.excess_counts = True
        self.ended_s = [now_s]  # when the action and then the steps after it ended


Level = Callable[[], float | None]


class Ledger:
    """The rows of one run, and the actions that are followed.

    >>> ledger = Ledger()
    >>> ledger.book("clear", {"cache/time_s": 0.002, "cache/freed_bytes": 1024.0}, step=1, now_s=0.0)
    >>> row = ledger.rows()[0]
    >>> row.what, row.calls, row.freed_bytes, ledger.following
    ('clear', 1, 1024, True)
    """

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._open: dict[str, _Booking] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._usual_s: float | None = None
        self._step = -1

    @property
    def following(self) -> bool:
        """Whether some action is still followed, so that `step_ended` must be called."""
        return bool(self._open)

    def book(
        self,
        what: str,
        values: Mapping[str, float],
        *,
        step: int = 0,
        now_s: float | None = None,
        epoch_ended: bool = False,
    ) -> None:
        """Add one action that returned `values`.

        Args:
            what: "collect", "clear" or "trim".
            values: Under the action's own names.
            step: The optimizer step it belongs to, when the steps after it are followed.
            now_s: When it ended, by `time.perf_counter`; default: now.
            epoch_ended: It stands between two epochs, where the next step is longer for other reasons.
        """
        time_name, freed_name, level = _BOOKED[what]
        time_s, freed_bytes = values.get(time_name, 0.0), values.get(freed_name, 0.0)
        row = self._rows.setdefault(what, Row(what))
        row.calls += 1
        row.time_s += time_s
        row.freed_bytes += int(freed_bytes)
        earlier = self._open.pop(what, None)
        if earlier is not None:
            self._close(what, earlier)
        booking = self._open[what] = _Booking(
            step, time.perf_counter() if now_s is None else now_s, time_s, freed_bytes, level
        )
        booking.excess_counts = not epoch_ended

    def step_ended(self, step: int, now_s: float) -> None:
        """A step has ended; call it once or more for each step while `following`."""
        if step == self._step:
            return
        self._step = step
        for what, booking in list(self._open.items()):
            if step <= booking.step:
                continue
            booking.ended_s.append(now_s)
            if step - booking.step <= RETAKEN_WITHIN_STEPS and booking.after_bytes is not None:
                level_bytes = booking.level()
                if level_bytes is not None:
                    again = min(max(level_bytes - booking.after_bytes, 0.0), booking.freed_bytes)
                    booking.retaken_bytes = max(booking.retaken_bytes, again)
            if len(booking.ended_s) > 1 + _USUAL_STEPS:
                self._close(what, self._open.pop(what))

    def outcome(self, what: str) -> Outcome | None:
        """What the last action of this kind came to; None while it is followed and no earlier one is closed."""
        return self._outcomes.get(what)

    def close(self) -> None:
        """The run is over: close what is still followed."""
        for what in list(self._open):
            self._close(what, self._open.pop(what))

    def calls(self, what: str) -> int:
        """How often this has been done so far."""
        row = self._rows.get(what)
        return row.calls if row else 0

    def rows(self) -> list[Row]:
        """The rows booked so far, in the order of their first booking."""
        return list(self._rows.values())

    def table(self) -> list[list[str]]:
        """The rows for people, the header first."""
        lines = [["what", "calls", "time", "next steps longer by", "freed", "taken again"]]
        for row in self._rows.values():
            times = [format_duration(row.time_s), format_duration(row.next_step_excess_s)]
            sizes = [format_bytes(row.freed_bytes), format_bytes(row.retaken_bytes)]
            lines.append([row.what, f"{row.calls:,}", *times, *sizes])
        return lines

    def _close(self, what: str, booking: _Booking) -> None:
        times = [later - earlier for earlier, later in zip(booking.ended_s, booking.ended_s[1:], strict=False)]
        if len(times) > 2:
            self._usual_s = statistics.median(times[1:])
        excess_s = 0.0
        if times and self._usual_s is not None and booking.excess_counts:
            excess_s = max(0.0, times[0] - self._usual_s)
        row = self._rows[what]
        row.next_step_excess_s += excess_s
        row.retaken_bytes += int(booking.retaken_bytes)
        self._outcomes[what] = Outcome(
            step=booking.step,
            time_s=booking.time_s,
            next_step_excess_s=excess_s,
            freed_bytes=booking.freed_bytes,
            retaken_bytes=booking.retaken_bytes,
        )


def _host_bytes() -> float | None:
    return own_memory().anonymous_bytes


def _reserved_bytes() -> float | None:
    allocator = current_allocator()
    return gauge(allocator.stats(), "reserved_bytes") if allocator is not None else None


# What the actions return, by what they do: seconds, bytes freed, and where these bytes are counted.
_BOOKED: dict[str, tuple[str, str, Level]] = {
    "collect": ("collect/time_s", "collect/freed_bytes", _host_bytes),
    "clear": ("cache/time_s", "cache/freed_bytes", _reserved_bytes),
    "trim": ("trim/time_s", "trim/freed_bytes", _host_bytes),
}
