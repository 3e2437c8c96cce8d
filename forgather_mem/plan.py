"""Which rules of one callback are looked at in which event? Compiled once a run; then integers are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from forgather_mem.sample import Moment, Sample, Work
from forgather_mem.triggers import Limit, Trigger

# In these events `state.global_step` still counts the steps before the one that is being made.
INSIDE_A_STEP = frozenset({"step_begin", "substep_end", "pre_optimizer_step", "optimizer_step"})
MAX_STRIKES = 3
_NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Rule:
    """When `when` is due, do the works in `do`, in this order.

    Args:
        when: A trigger: `Every(...)`, `AtEvent(...)`, `Above(...)`.
        do: Probes and actions, or any callable `(moment, sample) -> mapping of name to number`.
        name: For messages; default: what it does and when.

    >>> from forgather_mem.triggers import Every
    >>> Rule(when=Every(steps=0), do=[])
    Traceback (most recent call last):
    ...
    ValueError: Every(steps=0): a period is 1 step or more

    Raises:
        ValueError: for no works, a work that can't be called, or a trigger that is none.
    """

    when: Trigger
    do: Sequence[Work]
    name: str = ""

    def __post_init__(self) -> None:
        if not hasattr(self.when, "events"):
            raise ValueError(f"Rule(when={self.when!r}): give a trigger: Every(...), AtEvent(...) or Above(...)")
        works = [self.do] if callable(self.do) else list(self.do)
        if not works:
            raise ValueError(f"Rule(when={self.when!r}, do=[]): name one probe or action, or more")
        for work in works:
            if isinstance(work, type):
                raise ValueError(f"Rule(do=[... {work.__name__} ...]): this is a class; write {work.__name__}()")
            if not callable(work):
                raise ValueError(f"Rule(do=[... {work!r} ...]): a probe or an action is called; this can't be")
        object.__setattr__(self, "do", tuple(works))
        if not self.name:
            done = "+".join(getattr(work, "__name__", type(work).__name__) for work in works)
            object.__setattr__(self, "name", f"{done} at {'/'.join(self.when.events)}")


class ArmedRule:
    """A rule in one run: its numbers read out once, and what it did so far."""

    __slots__ = ("armed", "every_epochs", "every_steps", "limit", "name", "off", "strikes", "works")

    def __init__(self, rule: Rule, stand_in: Callable[[Work], Work]) -> None:
        self.name = rule.name
        self.every_steps = rule.when.every_steps
        self.every_epochs = rule.when.every_epochs
        self.limit: Limit | None = rule.when.limit
        self.armed = True  # for a limit: the value has been below since it fired last
        self.strikes = 0
        self.off = False
        # With a number of their own those works that one moment calls once only
        self.works: list[tuple[Callable[[Moment, Sample], Mapping[str, float]], int, str]] = [
            (work, id(work) if getattr(work, "reading", None) is not None else 0, getattr(work, "books", ""))
            for work in map(stand_in, rule.do)
        ]

    def crosses(self, value: float | None) -> bool:
        """Whether the value has just risen above the limit."""
        limit = self.limit
        if limit is None or value is None:
            return False
        if value <= limit.rearm:
            self.armed = True
        if self.armed and value > limit.above:
            self.armed = False
            return True
        return False


class Plan:
    """The rules of one callback for one event.

    Attributes:
        rules: None of them in a plan that only follows up what was booked.
        period: Greatest common divisor of the rules' step periods: a step that is no multiple of it has
            nothing due here.
        offset: 1 in events inside a step, where the trainer's count has not moved yet.
        flushes: Whether this callback is the last of ours in this event, so that it writes the record.
        epochs: Epochs ended so far, counted at `epoch_end` from the epoch in which we came in.
        seen_step: The step this plan has handled last; Forgather's trainer ends the last step of an epoch twice.
    """

    __slots__ = ("epochs", "event", "flushes", "offset", "period", "rules", "seen_step")

    def __init__(self, event: str, rules: Sequence[ArmedRule], epoch: float | None) -> None:
        self.event = event
        self.rules = list(rules)
        self.period = math.gcd(*(rule.every_steps for rule in self.rules)) or _NEVER
        self.offset = 1 if event in INSIDE_A_STEP else 0
        self.flushes = False
        self.epochs = int((epoch or 0.0) + 1e-6)
        self.seen_step = -1


def events_of(rules: Sequence[Rule]) -> frozenset[str]:
    """The events in which a callback with these rules has something to do."""
    events = {event for rule in rules for event in rule.when.events}
    if any(getattr(work, "books", "") for rule in rules for work in rule.do):
        events |= {"step_begin", "step_end"}  # for as long as something that was booked is followed
    return frozenset(events)


def plans_of(rules: Sequence[Rule], epoch: float | None, stand_in: Callable[[Work], Work]) -> dict[str, Plan]:
    """One plan for each of `events_of(rules)`; a rule at two events keeps one state.

    `stand_in` gives the work that is called in a work's place: one for all that give the same reading.
    """
    by_event: dict[str, list[ArmedRule]] = {event: [] for event in events_of(rules)}
    for rule in rules:
        armed = ArmedRule(rule, stand_in)
        for event in rule.when.events:
            by_event[event].append(armed)
    return {event: Plan(event, armed_rules, epoch) for event, armed_rules in by_event.items()}
