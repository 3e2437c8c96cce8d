"""Does it pay to go on? An action that watches what comes of it, and stops when nothing does."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from forgather_mem.sample import Moment, Outcome, RunInfo, Sample
from forgather_mem.units import MIB, format_bytes, format_duration

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, float] = {}
TRIES = 3
STRETCH = 32
# A call has paid when this much stayed free: an absolute amount, and a share of what it freed.
KEPT_BYTES = MIB
KEPT_FRAC = 0.2


class Adaptive:
    """Does another action as long as that pays.

    After three calls in a row of which nothing stayed free (what they freed was taken again within three
    steps, or they freed nothing), only every 32nd is done; if that one is useless too, no more. One log line
    says why. A call that pays sets everything back.

    Args:
        action: `ClearCache`, `TrimHost` or `Collect`: something that is booked in the ledger.

    Raises:
        ValueError: for an action that is not booked.
    """

    def __init__(self, action: Any) -> None:
        if not getattr(action, "books", ""):
            raise ValueError(f"Adaptive({action!r}): give an action that is booked: ClearCache, TrimHost or Collect")
        self.action = action
        self.books: str = action.books
        self._start()

    def _start(self) -> None:
        self._calls = 0
        self._next_call = 0
        self._useless = 0
        self._last_step = -1
        self._learnt_step = -1
        self._off = False

    def begin(self, run: RunInfo) -> None:
        self._start()
        if hasattr(self.action, "begin"):
            self.action.begin(run)

    def end(self, run: RunInfo) -> None:
        if hasattr(self.action, "end"):
            self.action.end(run)

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        self._calls += 1
        self._learn(moment.run.outcome(self.books), moment.step)
        if self._off or self._calls < self._next_call:
            return NOTHING
        values: Mapping[str, float] = self.action(moment, sample)
        if values:
            self._last_step = moment.step
            self._next_call = self._calls + (STRETCH if self._useless >= TRIES else 1)
        return values

    def _learn(self, outcome: Outcome | None, step: int) -> None:
        """What the ledger says of our last call, once its next steps have shown."""
        if outcome is None or outcome.step != self._last_step or outcome.step == self._learnt_step:
            return
        self._learnt_step = outcome.step
        if pays(outcome):
            self._useless, self._next_call = 0, self._calls
            return
        self._useless += 1
        if self._useless == TRIES:
            self._next_call = self._calls + STRETCH
            logger.warning(
                "%s does not pay: the call at step %d took %s, freed %s, and %s of that was taken again; "
                "from now on only every %dth is done, and none when that is useless too",
                type(self.action).__name__,
                outcome.step,
                format_duration(outcome.time_s + outcome.next_step_excess_s),
                format_bytes(outcome.freed_bytes),
                format_bytes(outcome.retaken_bytes),
                STRETCH,
            )
        self._off = self._useless > TRIES


def pays(outcome: Outcome) -> bool:
    """Whether enough of what a call freed has stayed free."""
    kept_bytes = outcome.freed_bytes - outcome.retaken_bytes
    return kept_bytes >= KEPT_BYTES and kept_bytes >= KEPT_FRAC * outcome.freed_bytes
