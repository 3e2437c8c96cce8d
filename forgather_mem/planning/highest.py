"""The highest plan: whether what a training asks for matters shows by planning it with other answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from forgather_mem.errors import PlanError
from forgather_mem.planning.isolation.acts import Lines
from forgather_mem.planning.isolation.child import begun_in_a_child, in_a_child, notes_of
from forgather_mem.planning.loop.notes import Note
from forgather_mem.planning.pretending import warm_up
from forgather_mem.planning.result import PhasePlan, Plan
from forgather_mem.planning.stand_ins import MASKS, NUMBERS, StandIns, listed_lines
from forgather_mem.units import format_bytes


class Attempt(NamedTuple):
    """By a child."""

    plan: Plan | None
    problem: str
    answers: StandIns

    def score(self) -> tuple[int, int]:
        return (self.plan.peak_bytes if self.plan else -1, self.answers.operations)


def begun_highest_plan(made: Callable[[StandIns], Attempt]) -> Callable[[], Plan]:
    """The plan, each in a child, whose answers make it the highest; the first is begun.

    What it returns waits for it, and must be called: it raises `PlanError` where no answers make a plan.
    """
    warm_up()
    not_done: Lines = {}
    wait = begun_in_a_child(partial(made, StandIns()), not_done=not_done)

    return lambda: _highest(wait(), made, not_done)


def _highest(first: Attempt, made: Callable[[StandIns], Attempt], not_done: Lines) -> Plan:
    """Where other numbers and no condition leave all peaks as they are it is the first one; else each is tried."""
    best = first
    tried: set[str] = set()
    depends: dict[str, int] = {}
    masks_matter, all_end = True, True
    for number in range(1, 10):
        todo = [line for line in best.answers.lines() if line not in tried]
        if not todo:
            break
        other = {todo[-1]} if best.plan is None else set(todo) if number == 1 else {todo[0]}
        answers = StandIns(best.answers.otherwise ^ other, best.answers)
        told = in_a_child(partial(made, answers), not_done=not_done)
        best.answers.known.update(told.answers.known)
        if best.plan and told.plan:
            if number == 1 and _are_alike(told.plan.phases, best.plan.phases):
                masks_matter = False
                break
            masks_matter &= other != {MASKS} or told.plan.peak_bytes != best.plan.peak_bytes
            if told.plan.peak_bytes != best.plan.peak_bytes and len(other) == 1:
                depends[next(iter(other))] = min(told.plan.peak_bytes, best.plan.peak_bytes)
                all_end &= "at least" not in (told.plan.bound, best.plan.bound)
        if len(other) == 1:
            tried |= other
        if told.score() > best.score():
            best, tried = told, tried - {NUMBERS} | other
        elif best.plan is None:
            best = told
    if best.plan is None:
        raise PlanError("\n".join([first.problem, *notes_of(not_done, first.problem)]))
    if not masks_matter:
        best.answers.masks.clear()
    dependence = _dependence(depends, best.plan.peak_bytes, best.answers, all_end)
    plan = best.plan.with_notes([*best.answers.notes(), *dependence])
    return plan.with_notes(notes_of(not_done, "\n".join(plan.notes)))


def _are_alike(some: Sequence[PhasePlan], others: Sequence[PhasePlan]) -> bool:
    """Whether they take the same, but for a thousandth: with two answers a script took 148.4 and 148.4 MiB."""
    return [(row.step, row.phase) for row in some] == [(row.step, row.phase) for row in others] and all(
        1000 * abs(row.bytes - other.bytes) <= row.bytes for row, other in zip(some, others, strict=True)
    )


def _dependence(depends: dict[str, int], peak: int, answers: StandIns, all_end: bool) -> list[Note]:
    depends = {line: low for line, low in depends.items() if 1000 * (peak - low) > peak and line != MASKS}
    low, high = format_bytes(min(depends.values(), default=peak)), format_bytes(peak)
    lines = [*dict.fromkeys(one for line in depends for one in answers.lines().get(line, [line]))]
    ends = "of which the higher is told" if all_end else "as far as it is planned: not all plans come to the end"
    told = f"The peak depends on a value ({listed_lines(lines)}): {low} to {high}, {ends}."
    return [Note(told, "at most" if all_end else "at least")] if low != high else []
