"""Repeats an action as long as it pays off, and ever more rarely when it does not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
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
        tries: Useless calls in a row, after which the interval is doubled, and again after each further one.
        watched_steps: After so many steps freed memory counts as kept.
        kept_frac: Of what a call freed: if so much stayed free it has paid off.
        objects: A collection that found so many has paid off.
        grown_frac: If what an action could free has grown by more, the interval is what it was.
    """

    tries: int = 2
    watched_steps: int = 3
    kept_frac: float = 0.2
    objects: int = 1000
    grown_frac: float = 0.1


LIMITS = AdaptiveLimits()


class Adaptive:
    """Runs another action as long as that pays off, and at most once a step.

    A clear or trim pays off if enough of what it freed is still free three steps later, or at the next call if that is
    sooner; a collection, if it freed 1 MiB or found 1,000 objects. After two useless calls in a row the interval is
    doubled, and again after each further one. One log line gives the reason. A call that pays off resets everything.

    What is left alone may grow: a cache that refills even larger, or objects that only a collection frees. So as soon
    as what the action could free is a tenth larger than it ever was at a call, the next one is made.

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
        self._levels: Callable[[], Sequence[float]] = getattr(named, "levels", tuple)
        self._calls = self._last_call = self._num_useless = 0
        self._judged = True
        self._last_step = -1
        self._found = 0.0
        self._highest: list[float] = []  # of the levels, at a due call that was made
        self._holds_down = False  # they were higher as soon as calls were skipped

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if moment.step == self._last_step:
            return NOTHING
        self._calls += 1
        if not self._judged and (self._is_due() or moment.step - self._last_step >= LIMITS.watched_steps):
            self._judge(moment)
        levels = self._levels()
        if not self._is_due():
            before = zip(levels, self._highest, strict=True)
            if not any(now > (1 + LIMITS.grown_frac) * max(highest, KEPT_BYTES) for now, highest in before):
                return NOTHING
            self._holds_down, self._num_useless = True, 0
        values = self.action(moment, sample)
        if values:
            self._highest = [*map(max, levels, self._highest or levels)]
            self._last_step, self._last_call, self._judged = moment.step, self._calls, False
            self._found = values.get("collect/objects", 0.0)
        return values

    def _is_due(self) -> bool:
        return self._calls >= self._last_call + (1 << max(0, self._num_useless - LIMITS.tries + 1))

    def _judge(self, moment: Moment) -> None:
        """Judge our last call by the ledger, as far as the steps since have shown."""
        outcome = moment.run.outcome(self._named.books)
        if outcome is None or outcome.step != self._last_step:
            return
        self._judged = True
        enough = outcome.freed_bytes >= KEPT_BYTES and (self._holds_down or self._named.books == "collect")
        has_paid = enough or self._found >= LIMITS.objects or pays(outcome)
        self._num_useless = 0 if has_paid else self._num_useless + 1
        if self._num_useless == LIMITS.tries:
            self._emit_unpaid(moment.run, outcome)

    def _emit_unpaid(self, run: RunInfo, outcome: Outcome) -> None:
        again = f", of which {format_bytes(outcome.retaken_bytes)} was allocated again" if outcome.retaken_bytes else ""
        text = (
            f"{type(self._named).__name__} does not pay off: the call at step {outcome.step} took "
            f"{format_duration(outcome.time_s)} and freed {format_bytes(outcome.freed_bytes)}{again}; from now on the "
            "interval is doubled after each call, until one pays off"
        )
        logger.warning("%s", text)
        run.emit(Finding(kind="adaptive", step=outcome.step, text=text, data={"what": self._named.books}))


def pays(outcome: Outcome) -> bool:
    """Whether enough of what a clear or trim freed has stayed free.

    The excess time of the next step is ignored: it comes from reallocation, and one step says little.
    """
    kept_bytes = outcome.freed_bytes - outcome.retaken_bytes
    return kept_bytes >= max(KEPT_BYTES, LIMITS.kept_frac * outcome.freed_bytes, KEPT_BYTES_PER_S * outcome.time_s)
