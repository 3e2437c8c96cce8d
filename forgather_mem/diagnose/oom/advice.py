"""Advice after an out-of-memory error: changes ranked by their predicted bytes, and what would not have helped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forgather_mem.diagnose.oom.allocator_changes import allocator_changes, is_in_shm, pinned_changes, shm_changes
from forgather_mem.diagnose.oom.batches import Batches, in_samples
from forgather_mem.diagnose.oom.causes import causes, variable_changes
from forgather_mem.diagnose.oom.changes import LENGTHS, changes_training, checkpointing_name, step_changes
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings, StepUse
from forgather_mem.diagnose.oom.phase_changes import BY_PHASE, array_changes, callback_changes
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
        changes: The first is the one to try first.
        fit: What the sizes are based on, for `oom.fit`.
        no_help: What would not have helped, and why, for `oom.no_help`; None if there is nothing to say.
    """

    changes: tuple[Change, ...] = ()
    fit: str | None = None
    no_help: str | None = None


def advise(failure: FailureContext, settings: RunSettings, uses: Sequence[StepUse] = ()) -> Advice:
    """Changes that would have let this run finish.

    Sizes are predicted only from a fit or from known sizes; otherwise the change is named without one.

    >>> settings = RunSettings(arguments={"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1})
    >>> advise(FailureContext(where="device", phase="forward", step=1, rows=8, length=512), settings).changes[0].text
    'per_device_train_batch_size=2, gradient_accumulation_steps=4'

    Args:
        failure: Where memory ran out.
        settings: The run's settings.
        uses: Memory use of the steps before the failure, by the shapes of their batches.
    """
    if is_in_shm(failure):
        return Advice(changes=tuple(shm_changes(failure)), fit="not measured", no_help="a smaller batch.")
    if failure.phase == "data":  # the batch that could not be made is unknown
        failure, uses = replace(failure, rows=None, length=None), ()
    whole = failure
    failure, uses = in_samples(failure, settings, uses)
    batches = Batches(failure, settings, uses)
    if failure.callback is not None:
        changes = callback_changes(failure, failure.callback, batches)
    else:
        found, no_batch = causes(failure, batches)
        changes = [*array_changes(failure), *found]
        if failure.phase in BY_PHASE or not no_batch:
            by_phase = BY_PHASE.get(failure.phase, step_changes)(failure, settings, batches)
            changes += [change for change in by_phase if change not in changes]
        changes += [change for change in variable_changes(failure) if change not in changes]
    if failure.rows != whole.rows and failure.rows != whole.length:  # the length of no text
        changes = [change for change in changes if not {*change.set, *change.in_script} & {*LENGTHS}]
    once: dict[str, Change] = {}  # several variables may lead to one thing
    for change in changes:
        once.setdefault(change.text, change)
    changes = list(once.values())
    changes[1:1] = allocator_changes(failure, settings)
    changes[:0] = pinned_changes(failure, settings)
    changes, too_large = _sifted(changes, failure)
    if failure.leak:
        changes.insert(0, Change(text=failure.leak, note="memory that grows at each step fills any device"))
    no_help = ", ".join([*_no_help(failure, settings), *too_large])
    return Advice(
        changes=tuple(changes), fit=_basis(failure, changes, batches), no_help=f"{no_help}." if no_help else None
    )


def _sifted(changes: Sequence[Change], failure: FailureContext) -> tuple[list[Change], list[str]]:
    """Those that may be enough, the ones that leave the training as it is first; of the rest what is to be said."""
    capacity = failure.capacity_bytes
    # Below the limit, but within its margin, is still worth a try
    may_fit = [change for change in changes if capacity is None or (change.predicted_bytes or 0) <= capacity]
    limit = format_bytes(capacity or 0)
    too_large = [
        f"{change.text} alone (about {format_bytes(change.predicted_bytes or 0)} of {limit})"
        for change in changes
        if change not in may_fit
    ]
    # At startup they are about different causes: mapped data make no model smaller
    in_order = may_fit if failure.phase == "startup" else sorted(may_fit, key=changes_training)
    return in_order, too_large


def _basis(failure: FailureContext, changes: Sequence[Change], batches: Batches) -> str:
    """What the numbers are based on."""
    if failure.callback is None and (failure.phase not in _NO_BATCH or failure.phase == "evaluate"):
        return batches.basis()
    measured = any(change.predicted_bytes is not None for change in changes)
    return "from the sizes of its tensors; keeps 2 % free" if measured else "not measured"


def _no_help(failure: FailureContext, settings: RunSettings) -> Iterator[str]:
    if failure.callback is not None:
        yield "a smaller batch (no pass is running)"
    elif failure.phase in _NO_BATCH:
        why = _NO_BATCH[failure.phase]
        yield why if settings.is_trainers else why.replace("per_device_train_batch_size", "a smaller training batch")
    elif settings.arguments.get(checkpointing_name(settings)):
        yield f"{checkpointing_name(settings)} (it is on)"
    elif failure.phase in ("forward", "backward") and not settings.can_checkpoint and not failure.is_graph:
        yield f"{checkpointing_name(settings)} (this model has none)"
    if failure.where == "host":
        yield "empty_cache, expandable_segments (this is the host's memory)"
    elif failure.reserved_unused_bytes is not None and not any(allocator_changes(failure, settings)):
        unused = failure.reserved_unused_bytes
        what = f"only {format_bytes(unused)}" if unused else "nothing"
        yield f"empty_cache, expandable_segments ({what} to give back)"
