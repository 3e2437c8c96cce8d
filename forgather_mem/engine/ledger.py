"""The ledger: cost and yield of every collection, clear and trim.

The cost of a clear shows mostly in the steps after it, and the memory it freed may be reallocated immediately. So each
action is followed for some steps before its entry is closed.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from forgather_mem.system.allocator import reserved_bytes
from forgather_mem.system.procfs import own_memory
from forgather_mem.telemetry.records import Outcome

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import Action, LedgerRow


class FollowLimits:
    """How long the effect of an action is followed. What is judged by it: benchmarks/clearing.py.

    Attributes:
        retaken_steps: Memory that is allocated again within so many steps was not worth freeing.
        followed_steps: The next step, plus some that show the usual duration of a step.
        quiet_steps: So many steps without an action before them show what is usual.
    """

    retaken_steps = 3
    followed_steps = 5
    quiet_steps = 9


# The values returned by the actions, by kind: seconds, and bytes freed.
BOOKED: dict[Action, tuple[str, str]] = {
    "collect": ("collect/time_s", "collect/freed_bytes"),
    "clear": ("cache/time_s", "cache/freed_bytes"),
    "trim": ("trim/time_s", "trim/freed_bytes"),
}


def booked(row: LedgerRow, values: Mapping[str, float]) -> LedgerRow:
    """The row with one more action, which returned `values`."""
    time_name, freed_name = BOOKED[row.what]
    return replace(
        row,
        calls=row.calls + 1,
        time_s=row.time_s + values.get(time_name, 0.0),
        freed_bytes=row.freed_bytes + int(values.get(freed_name, 0.0)),
        objects=row.objects + int(values.get("collect/objects", 0.0)),
    )


class _Booking:
    """One action that is still being followed."""

    def __init__(self, outcome: Outcome, level: Level) -> None:
        self.outcome, self.level = outcome, level
        self.after_bytes = level() if outcome.freed_bytes > 0 else None
        self.num_steps = 0  # steps ended since
        self.next_s: float | None = None  # duration of the first of them
        self.sharing = 1  # number of actions before that step

    def look(self) -> None:
        """Update how much of the freed memory has been reallocated."""
        if self.num_steps <= FollowLimits.retaken_steps and self.after_bytes is not None:
            level_bytes = self.level()
            if level_bytes is not None:
                again = min(max(level_bytes - self.after_bytes, 0.0), self.outcome.freed_bytes)
                self.outcome = replace(self.outcome, retaken_bytes=max(self.outcome.retaken_bytes, again))


Level = Callable[[], float | None]


class Ledger:
    """The rows of one run, and the actions being followed.

    Attributes:
        following: Whether some action is still being followed, so that `follow` must be called.

    >>> ledger = Ledger()
    >>> ledger.book("clear", {"cache/time_s": 0.002, "cache/freed_bytes": 1024.0}, step=1)
    >>> row = ledger.rows()[0]
    >>> row.what, row.calls, row.freed_bytes, ledger.following
    ('clear', 1, 1024, True)
    """

    def __init__(self) -> None:
        self.following = False
        self._rows: dict[str, LedgerRow] = {}
        self._open: dict[str, _Booking] = {}
        self._levels: dict[str, Level] = {
            "collect": lambda: own_memory().anonymous_bytes, "clear": reserved_bytes, "trim": _TrimmedLevel(),
        }  # fmt: skip
        self._outcomes: dict[str, Outcome] = {}
        # Of steps without one of our actions before them
        self._quiet_s: deque[float] = deque(maxlen=FollowLimits.quiet_steps)
        self._begun: tuple[int, float] | None = None
        self._ended_step = -1

    def book(self, what: Action, values: Mapping[str, float], *, step: int = 0) -> None:
        """Add one action that returned `values`.

        Args:
            what: "collect", "clear" or "trim".
            values: Its values, under the action's own names.
            step: The optimizer step before it, if the following steps are reported to `follow`.
        """
        time_s, freed_bytes = (values.get(name, 0.0) for name in BOOKED[what])
        row = self._rows.get(what)
        if row is None:
            from forgather_mem.telemetry.report import LedgerRow

            row = LedgerRow(what=what)
        self._rows[what] = booked(row, values)
        self._close(what)
        outcome = Outcome(step=step, time_s=time_s, next_step_excess_s=0.0, freed_bytes=freed_bytes, retaken_bytes=0.0)
        self._open[what] = _Booking(outcome, self._levels[what])
        self.following = True

    def follow(self, event: str, step: int, now_s: float) -> None:
        """Report that a step begins ("step_begin") or ends ("step_end"); once or more per step, counted from 1.

        A step whose start was reported is timed; the time between steps (data, evaluation, checkpoints) is not.
        """
        if event == "step_begin" and (self._begun is None or self._begun[0] != step):
            self._begun = (step, now_s)
        elif event == "step_end" and step != self._ended_step:
            self._ended_step = step
            begun, self._begun = self._begun, None
            self._step_ended(step, now_s - begun[1] if begun is not None and begun[0] == step else None)

    def outcome(self, what: str) -> Outcome | None:
        """The outcome of the last action of this kind, as far as known by now; None before the first."""
        booking = self._open.get(what)
        return self._outcome_of(booking) if booking is not None and booking.num_steps else self._outcomes.get(what)

    def close(self) -> None:
        """The run is over: close everything still being followed."""
        for what in list(self._open):
            self._close(what)

    def calls(self, what: str) -> int:
        """The number of actions of this kind so far."""
        return self._rows[what].calls if what in self._rows else 0

    def rows(self) -> list[LedgerRow]:
        """The rows so far, in the order of their first action."""
        # A step may also be faster by chance: only the sum over all calls is meaningful
        return [replace(row, next_step_excess_s=max(0.0, row.next_step_excess_s)) for row in self._rows.values()]

    def _step_ended(self, step: int, took_s: float | None) -> None:
        before = [booking for booking in self._open.values() if booking.outcome.step == step - 1]
        if took_s is not None and all(booking.outcome.step < step - 1 for booking in self._open.values()):
            self._quiet_s.append(took_s)
        for what, booking in list(self._open.items()):
            if step <= booking.outcome.step:
                continue
            booking.num_steps += 1
            booking.look()
            if booking in before:
                booking.next_s, booking.sharing = took_s, len(before)
            if booking.num_steps >= FollowLimits.followed_steps:
                self._close(what)

    def _close(self, what: str) -> None:
        booking = self._open.pop(what, None)
        self.following = bool(self._open)
        if booking is None:
            return
        outcome = self._outcomes[what] = self._outcome_of(booking)
        row = self._rows[what]
        self._rows[what] = replace(
            row,
            next_step_excess_s=row.next_step_excess_s + outcome.next_step_excess_s,
            retaken_bytes=row.retaken_bytes + int(outcome.retaken_bytes),
        )

    def _outcome_of(self, booking: _Booking) -> Outcome:
        excess_s = 0.0
        if booking.next_s is not None and self._quiet_s:
            excess_s = (booking.next_s - statistics.median(self._quiet_s)) / booking.sharing
        return replace(booking.outcome, next_step_excess_s=excess_s)


class _TrimmedLevel:
    """Anonymous memory, minus what is at addresses that the process did not have before.

    `malloc_trim` releases pages and keeps their addresses. Memory at new addresses would have been allocated anyway: a
    leak, or a heap so fragmented that nothing fits into the trimmed parts. Only the difference of two levels
    means something.
    """

    def __init__(self) -> None:
        self._highest_bytes = 0

    def __call__(self) -> float:
        memory = own_memory()
        self._highest_bytes = max(self._highest_bytes, memory.address_bytes)
        return memory.anonymous_bytes - self._highest_bytes
