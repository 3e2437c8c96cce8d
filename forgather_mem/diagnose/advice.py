"""What would have fitted, and what would not have helped? Ranked changes with their predicted bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forgather_mem.diagnose.case import Failure, Settings
from forgather_mem.diagnose.step_use import StepUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing to change.

    Attributes:
        text: What to do, as a person would type it.
        set: The same by names of `TrainingArguments`, to be applied as it is; empty when it is not theirs.
        in_script: The same for what the script itself decides: "max_length", "dtype", ...
        predicted_bytes: The highest use with it, in the measure of `StepUse.phases`; None where nothing tells.
        note: What else to know; None for nothing.
    """

    text: str
    set: Mapping[str, Any] = field(default_factory=dict)
    in_script: Mapping[str, Any] = field(default_factory=dict)
    predicted_bytes: int | None = None
    note: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """An entry of the report's `advice`."""
        entry: dict[str, Any] = {"text": self.text, "set": dict(self.set), "predicted_bytes": self.predicted_bytes}
        if self.in_script:
            entry["in_script"] = dict(self.in_script)
        if self.note:
            entry["note"] = self.note
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What would have helped, best first.

    Attributes:
        changes: The first is the one to try.
        fit: What the sizes are taken from, for `oom.fit`; None when nothing was fitted.
        no_help: What would not have helped, and why, for `oom.no_help`; None when there is nothing to say.
    """

    changes: tuple[Change, ...] = ()
    fit: str | None = None
    no_help: str | None = None

    def as_dicts(self) -> list[dict[str, Any]]:
        """The report's `advice`; `oom.advice` is the `text` of each."""
        return [change.as_dict() for change in self.changes]


def advise(failure: Failure, settings: Settings, uses: Sequence[StepUse] = ()) -> Advice:
    """What would have made this run finish.

    Args:
        failure: Where memory ran out.
        settings: What the run was set to.
        uses: What its steps took, by the shapes of their batches.
    """
    return Advice()


def room(
    settings: Settings, uses: Sequence[StepUse], capacity_bytes: int, held_bytes: int | None = None
) -> Change | None:
    """The largest batch that would still fit in a run that went well; None without a basis to say so.

    Args:
        settings: What the run was set to.
        uses: What its steps took.
        capacity_bytes: All that there is, in the measure of `StepUse.phases`.
        held_bytes: Parameters, gradients and the optimizer's state, which no batch changes; None where not known.
    """
    return None
