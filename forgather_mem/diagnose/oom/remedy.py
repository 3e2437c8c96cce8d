"""A row of the table of remedies: when it applies, what it is called and sets, and what it would take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from forgather_mem.diagnose.oom.batches import KEPT_FREE_FRAC, Batches
from forgather_mem.diagnose.oom.context import RunSettings
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.messages import NCCL_SHM
from forgather_mem.telemetry.report import Change

PHASES = "startup data forward backward optimizer evaluate generate save resume other"
ANYWHERE = f"{PHASES} callback"
_ALTERS = "changes the training"
_KEPT_FREE_ON_HOST_FRAC = 0.05  # the C library can't use every gap that an optimizer step leaves
_JUMP = 4  # from this factor on, a change names the present value


class Case(NamedTuple):
    """What a remedy is judged by."""

    failure: Failure
    settings: RunSettings
    batches: Batches

    @property
    def place(self) -> str:
        """Of `Remedy.where`."""
        callback = self.failure.callback
        if self.failure.found.kind == NCCL_SHM:
            return "/dev/shm"
        if callback is None:
            return self.failure.phase
        if self.failure.phase == "generate" and callback.is_users:
            return "generating"
        return "library" if not callback.is_users else "callback" if callback.copied_bytes is None else "copy"


def _always(case: Case) -> bool:
    return True


def _unknown(case: Case) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One row. Texts and values may be functions of the case.

    Attributes:
        where: Phases, or "callback" (the user's), "copy" or "generating" (one that does that), "library" (a library's
            callback), "/dev/shm".
        applies: Whether it may help there.
        text: What to do, as the user would type it; default: what it sets.
        set, in_script: As in `Change`.
        note: What it costs.
        alters: What makes the training another one; empty if it stays the same.
        predict: Peak use with it; None if that is not known.
        changes: Instead of all of these, computes the changes.
        is_cause: It says why memory ran out: where it applies, a smaller batch helps nothing.
        is_batch: It is about the batch: left out after such a cause.
        otherwise: It is the last resort, where nothing else applies.
    """

    where: str
    applies: Callable[[Case], object] = _always
    text: str | Callable[[Case], str] = ""
    set: Mapping[str, object] | Callable[[Case], Mapping[str, object]] = field(default_factory=dict)
    in_script: Mapping[str, object] | Callable[[Case], Mapping[str, object]] = field(default_factory=dict)
    note: str | Callable[[Case], str] = ""
    alters: str = ""
    predict: Callable[[Case], int | None] = _unknown
    changes: Callable[[Case], Iterable[Change]] | None = None
    is_cause: bool = False
    is_batch: bool = False
    otherwise: bool = False

    def of(self, case: Case) -> Iterator[Change]:
        """What this row offers in this case."""
        if case.place not in self.where.split() or not self.applies(case):
            return
        if self.changes is not None:
            yield from self.changes(case)
            return
        values = self.set(case) if callable(self.set) else self.set
        note = self.note(case) if callable(self.note) else self.note
        text = self.text(case) if callable(self.text) else self.text
        yield Change(
            text=text or written(values),
            set=values,
            in_script=self.in_script(case) if callable(self.in_script) else self.in_script,
            note=joined(f"{_ALTERS} ({self.alters})" if self.alters else "", note),
            predicted_bytes=self.predict(case),
        )


def written(values: Mapping[str, object]) -> str:
    """Arguments as a user would write them.

    >>> written({"optim": "sgd", "save_only_model": True})
    "optim='sgd', save_only_model=True"
    """
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def joined(*notes: str) -> str | None:
    """The notes that say something; None without any."""
    return "; ".join(filter(None, notes)) or None


def changes_training(change: Change) -> bool:
    """Whether this change alters the training itself, as its note says."""
    return _ALTERS in (change.note or "")


def is_enough(change: Change, failure: Failure) -> bool:
    """Whether the predicted size fits; True without a prediction."""
    if change.predicted_bytes is None or failure.capacity_bytes is None:
        return True
    in_optimizer = failure.where == "host" and failure.phase == "optimizer"
    kept_free = _KEPT_FREE_ON_HOST_FRAC if in_optimizer else KEPT_FREE_FRAC
    return change.predicted_bytes <= (1 - kept_free) * failure.capacity_bytes


def jump(what: str, now: int, then: int) -> str:
    """The present value, if the change is a large one.

    >>> jump("batch", 256, 1), jump("batch", 8, 4)
    ('batch 256 -> 1', '')
    """
    return f"{what} {now:,} -> {then:,}" if now >= _JUMP * then else ""
