"""Rules: a trigger, and the probes and actions that are called when it is due."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeGuard, TypeVarTuple

from forgather_mem.telemetry.records import Begins, RunInfo, Work
from forgather_mem.telemetry.triggers import Trigger, check_share

Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class Rule:
    """Runs the works in `do`, in this order, when `when` is due.

    Args:
        when: A trigger: `Every(...)`, `AtEvent(...)`, `Above(...)`.
        do: Probes and actions: any callable `(moment, sample) -> mapping of name to number`, or what has a method
            `begin(run)` that returns such a callable for one training.
        name: Used in messages; default: what it does and when.
        budget_frac: The fraction of the time that our code may take in total. Above it, this rule is checked only at
            every 2nd, 4th, ... or 64th of its steps, until the overhead is lower again. With a budget a rule also runs
            half as often after every 8,192 records. Default: no budget.

    >>> from forgather_mem.telemetry.triggers import Every
    >>> Rule(when=Every(steps=0), do=[])
    Traceback (most recent call last):
    ...
    ValueError: Every(steps=0): a period is 1 step or more

    Raises:
        ValueError: for no works, a work that can't be called, an invalid trigger, or a budget that is not a fraction.
    """

    when: Trigger
    do: Sequence[Work | Begins]
    name: str = ""
    budget_frac: float | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.when, "events"):
            raise ValueError(f"Rule(when={self.when!r}): give a trigger: Every(...), AtEvent(...) or Above(...)")
        works = [self.do] if _is_work(self.do) else list(self.do)
        if not works:
            raise ValueError(f"Rule(when={self.when!r}, do=[]): name one probe or action, or more")
        for work in works:
            if isinstance(work, type):
                raise ValueError(f"Rule(do=[... {work.__name__} ...]): this is a class; write {work.__name__}()")
            if not _is_work(work):
                raise ValueError(f"Rule(do=[... {work!r} ...]): a probe or an action is called; this can't be")
        if self.budget_frac is not None:
            check_share("Rule", budget_frac=self.budget_frac)
        if self.budget_frac is not None and getattr(self.when, "steps", None) is None:
            raise ValueError(f"Rule(when={self.when!r}, budget_frac={self.budget_frac}): it stretches Every(steps=N)")
        object.__setattr__(self, "do", tuple(works))
        if not self.name:
            done = "+".join(map(name_of, works))
            object.__setattr__(self, "name", f"{done} at {'/'.join(self.when.events)}")


class EachRun:
    """Settings alone, whose work is made anew for each run: `make(run, ...)` with these arguments.

    Attributes:
        reading, books: Those of `make`, see `FullWork`.
    """

    def __init__(self, make: Callable[[RunInfo, *Ts], Work], *arguments: *Ts) -> None:
        self._make: Callable[..., Work] = make
        self._arguments = arguments
        self.__name__ = name_of(make)
        self.reading: Hashable = getattr(make, "reading", None)
        self.books: str = getattr(make, "books", "")

    def begin(self, run: RunInfo) -> Work:
        return self._make(run, *self._arguments)


def _is_work(work: object) -> TypeGuard[Work | Begins]:
    return callable(work) or callable(getattr(work, "begin", None))


def name_of(work: object) -> str:
    """The name of a work in messages: that of its class, or of the function."""
    return str(getattr(work, "__name__", type(work).__name__))
