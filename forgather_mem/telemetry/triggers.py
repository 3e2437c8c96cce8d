"""Triggers: when a rule is due, at every N steps or epochs, at an event, or when a value crosses a limit.

A trigger is a value: the engine reads its fields once at the start of a run and then compares integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from forgather_mem.errors import did_you_mean
from forgather_mem.telemetry.events import EVENTS
from forgather_mem.telemetry.metrics import check_name
from forgather_mem.units import is_number_text, parse_bytes, parse_share

__all__ = ["Above", "AtEvent", "Below", "Every"]

# How a limit is written, by the end of its name
_LIMITS = {"_bytes": "a size such as '2GiB'", "_frac": "a share such as '90%'", "_s": "seconds such as 2.5"}
# A value must move back by this fraction of its limit before it can cross it again.
REARM_FRAC = 0.05


class Trigger:
    """What the engine reads of a trigger; what one does not say is as here.

    Attributes:
        events: Event names without "on_", at which to check.
        every_steps: Due if the step is a multiple of this; 1 for always.
        every_epochs: Due if the number of finished epochs is a multiple of this; 0 if epochs don't matter.
        limit: A limit that must be crossed, or None.
    """

    __slots__ = ()
    events: tuple[str, ...]
    every_steps: int = 1
    every_epochs: int = 0
    limit: Limit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A sample's value rises above `value`, or falls below it (`is_lower`); rearmed once it is back at `rearm`."""

    name: str
    value: float
    rearm: float
    is_lower: bool = False


class Crossing:
    """Tells when a value has just crossed a limit: once, until it has gone back.

    >>> crossing = Crossing(Below("device/headroom_bytes", 100).limit)
    >>> [crossing.crosses(value) for value in (200, 90, 80, 104, 90, 105, 90)]
    [False, True, False, False, False, False, True]
    """

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._armed = True  # it has been on the good side since it last crossed

    def crosses(self, value: float | None) -> bool:
        """Whether it has just crossed the limit; None is no reading."""
        limit = self.limit
        if value is None:
            return False
        if value >= limit.rearm if limit.is_lower else value <= limit.rearm:
            self._armed = True
        if self._armed and (value < limit.value if limit.is_lower else value > limit.value):
            self._armed = False
            return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Every(Trigger):
    """Due every `steps` optimizer steps, or every `epochs` epochs.

    Steps are optimizer steps, not micro-batches: `state.global_step` is a multiple of `steps`. Events inside a step
    (`pre_optimizer_step`, ...) belong to the step in progress. Epochs are counted at `epoch_end`; a resumed run
    continues counting, and a last epoch cut short by `max_steps` counts.

    >>> Every(steps=100).events, Every(epochs=2).events
    (('step_end',), ('epoch_end',))
    >>> Every(steps=0)
    Traceback (most recent call last):
    ...
    ValueError: Every(steps=0): a period is 1 step or more

    Raises:
        ValueError: for a period that is below 1 or not an integer, both or neither period, or an unknown event.
    """

    steps: int | None = None
    epochs: int | None = None
    at: str | None = None
    events: tuple[str, ...] = field(init=False, repr=False)
    every_steps: int = field(init=False, repr=False)
    every_epochs: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"Every(steps={self.steps}, epochs={self.epochs}): give either steps or epochs, not both")
        check_period("Every", "steps", "step", self.steps)
        check_period("Every", "epochs", "epoch", self.epochs)
        if self.epochs is not None and self.at not in (None, "epoch_end", "on_epoch_end"):
            raise ValueError(f"Every(epochs={self.epochs}, at={self.at!r}): epochs are counted at epoch_end only")
        at = self.at or ("step_end" if self.steps is not None else "epoch_end")
        object.__setattr__(self, "events", (event_name(at),))
        object.__setattr__(self, "every_steps", self.steps or 1)
        object.__setattr__(self, "every_epochs", self.epochs or 0)


@dataclass(frozen=True, slots=True, init=False)
class AtEvent(Trigger):
    """Due at each of the named events, written with or without "on_".

    >>> AtEvent("on_evaluate", "save").events
    ('evaluate', 'save')
    >>> AtEvent("step_finish")
    Traceback (most recent call last):
    ...
    ValueError: there is no event 'step_finish'; the events are: init_end, train_begin, ...

    Raises:
        ValueError: for an unknown event, or none.
    """

    events: tuple[str, ...]

    def __init__(self, *events: str) -> None:
        if not events:
            raise ValueError("AtEvent(): name one event or more, for example AtEvent('evaluate')")
        object.__setattr__(self, "events", tuple(event_name(event) for event in events))


@dataclass(frozen=True, slots=True, init=False)
class _Crossing(Trigger):
    """What `Above` and `Below` have in common."""

    name: str
    limit: Limit
    events: tuple[str, ...]
    side: ClassVar[str]

    def __init__(
        self, name: str, limit: float | str, *, at: str = "step_end", rearm: float | str | None = None
    ) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "limit", _limit(self.side, name, limit, rearm))
        object.__setattr__(self, "events", (event_name(at),))


class Above(_Crossing):
    """Due when a sample's value has just risen above a limit.

    It fires once, and again only after the value has been at or below `rearm` (default: 95 % of the limit), so that a
    value that stays high does not fire at every step. A value that is read more rarely counts as it was read last.

    Args:
        name: A sample name, e.g. "device/reserved_frac" (see docs/metrics.md).
        limit: In the sample's own unit (bytes, seconds, fraction), or as text: "90%", "2GiB".
        at: The event at which to check.
        rearm: Same units as `limit`.

    Raises:
        ValueError: for a misspelt name, an unknown event, a limit that is not a number, or a fraction above 1.
    """

    __slots__ = ()
    side = "above"


class Below(_Crossing):
    """Due when a sample's value has just fallen below a limit, as `Above` is when it has risen above one.

    It fires once, and again only after the value has been at or above `rearm` (default: 105 % of the limit).

    >>> Below("device/headroom_bytes", "1GiB").limit.rearm / 2**30
    1.05
    """

    __slots__ = ()
    side = "below"


def _limit(side: str, name: str, limit: float | str, rearm: float | str | None) -> Limit:
    check_name(name)
    is_lower = side == "below"
    value = read_limit(name, limit)
    usual = value + abs(value) * (REARM_FRAC if is_lower else -REARM_FRAC)
    back = usual if rearm is None else read_limit(name, rearm)
    if back < value if is_lower else back > value:
        trigger = side.capitalize()
        raise ValueError(f"{trigger}({name!r}, {limit!r}, rearm={rearm!r}): rearm must not be {side} the limit")
    return Limit(name=name, value=value, rearm=back, is_lower=is_lower)


def event_name(event: str) -> str:
    """The event's name without "on_".

    Raises:
        ValueError: for an event that no trainer fires; lists those that exist.
    """
    name = event.removeprefix("on_") if isinstance(event, str) else event
    if name not in EVENTS:
        hint = did_you_mean(str(name), EVENTS)
        known = "the events are: " + ", ".join(EVENTS)
        raise ValueError(f"there is no event {event!r}; {known}" + (f"; {hint}" if hint else ""))
    return name


def check_period(owner: str, parameter: str, unit: str, period: int | None, *, needed: bool = False) -> None:
    """Refuse a period that is not an integer of 1 or more; None means "not by this" and passes unless `needed`.

    Raises:
        ValueError: with the owner, the parameter and the value.
    """
    if period is None and not needed:
        return
    if isinstance(period, bool) or not isinstance(period, int):
        raise ValueError(f"{owner}({parameter}={period!r}): a period is a whole number of {unit}s, 1 or more")
    if period < 1:
        raise ValueError(f"{owner}({parameter}={period!r}): a period is 1 {unit} or more")


def check_clears(owner: str, empty_cache_at: str, empty_cache_freq: int) -> None:
    """Refuse anything but each so many steps or epochs.

    Raises:
        ValueError: with the owner, the parameter and the value.
    """
    if empty_cache_at not in ("epoch", "step"):
        raise ValueError(f"{owner}(empty_cache_at={empty_cache_at!r}): the cache is cleared at 'epoch' or 'step'")
    check_period(owner, "empty_cache_freq", empty_cache_at, empty_cache_freq, needed=True)


def check_seconds(owner: str, **seconds: float) -> None:
    """Refuse anything but numbers above 0.

    Raises:
        ValueError: with the owner, the parameter and the value.
    """
    for name, value in seconds.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{owner}({name}={value!r}): give seconds above 0")


def check_share(owner: str, **shares: float) -> None:
    """Refuse anything but fractions above 0.

    Raises:
        ValueError: with the owner, the parameter and the value.
    """
    for name, value in shares.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise ValueError(f"{owner}({name}={value!r}): give a share above 0 and at most 1")


def read_limit(name: str, limit: float | str) -> float:
    """A limit as a number in the sample's own unit.

    >>> read_limit("host/limit_used_frac", "90%"), read_limit("host/rss_bytes", "2GiB")
    (0.9, 2147483648.0)

    Raises:
        ValueError: for anything but a finite number, a fraction above 1, percent of no share, or a value below 0.
    """
    if isinstance(limit, str) and name.endswith("_bytes") and "%" not in limit:
        value = float(parse_bytes(limit))
    elif isinstance(limit, str) and (name.endswith("_frac") or is_number_text(limit)):
        value = parse_share(limit)
    elif isinstance(limit, bool) or not isinstance(limit, int | float):
        wanted = next((how for end, how in _LIMITS.items() if name.endswith(end)), "a number such as 20")
        raise ValueError(f"limit {limit!r} of {name!r}: write {wanted}")
    else:
        value = float(limit)
    if not math.isfinite(value):
        raise ValueError(f"limit {limit!r} of {name!r}: the limit must be finite")
    if value < 0 and name.endswith(("_bytes", "_frac")):
        raise ValueError(f"limit {limit!r} of {name!r}: a limit is 0 or more")
    if name.endswith("_frac") and value > 1:
        raise ValueError(f"limit {limit!r} of {name!r}: a share is 1 at most; write 0.92 or '92%' for 92 %")
    return value
