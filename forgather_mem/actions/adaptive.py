"""Repeats an action as long as it pays off, and stops it when it does not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forgather_mem.telemetry.records import NOTHING, Finding, Moment, Outcome, RunInfo, Sample, Work
from forgather_mem.units import MIB, format_bytes, format_duration

logger = logging.getLogger(__name__)

# A call has paid off if this much stayed free: an absolute amount, a fraction of what it freed, and an amount per
# second of its duration (the kernel moves some GiB per second; a busy processor makes calls look more expensive).
KEPT_BYTES = MIB
KEPT_BYTES_PER_S = 32 * MIB


@dataclass(frozen=True, slots=True)
class AdaptiveLimits:
    """When an action pays off, and how often one that does not is tried again. Measured by benchmarks/clearing.py.

    Attributes:
        tries: Useless calls in a row, after which most are skipped.
        stretch: Then every call of so many is made.
        stretched_tries: So often it is stretched again; then there are none.
        watched_steps: After so many steps freed memory counts as kept.
        kept_frac: Of what a call freed: if so much stayed free it has paid off.
    """

    tries: int = 3
    stretch: int = 32
    stretched_tries: int = 3
    watched_steps: int = 3
    kept_frac: float = 0.2


LIMITS = AdaptiveLimits()


class Adaptive:
    """Runs another action as long as that pays off.

    A clear or trim pays off if enough of what it freed is still free three steps later, or at the next call if that is
    sooner; a collection, if it found anything. After three useless calls in a row only every 32nd is made, then every
    64th and 128th, and if these are useless too, none. One log line gives the reason. A call that pays off resets
    everything.

    A cache that refills immediately may grow even larger if it is not cleared. So while clears are skipped, their
    schedule is restored as soon as more memory is unused than ever before a clear, and then it stays.

    Args:
        action: `ClearCache`, `TrimHost` or `Collect`: an action recorded in the ledger.

    Raises:
        ValueError: for an action that is not recorded in the ledger.
    """

    def __init__(self, action: Any) -> None:
        if not getattr(action, "books", ""):
            raise ValueError(f"Adaptive({action!r}): give an action that is booked: ClearCache, TrimHost or Collect")
        self.action = action
        self.books: str = action.books

    def begin(self, run: RunInfo) -> Work:
        return _Adapted(self.action, run)


class _Adapted:
    """The action in one run, with what came of its calls."""

    def __init__(self, named: Any, run: RunInfo) -> None:
        self.action = run.begun(named)
        self._named = named
        self._calls = 0
        self._next_call = 0
        self._num_useless = 0
        self._judged = True
        self._last_step = -1
        self._found = 0.0
        self._highest_unused_bytes = 0.0  # at a due call that was made
        self._holds_down = False  # more was unused as soon as calls were skipped

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        self._calls += 1
        if not self._judged and (self._is_due() or moment.step - self._last_step >= LIMITS.watched_steps):
            self._judge(moment)
        unused_bytes = self._unused_bytes()
        if not self._is_due():
            if unused_bytes < self._highest_unused_bytes * (1 + LIMITS.kept_frac) + KEPT_BYTES:
                return NOTHING
            self._holds_down, self._num_useless = True, 0
        values = self.action(moment, sample)
        if values:
            self._highest_unused_bytes = max(self._highest_unused_bytes, unused_bytes)
            self._last_step, self._judged = moment.step, False
            self._found = values.get("collect/objects", 0.0)
            self._wait()
        return values

    def _unused_bytes(self) -> float:
        measure = getattr(self._named, "unused_bytes", None)
        return (measure() if measure is not None else None) or 0.0

    def _is_due(self) -> bool:
        return self._calls >= self._next_call and self._num_useless < LIMITS.tries + LIMITS.stretched_tries

    def _wait(self) -> None:
        stretched = self._num_useless - LIMITS.tries
        self._next_call = self._calls + (1 if stretched < 0 else LIMITS.stretch << stretched)

    def _judge(self, moment: Moment) -> None:
        """Judge our last call by the ledger, as far as the steps since have shown."""
        outcome = moment.run.outcome(self._named.books)
        if outcome is None or outcome.step != self._last_step:
            return
        self._judged = True
        if self._found or pays(outcome) or (self._holds_down and outcome.freed_bytes >= KEPT_BYTES):
            self._num_useless, self._next_call = 0, self._calls
            return
        self._num_useless += 1
        if self._num_useless >= LIMITS.tries:
            self._wait()
        if self._num_useless == LIMITS.tries:
            self._tell(moment.run, outcome)

    def _tell(self, run: RunInfo, outcome: Outcome) -> None:
        text = (
            f"{type(self._named).__name__} does not pay off: the call at step {outcome.step} took "
            f"{format_duration(outcome.time_s)}, freed {format_bytes(outcome.freed_bytes)}, and "
            f"{format_bytes(outcome.retaken_bytes)} of that was allocated again; from now on only every "
            f"{LIMITS.stretch}nd call is made, then fewer, then none, unless one pays off"
        )
        logger.warning("%s", text)
        run.emit(Finding(kind="adaptive", step=outcome.step, text=text, data={"what": self._named.books}))


def pays(outcome: Outcome) -> bool:
    """Whether enough of what a clear or trim freed has stayed free.

    The excess time of the next step is ignored: it comes from reallocation, and one step says little.
    """
    kept_bytes = outcome.freed_bytes - outcome.retaken_bytes
    return kept_bytes >= max(KEPT_BYTES, LIMITS.kept_frac * outcome.freed_bytes, KEPT_BYTES_PER_S * outcome.time_s)
