"""The schedule of events: which rules of a callback are checked at which event, compiled once per run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from forgather_mem.telemetry.events import EVENTS_INSIDE_A_STEP
from forgather_mem.telemetry.guard import FailureGuard, Guarded
from forgather_mem.telemetry.plain_numbers import plain_numbers
from forgather_mem.telemetry.records import Begins, Moment, Sample, Work
from forgather_mem.telemetry.rule import Rule, name_of
from forgather_mem.telemetry.triggers import Crossing
from forgather_mem.units import format_share

if TYPE_CHECKING:
    from forgather_mem.telemetry.report import Action


class PaceLimits:
    """How a rule keeps to its budget. What comes of it is measured by benchmarks/callbacks.py.

    Attributes:
        most_stretch: Of its steps at least each so many-th is read.
        share_records: After so many records with readings the share of the time is looked at.
        comes_back_frac: Of the budget: more often again only with some room, or it would go to and fro.
        least_frac: Of the budget, for readings: what else of ours takes the time gets no cheaper by reading less.
        halved_records: After so many records readings come half as often, whatever they cost: 1,000,000 steps leave
            57,344 records (48 MB at 833 bytes), of which TensorBoard shows 1,000 a tag.
    """

    most_stretch = 64
    share_records = 8
    comes_back_frac = 0.75
    least_frac = 0.2
    halved_records = 8192


class ArmedWork(Guarded):
    """A work in one rule of one run: its members read out once, and its failures in a row.

    Args:
        named: What the rule names.
        work: The work of this run: what that has begun, or itself.

    Attributes:
        call: The work.
        once: A number for works that one moment calls once only, else 0.
        books: What of it the ledger keeps, else "".
        is_urgent: Its own, or None.
    """

    def __init__(self, named: Work | Begins, work: Work, name: str) -> None:
        self.call: Callable[[Moment, Sample], Mapping[str, float]] = work if _is_ours(work) else _checked(work)
        self.once = id(work) if getattr(named, "reading", None) is not None else 0
        self.books: Action | Literal[""] = getattr(named, "books", "")
        self.is_urgent: Callable[[], bool] | None = getattr(work, "is_urgent", None)
        super().__init__(name)


class ArmedRule(Guarded):
    """A rule in one run: its numbers, read once, and its state.

    Attributes:
        every_steps: Its period; `usual_steps`: without the budget.
    """

    def __init__(self, rule: Rule, begun: Callable[[Work | Begins], Work]) -> None:
        super().__init__(rule.name)
        self.usual_steps = self.every_steps = rule.when.every_steps
        self.every_epochs = rule.when.every_epochs
        self.budget_frac = rule.budget_frac
        self.has_run = False
        self.stretch = 1  # only every `stretch`-th of its steps
        self.longest_stretch = 1
        limit = rule.when.limit
        self.crossing = None if limit is None else Crossing(limit)
        alone = len(rule.do) == 1
        self.works = [
            ArmedWork(named, begun(named), self.name if alone else f"{self.name}, {name_of(named)}")
            for named in rule.do
        ]

    def keep_to_budget(self, fixed_share: float, reading_share: float, least: int = 1) -> None:
        """Look as rarely as the budget demands, but at every `PaceLimits.most_stretch`-th of its steps.

        What has not run yet does so once when it is due: a short run has its sizes, too.

        Args:
            fixed_share: The fraction of the time that all of ours takes apart from such readings.
            reading_share: The fraction that they take as rarely as they are taken now.
            least: Of its steps at most each so many-th, whatever the budget.
        """
        assert self.budget_frac is not None
        if not self.has_run:
            return
        each_share, stretch = reading_share * self.stretch, least
        while stretch < PaceLimits.most_stretch:
            budget_frac = self.budget_frac * (1.0 if stretch >= self.stretch else PaceLimits.comes_back_frac)
            if each_share / stretch <= max(budget_frac - fixed_share, PaceLimits.least_frac * budget_frac):
                break
            stretch *= 2
        self.every_steps, self.stretch = self.usual_steps * stretch, stretch
        if stretch > least:  # else it is the length of the run
            self.longest_stretch = max(self.longest_stretch, stretch)

    def text_of_longer_intervals(self) -> tuple[str, str]:
        """What was read less often, in a few words; and the sentence about it."""
        assert self.budget_frac is not None
        often, budget = self.usual_steps, format_share(self.budget_frac)
        what = f"{self.name} (every {often * self.longest_stretch:,} steps)"
        return what, f"{what}: at the rarest, instead of {often:,} (budget {budget} of the time for all our own code)"


class EventSchedule:
    """The rules of one callback for one event.

    Attributes:
        rules: None of them in a plan that only follows up what was booked.
        periods: The rules' step periods: a step that is a multiple of none has nothing due here.
        offset: 1 in events inside a step, where the trainer's count has not moved yet.
        flushes: Whether this callback is the last of ours in this event, so that it writes the record.
        epochs: Epochs ended so far, counted at `epoch_end` from the epoch in which we came in.
        seen_step: The step this plan has handled last; Forgather's trainer ends the last step of an epoch twice.
        paced: Those of the rules that keep to a budget.
        urgent: The works that tell whether a step must be read, while steps are left out, each with its rule.
    """

    def __init__(self, event: str, rules: Sequence[ArmedRule], epoch: float | None) -> None:
        self.event = event
        self.rules = list(rules)
        self.paced = [rule for rule in self.rules if rule.budget_frac is not None]
        self.urgent: list[tuple[ArmedRule, ArmedWork]] = []
        self._find_periods()
        self.offset = 1 if event in EVENTS_INSIDE_A_STEP else 0
        self.flushes = False
        self.epochs = int((epoch or 0.0) + 1e-6)
        self.seen_step = -1

    def keep_to_budget(self, fixed_share: float, reading_share: float, least: int = 1) -> None:
        """Adapt to the fractions of time that our code takes: check less often, or more often again."""
        for rule in self.paced:
            rule.keep_to_budget(fixed_share, reading_share, least)
        stretched = [rule for rule in self.paced if rule.stretch > 1]
        self.urgent = [(rule, work) for rule in stretched for work in rule.works if work.is_urgent is not None]
        self._find_periods()

    def _find_periods(self) -> None:
        self.periods = tuple(sorted({rule.every_steps for rule in self.rules}))


class OverheadMeter:
    """The fraction of time that our code takes: updated every few readings, passed on to rules with a budget."""

    def __init__(self) -> None:
        self._own_s = self._reading_s = self._all_s = 0.0
        self._num_readings = self._num_records = 0
        self._num_at_start = 2  # one-off work at the start, and the first writes, are not representative

    def took(self, own_s: float, reading_s: float, all_s: float, groups: Iterable[Mapping[str, EventSchedule]]) -> None:
        """Add a record: our own time since the last one, that of readings with a budget in it, and the total time."""
        if self._num_at_start:
            self._num_at_start -= 1
            return
        self._num_readings += reading_s > 0
        self._num_records += reading_s > 0
        self._own_s, self._reading_s, self._all_s = (
            self._own_s + own_s, self._reading_s + reading_s, self._all_s + all_s,
        )  # fmt: skip
        if self._num_readings < PaceLimits.share_records or not self._all_s:
            return
        reading_share = self._reading_s / self._all_s
        fixed_share = max(0.0, self._own_s / self._all_s - reading_share)
        self._num_readings, self._own_s, self._reading_s, self._all_s = 0, 0.0, 0.0, 0.0
        least = 1 << self._num_records // PaceLimits.halved_records
        for plans in groups:
            for plan in plans.values():
                plan.keep_to_budget(fixed_share, reading_share, least)


# After so many steps an event of a step is wanted again; what may want it before, each work with its rule.
NextWanted = tuple[float, Sequence[tuple[ArmedRule, ArmedWork]]]


def events_of(rules: Sequence[Rule]) -> frozenset[str]:
    """The events that a callback with these rules handles."""
    events = {event for rule in rules for event in rule.when.events}
    if any(getattr(work, "books", "") for rule in rules for work in rule.do):
        events |= {"step_begin", "step_end"}  # while the effect of an action is followed
    return frozenset(events)


def schedules_of(
    rules: Sequence[Rule], epoch: float | None, begun: Callable[[Work | Begins], Work], fence: FailureGuard
) -> dict[str, EventSchedule]:
    """One plan for each of `events_of(rules)`; a rule at two events keeps one state.

    `begun` returns the work of this run for what a rule names: one for all with the same reading.
    """
    by_event: dict[str, list[ArmedRule]] = {event: [] for event in events_of(rules)}
    for rule in rules:
        armed = fence.call(rule.name, ArmedRule, rule, begun)
        if armed is not None:
            for event in rule.when.events:
                by_event[event].append(armed)
    return {event: EventSchedule(event, armed_rules, epoch) for event, armed_rules in by_event.items()}


def assign_writer(events: Iterable[str], members: Collection[Mapping[str, EventSchedule]]) -> None:
    """Makes the last of our callbacks at an event write the record."""
    for event in events:
        hooking = [plans[event] for plans in members if event in plans and plans[event].rules]
        for plan in hooking:
            plan.flushes = plan is hooking[-1] and event not in EVENTS_INSIDE_A_STEP


def _is_ours(work: object) -> bool:
    """Whether its numbers need no check. `Adaptive` returns those of the action in it."""
    return str(getattr(getattr(work, "action", work), "__module__", "")).startswith("forgather_mem.")


def _checked(work: Work) -> Callable[[Moment, Sample], Mapping[str, float]]:
    return lambda moment, sample: plain_numbers(work(moment, sample))
