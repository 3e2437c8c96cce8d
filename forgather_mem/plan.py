"""Which rules of one callback are looked at in which event? Compiled once a run; then integers are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from forgather_mem.sample import Moment, Sample, Work
from forgather_mem.triggers import Limit, Trigger

# In these events `state.global_step` still counts the steps before the one that is being made.
INSIDE_A_STEP = frozenset({"step_begin", "substep_end", "pre_optimizer_step", "optimizer_step"})
MAX_STRIKES = 3
MAX_STRETCH = 16
SHARE_RECORDS = 8
_NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Rule:
    """When `when` is due, do the works in `do`, in this order.

    Args:
        when: A trigger: `Every(...)`, `AtEvent(...)`, `Above(...)`.
        do: Probes and actions, or any callable `(moment, sample) -> mapping of name to number`.
        name: For messages; default: what it does and when.
        budget_frac: The share of the time that all of ours may take. Above it, this rule is looked at in every 2nd,
            4th, 8th or 16th of its steps only, until the share allows more. Default: always.

    >>> from forgather_mem.triggers import Every
    >>> Rule(when=Every(steps=0), do=[])
    Traceback (most recent call last):
    ...
    ValueError: Every(steps=0): a period is 1 step or more

    Raises:
        ValueError: for no works, a work that can't be called, a trigger that is none, or a budget that is no share.
    """

    when: Trigger
    do: Sequence[Work]
    name: str = ""
    budget_frac: float | None = None

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
        if self.budget_frac is not None and not 0 < self.budget_frac <= 1:
            raise ValueError(f"Rule(budget_frac={self.budget_frac}): give a share above 0 and at most 1")
        if self.budget_frac is not None and getattr(self.when, "steps", None) is None:
            raise ValueError(
                f"Rule(when={self.when!r}, budget_frac={self.budget_frac}): a budget stretches Every(steps=N)"
            )
        object.__setattr__(self, "do", tuple(works))
        if not self.name:
            done = "+".join(getattr(work, "__name__", type(work).__name__) for work in works)
            object.__setattr__(self, "name", f"{done} at {'/'.join(self.when.events)}")


class ArmedRule:
    """A rule in one run: its numbers read out once, and what it did so far."""

    __slots__ = (
        "armed",
        "budget_frac",
        "every_epochs",
        "every_steps",
        "limit",
        "name",
        "off",
        "stretch",
        "strikes",
        "urgent",
        "works",
    )  # fmt: skip

    def __init__(self, rule: Rule, stand_in: Callable[[Work], Work]) -> None:
        self.name = rule.name
        self.every_steps = rule.when.every_steps
        self.every_epochs = rule.when.every_epochs
        self.budget_frac = rule.budget_frac
        self.stretch = 1  # only each so many-th of its steps
        self.limit: Limit | None = rule.when.limit
        self.armed = True  # for a limit: the value has been below since it fired last
        self.strikes = 0
        self.off = False
        # With a number of their own those works that one moment calls once only
        self.works: list[tuple[Callable[[Moment, Sample], Mapping[str, float]], int, str]] = [
            (work, id(work) if getattr(work, "reading", None) is not None else 0, getattr(work, "books", ""))
            for work in map(stand_in, rule.do)
        ]
        urgent = [getattr(work, "is_urgent", None) for work, _, _ in self.works]
        self.urgent: list[Callable[[], bool]] = [is_urgent for is_urgent in urgent if is_urgent is not None]

    def keep_to_budget(self, share: float) -> None:
        """All of ours takes this share of the time: look more rarely, or more often again."""
        assert self.budget_frac is not None
        stretch = self.stretch
        while share > self.budget_frac and stretch < MAX_STRETCH:
            stretch, share = 2 * stretch, share / 2
        if stretch == self.stretch > 1 and share < self.budget_frac / 4:
            stretch //= 2
        self.every_steps, self.stretch = self.every_steps // self.stretch * stretch, stretch

    def is_usual(self, step: int) -> bool:
        """Whether this would be one of its steps if the budget left none out."""
        return not step % (self.every_steps // self.stretch)

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
        paced: Those of the rules that keep to a budget.
        urgent: What tells whether a step must be read, while steps are left out.
    """

    __slots__ = ("epochs", "event", "flushes", "offset", "paced", "period", "rules", "seen_step", "urgent")

    def __init__(self, event: str, rules: Sequence[ArmedRule], epoch: float | None) -> None:
        self.event = event
        self.rules = list(rules)
        self.paced = [rule for rule in self.rules if rule.budget_frac is not None]
        self.urgent: list[Callable[[], bool]] = []
        self._find_period()
        self.offset = 1 if event in INSIDE_A_STEP else 0
        self.flushes = False
        self.epochs = int((epoch or 0.0) + 1e-6)
        self.seen_step = -1

    def keep_to_budget(self, share: float) -> None:
        """All of ours takes this share of the time: look more rarely, or more often again."""
        for rule in self.paced:
            rule.keep_to_budget(share)
        self.urgent = [is_urgent for rule in self.paced if rule.stretch > 1 for is_urgent in rule.urgent]
        if self.paced:
            self._find_period()

    def _find_period(self) -> None:
        self.period = math.gcd(*(rule.every_steps for rule in self.rules)) or _NEVER


class OwnShare:
    """Which share of the time do we take? Known anew after every few records, and told to who keeps to a budget."""

    __slots__ = ("_all_s", "_num_records", "_own_s")

    def __init__(self) -> None:
        self._own_s = self._all_s = 0.0
        self._num_records = -1  # what is done once, at the beginning, tells nothing

    def took(self, own_s: float, all_s: float, members: Iterable[Mapping[str, Plan]]) -> None:
        """One record more: our own time since the last one, and all that has passed."""
        self._num_records += 1
        if self._num_records:
            self._own_s, self._all_s = self._own_s + own_s, self._all_s + all_s
        if self._num_records < SHARE_RECORDS or not self._all_s:
            return
        share = self._own_s / self._all_s
        self._num_records, self._own_s, self._all_s = 0, 0.0, 0.0
        for plans in members:
            for plan in plans.values():
                plan.keep_to_budget(share)


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


def settle_who_flushes(events: Iterable[str], members: Collection[Mapping[str, Plan]]) -> None:
    """The last of ours that looks at an event writes the record."""
    for event in events:
        hooking = [plans[event] for plans in members if event in plans and plans[event].rules]
        for plan in hooking:
            plan.flushes = plan is hooking[-1] and event not in INSIDE_A_STEP
