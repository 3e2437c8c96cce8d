"""One row of the table of remedies, what it is chosen by, and whether what it takes away can be enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.telemetry.report import Change
from forgather_mem.units import MIB

# What a remedy changes about the training, in the order in which remedies are told
NOTHING, SPEED, NUMBERS = range(3)
ACTIVATIONS = "activations", "graph", "the batch"
_OF_PHASE = {"data": "the batch", "optimizer": "optimizer", "evaluate": "evaluation"}  # what a phase asks for
_CHANGES = {NOTHING: "", SPEED: "slower", NUMBERS: "changes the training"}


@dataclass(frozen=True, slots=True)
class RemedyThresholds:
    """What is worth a word, as set on the sets of benchmarks/results/ooms.md.

    Attributes:
        shortest: Tokens; shorter samples are not cut.
        most_parts: Of a batch: more would hardly be made, a guess.
        much_frac: Of what is in use: a variable that is worth a word.
        half_frac: What a type of half the size leaves: masks and numbers of tokens stay as they are.
        error_times: What a change leaves may be so many times as much as was estimated.
        to_torch_frac: Of a device, for torch, so that libraries beside it get the rest.
        of_device_frac, of_host_frac: That others have: a device one has to oneself, a machine with others on it.
        held_frac: Of what is in use, leaked, or held by one owner: in the scripts of a fourth stranger the owners that
            were causes held a fifth and more.
        own_bytes: What watching takes: up to 18.1 MiB of a data segment (benchmarks/results/own_memory_at_failure.md),
            13 of a control group, where two waiting processes are.
    """

    shortest: int = 16
    most_parts: int = 64
    much_frac: float = 0.05
    half_frac: float = 0.6
    error_times: float = 1.1
    to_torch_frac: float = 0.9
    of_device_frac: float = 0.1
    of_host_frac: float = 0.5
    held_frac: float = 0.1
    own_bytes: int = 20 * MIB


WHEN = RemedyThresholds()


class Remedy(NamedTuple):
    """One row.

    Attributes:
        where: Phases, or "callback" (the user's), "copy" or "generating" (one that does that), "library" (a library's
            callback), "/dev/shm".
        alters: What it changes about the training.
        of: What it offers in a case, the smallest change first; nothing where it does not apply.
        unplanned: Why no plan can tell how much it saves; empty (`PLANNED`) where one does.
        is_ladder: Whether each saves more than the one before, so that one of them is told.
        is_cause: Whether it says why memory ran out: then no ladder is told beside it.
        reduces: The parts of what is in use that it makes smaller; nothing where that can't be said.
        of_plan: The part of a plan that it makes smaller, where that is not one of these.
    """

    where: str
    alters: int
    of: Callable[[Failure], Iterable[Change]]
    unplanned: str
    is_ladder: bool = False
    is_cause: bool = False
    reduces: tuple[str, ...] = ()
    of_plan: str = ""

    def offers(self, failure: Failure) -> list[Change]:
        """The same with what it changes in the notes, without what is set already."""
        found, now = self.of(failure) if failure.place in self.where.split() else (), failure.settings.arguments
        return [
            replace(change, note="; ".join(filter(None, (_CHANGES[self.alters], change.note))) or None)
            for change in found
            if not change.set or any(str(now.get(name)) != str(value) for name, value in change.set.items())
        ]

    def may_be_enough(self, change: Change, failure: Failure) -> bool:
        """Whether the change takes away what was missing, and what this pass would still have asked for.

        By what the census has found; True where nobody knows.
        """
        if not failure.is_counted or not self.reduces:
            return True
        wanted = failure.found.requested_bytes or 0
        # A later one may fail, too
        missing = max(failure.least_missing_bytes, WHEN.much_frac * sum(failure.in_use.values()))
        of_phase = _OF_PHASE.get(failure.phase, ACTIVATIONS[0])
        now = {part: failure.in_use.get(part, 0) + wanted * (part == of_phase) for part in {*failure.in_use, of_phase}}
        to_come = now.get(ACTIVATIONS[0], 0) * (1 / failure.done_frac - 1)
        if failure.phase == "forward":  # beside it a backward pass has its gradient, and that of what is made of it
            to_come += 2 * wanted
        smaller = to_come * (ACTIVATIONS[0] in self.reduces)
        smaller += sum(size for part, size in now.items() if part.startswith(self.reduces))
        if any("checkpointing" in name for name in change.set):  # what one layer asks for it asks for again
            smaller -= 3 * wanted if failure.phase == "forward" else wanted
        return smaller * (1 - min(1, WHEN.error_times * _leaves(change, failure))) >= missing + to_come


def _leaves(change: Change, failure: Failure) -> float:
    """The share of what it makes smaller that is left, at least."""
    rows, length = change.set.get("per_device_train_batch_size"), change.in_script.get("max_length")
    if isinstance(rows, int):
        return rows / failure.settings.number("per_device_train_batch_size", failure.rows or rows)
    if isinstance(length, int):
        return length / (failure.length or length)
    return WHEN.half_frac if "dtype" in change.in_script else 0


def setting(note: str = "", **values: object) -> Change:
    """Arguments of the trainer's, as a user would write them.

    >>> setting(optim="sgd", save_only_model=True).text
    "optim='sgd', save_only_model=True"
    """
    text = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return Change(text=text, set=values, note=note)


def doing(text: str, note: str = "", **in_script: object) -> Change:
    return Change(text=text, in_script=in_script, note=note)
