"""Advice after an out-of-memory error: changes ranked by their predicted bytes, and what would not have helped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forgather_mem.diagnose.oom.allocator_changes import allocator_changes, is_in_shm, pinned_changes, shm_changes
from forgather_mem.diagnose.oom.batches import KEPT_FREE_FRAC, Batches, in_samples
from forgather_mem.diagnose.oom.causes import causes, variable_changes
from forgather_mem.diagnose.oom.changes import LENGTHS, changes_training, checkpointing_name, step_changes
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings, StepUse
from forgather_mem.diagnose.oom.phase_changes import BY_PHASE, array_changes, callback_changes
from forgather_mem.diagnose.oom.shapes.fit import PhaseFit, binding, fits_of, largest_that_fits
from forgather_mem.diagnose.oom.shapes.pass_peak import PEAK_OF_SAVED
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.report import Change
from forgather_mem.units import format_bytes

_LIMITED_BY = {
    "data": "loading data",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
}
# A fitted line is not trusted beyond this multiple of the largest batch seen.
_FARTHEST = 4
_FEWEST_ALIKE = 5
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


def room(
    settings: RunSettings,
    uses: Sequence[StepUse],
    capacity_bytes: int,
    held_bytes: int | None = None,
    *,
    unseen_bytes: int = 0,
    uncounted_bytes: int = 0,
    least_bytes: int = 0,
    between_bytes: int | None = None,
    saved_bytes: int | None = None,
    limit: str | None = None,
    retains: bool = False,
) -> Change | None:
    """The largest batch that would still fit in a successful run; None without data to predict it.

    With batches of different shapes, a line is fitted and the longest samples seen are assumed. With batches of one
    shape, everything but `held_bytes` is assumed to grow with the batch: the real growth is slower, so the batch named
    fits at least. Nothing is predicted beyond four times the largest batch seen.

    Args:
        settings: The run's settings.
        uses: Memory use of its steps.
        capacity_bytes: Total capacity, in the same measure as `StepUse.phases`.
        held_bytes: Parameters, gradients and optimizer state, which don't depend on the batch; None if unknown.
        unseen_bytes: How far the run's peak was above the highest phase of any step; assumed to grow with the batch.
        uncounted_bytes: What the reported peak counts and the capacity does not, as pages of files.
        least_bytes: The reported peak: a larger batch takes no less.
        between_bytes: In use between two steps. With batches of one shape, what a step adds to it surely grows with the
            batch: what is predicted follows that, whether a batch fits is still judged by the assumption above.
        saved_bytes: What a micro-batch saves for its backward pass, if known; that pass adds about as much at the peak.
        limit: What is full then, for people.
        retains: As for `fits_of`: whether freed memory still counts.
    """
    training = [use for use in uses if any(phase in use.phases for phase in ("forward", "backward"))]
    rows = int(settings.arguments.get("per_device_train_batch_size") or 0)
    if not training or rows < 1:
        return None
    length = max((use.width for use in training if use.width is not None), default=None)
    fits = {name: fit for name, fit in fits_of(training, retains=retains).items() if name in STEP_PHASES}
    one_shape = not any(name != "optimizer" and fit.per_token_bytes > 0 for name, fit in fits.items())
    if one_shape:
        fits = dict(_lines_from_one_shape(training, held_bytes))
    if not fits:
        return None
    most = (1 - KEPT_FREE_FRAC) * capacity_bytes

    def use_of(count: int, size: str) -> float:
        bound = binding(fits, count, length)
        assert bound is not None
        return float(getattr(bound[1], size)) + unseen_bytes * max(1.0, count * (length or 1) / seen_tokens)

    seen_tokens = max(fit.most_tokens for fit in fits.values())
    farthest = int(_FARTHEST * seen_tokens // (length or 1))
    count = largest_that_fits(lambda count: use_of(count, "high") <= most, farthest)
    bound = binding(fits, count, length)
    if count <= rows or bound is None:
        return None
    likely = use_of(count, "bytes")
    if one_shape and between_bytes is not None:
        highest = unseen_bytes + max(max(use.phases.values(), default=0) for use in training)
        least = min(likely, between_bytes + max(0, highest - between_bytes) * count / rows)
        if retains and saved_bytes is not None:
            likely = min(likely, highest + PEAK_OF_SAVED * saved_bytes * (count / rows - 1))
        elif retains:
            # What is in use between two steps has been of batches, too, in part. The bounds of the growth are several
            # times apart: their geometric mean has the smallest worst error
            growth = math.sqrt(max(0, least - highest) * max(0, likely - highest))
            likely = min(likely, highest + growth)
        else:
            likely = least
    by = " and ".join(filter(None, (_LIMITED_BY[bound[0]], limit)))
    text = f"batch {count}{' or more' * (count == farthest)} would still fit (now {rows}), limited by {by}"
    return Change(
        text=text,
        set={"per_device_train_batch_size": count},
        predicted_bytes=max(least_bytes, round(likely) + uncounted_bytes),
        interval=(count, largest_that_fits(lambda count: use_of(count, "low") <= most, farthest)),
        binds=bound[0],
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


def _lines_from_one_shape(uses: Sequence[StepUse], held_bytes: int | None) -> Iterator[tuple[str, PhaseFit]]:
    """Lines from the use without a batch to the use with this one."""
    shapes = {(use.rows, use.width) for use in uses}
    later = sorted(uses, key=lambda use: use.step)[1:]  # in the first step the optimizer had no state
    if held_bytes is None or len(shapes) != 1 or len(later) < _FEWEST_ALIKE:
        return
    rows, length = shapes.pop()
    tokens = rows * (length or 1)
    for phase in ("forward", "backward"):
        sizes = [use.phases[phase] for use in later if phase in use.phases]
        if sizes and max(sizes) > held_bytes:
            slope = (max(sizes) - held_bytes) / tokens
            yield phase, PhaseFit.through(phase, held_bytes, slope, num_steps=len(sizes), most_tokens=tokens)


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
