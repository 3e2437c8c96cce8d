"""Advice after an out-of-memory error: remedies, first those that fit by a prediction, and what would not help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forgather_mem.diagnose.oom.batch_changes import checkpointing_name
from forgather_mem.diagnose.oom.batches import Batches, in_samples
from forgather_mem.diagnose.oom.context import RunSettings, StepUse
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.remedies import REMEDIES
from forgather_mem.diagnose.oom.remedy import Case, changes_training, is_enough
from forgather_mem.diagnose.oom.remedy_rules import is_fragmented
from forgather_mem.telemetry.report import Change
from forgather_mem.units import format_bytes

_NO_BATCH = {
    "startup": "a smaller batch (there is no batch yet)",
    "resume": "a smaller batch (there is no batch yet)",
    "optimizer": "a smaller batch (its memory is free by then)",
    "save": "a smaller batch (a checkpoint holds none)",
    "evaluate": "per_device_train_batch_size (evaluations have their own)",
    "generate": "per_device_train_batch_size (generation has its own)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What would have helped, best first.

    Attributes:
        changes: The first is the one to try first: those that fit by their prediction, then those without one.
        fit: What the sizes are based on, for `oom.fit`.
        no_help: What would not have helped, and why, for `oom.no_help`; None if there is nothing to say.
    """

    changes: tuple[Change, ...] = ()
    fit: str | None = None
    no_help: str | None = None


def advise(failure: Failure, settings: RunSettings, uses: Sequence[StepUse] = ()) -> Advice:
    """Changes that would have let this run finish.

    Sizes are predicted only from a fit or from known sizes; otherwise the change is named without one.

    Args:
        failure: Where memory ran out.
        settings: The run's settings.
        uses: Memory use of the steps before the failure, by the shapes of their batches.
    """
    if failure.phase == "data":  # the batch that could not be made is unknown
        failure, uses = replace(failure, batch=None), ()
    failure, uses = in_samples(failure, settings, uses)
    case = Case(failure, settings, Batches(failure, settings, uses))
    if case.place == "/dev/shm":
        return Advice(changes=tuple(_offered(case)), fit="not measured", no_help="a smaller batch.")
    offered = _offered(case)
    fitting = [change for change in offered if is_enough(change, failure)]
    # At startup they are about different causes: mapped data make no model smaller
    in_order = fitting if failure.phase == "startup" else sorted(fitting, key=changes_training)
    in_order.sort(key=lambda change: change.predicted_bytes is None)
    if failure.leak:  # memory that grows at each step fills any device: no prediction holds
        in_order = [replace(change, predicted_bytes=None, interval=None, binds=None) for change in in_order]
        in_order.insert(0, Change(text=failure.leak, note="memory that grows at each step fills any device"))
    limit = format_bytes(failure.capacity_bytes or 0)
    too_large = [
        f"{change.text} alone (about {format_bytes(change.predicted_bytes or 0)} of {limit})"
        for change in offered
        if change not in fitting
    ]
    no_help = ", ".join([*_no_help(case), *too_large])
    return Advice(changes=tuple(in_order), fit=_basis(case, in_order), no_help=f"{no_help}." if no_help else None)


def _offered(case: Case) -> list[Change]:
    """What the table offers, in its order, each text once."""
    found: dict[str, Change] = {}
    knows_cause = False
    for remedy in REMEDIES:
        if (remedy.is_batch and knows_cause) or (remedy.otherwise and found):
            continue
        for change in remedy.of(case):
            found.setdefault(change.text, change)
            knows_cause |= remedy.is_cause
    return list(found.values())


def _basis(case: Case, changes: Sequence[Change]) -> str:
    """What the numbers are based on."""
    failure = case.failure
    if failure.callback is None and (failure.phase not in _NO_BATCH or failure.phase == "evaluate"):
        return case.batches.basis()
    measured = any(change.predicted_bytes is not None for change in changes)
    return "from the sizes of its tensors; keeps 2 % free" if measured else "not measured"


def _no_help(case: Case) -> Iterator[str]:
    failure, settings, _ = case
    if failure.callback is not None:
        yield "a smaller batch (no pass is running)"
    elif failure.phase in _NO_BATCH:
        why = _NO_BATCH[failure.phase]
        yield why if settings.is_trainers else why.replace("per_device_train_batch_size", "a smaller training batch")
    elif settings.arguments.get(checkpointing_name(case)):
        yield f"{checkpointing_name(case)} (it is on)"
    elif failure.phase in ("forward", "backward") and not settings.can_checkpoint:
        yield f"{checkpointing_name(case)} (this model has none)"
    unused = failure.memory.reserved_unused_bytes
    if failure.where == "host":
        yield "empty_cache, expandable_segments (this is the host's memory)"
    elif unused is not None and not is_fragmented(case):
        what = f"only {format_bytes(unused)}" if unused else "nothing"
        yield f"empty_cache, expandable_segments ({what} to give back)"
