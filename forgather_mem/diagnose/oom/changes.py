"""Changes that reduce the memory of a training step: its batch and how that is made, its length, what it keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from forgather_mem.diagnose.oom.batches import KEPT_FREE_FRAC, Batches
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings
from forgather_mem.diagnose.oom.own_lines import NOT_MEASURED, less_at_once
from forgather_mem.diagnose.oom.shapes.fit import binding, largest_that_fits
from forgather_mem.diagnose.oom.shapes.pass_peak import UNSEEN_DATA, BatchShape, compares_rows
from forgather_mem.telemetry.report import Change
from forgather_mem.units import format_bytes

# An optimizer is named beside a smaller batch only if it saves this fraction of what was needed.
_WORTH_FRAC = 0.1
CHANGES_TRAINING = "changes the training"
_KEPT_FREE_ON_HOST_FRAC = 0.05
_JUMP = 4  # from this factor on, a change names the present value
_HUGE_FRAC = 0.5  # of all memory, for one array of one sample: not a matter of the batch
LENGTHS = ("max_length", "max_seq_length")


def step_changes(failure: FailureContext, settings: RunSettings, batches: Batches) -> list[Change]:
    """Changes for a batch that did not fit, best first."""
    rows = int(settings.arguments.get("per_device_train_batch_size") or failure.rows or 1)
    smaller = _smaller_batch(failure, settings, batches, rows)
    shorter = list(_shorter(failure, settings, batches, rows))
    checkpointing = list(_checkpointing(settings))
    if batches.rises and shorter:  # longer ones than this will come, nobody knows how long
        return [*shorter, *_present(smaller), *checkpointing]
    cut = bool(shorter) and (batches.is_far_longer or shorter[0].predicted_bytes is not None)
    if smaller is not None and cut and not _fits(smaller, batches):
        return [*shorter, smaller, *checkpointing]  # even alone one sample does not fit
    if smaller is not None:
        return [smaller, *shorter, *checkpointing]
    measured = [change for change in shorter if change.predicted_bytes is not None or _has_fitted(change, batches)]
    guessed = [change for change in shorter if change not in measured]
    if failure.rows is None and not settings.is_trainers:
        note = f"the same step in smaller parts; with a batch of 1, smaller samples; {NOT_MEASURED}"
        guessed.append(Change(text="smaller batches, and gradients of more of them in each step", note=note))
    elif rows == 1 and not [*measured, *checkpointing, *guessed]:
        text = "one sample in parts, as tiles of an image or a part of a graph, or smaller samples"
        guessed.append(Change(text=text, note=f"its batch is 1 already; {NOT_MEASURED}"))
    return [*measured, *checkpointing, *guessed]


def _has_fitted(shorter: Change, batches: Batches) -> bool:
    """Whether batches with samples of this length have succeeded, or are known to fit."""
    failed, lengths = batches.failed_shape(None), [*shorter.set.values(), *shorter.in_script.values()]
    if failed is None or not batches.num_steps or not isinstance(lengths[0], int):
        return False
    return bool(batches.fits_in(replace(failed, length=lengths[0])))


def _present(change: Change | None) -> list[Change]:
    return [] if change is None else [change]


def is_enough(change: Change, failure: FailureContext) -> bool:
    """Whether the predicted size fits; True without a prediction."""
    if change.predicted_bytes is None or failure.capacity_bytes is None:
        return True
    # The C library can't use every gap between what it has handed out
    optimizer_on_host = failure.where == "host" and failure.phase == "optimizer"
    kept_free = _KEPT_FREE_ON_HOST_FRAC if optimizer_on_host else KEPT_FREE_FRAC
    return change.predicted_bytes <= (1 - kept_free) * failure.capacity_bytes


def changes_training(change: Change) -> bool:
    """Whether this change alters the training itself, as its note says."""
    return CHANGES_TRAINING in (change.note or "")


def jump(what: str, now: int, then: int) -> str:
    """The present value, if the change is a large one.

    >>> jump("batch", 256, 1), jump("batch", 8, 4)
    ('batch 256 -> 1', '')
    """
    return f"{what} {now:,} -> {then:,}" if now >= _JUMP * then else ""


def data_changes(failure: FailureContext, settings: RunSettings, batches: Batches) -> list[Change]:
    """Changes where batches could not be created: first what creates them, then their number."""
    arguments = settings.arguments
    workers = int(arguments.get("dataloader_num_workers") or 0)
    changes = []
    wanted, whole = failure.requested_bytes or 0, failure.capacity_bytes
    one_array = failure.where == "host" and wanted > (math.inf if whole is None else whole)
    # A worker begins with what this process has, and a limit of each process leaves it as much
    alone = bool(workers) and failure.limits_each and wanted > (failure.free_bytes or math.inf)
    huge = failure.where == "host" and wanted > (math.inf if whole is None else _HUGE_FRAC * whole)
    if failure.in_sample and failure.line and (huge or alone):
        note = f"one array takes {format_bytes(wanted)}, whoever makes it, in whatever batch; {NOT_MEASURED}"
        return [Change(text=f"less memory for one sample ({failure.line})", note=note)]
    if workers and not one_array and not failure.limits_each:
        changes.append(_fewer_workers(failure, workers))
        if (arguments.get("dataloader_prefetch_factor") or 2) > 1:
            changes.append(set_to(f"half the batches in flight; {NOT_MEASURED}", dataloader_prefetch_factor=1))
    if failure.operation is not None and not failure.operation.is_loaders and not settings.is_trainers:
        change = less_at_once(failure)  # no loader makes a batch there
        if change is not None and failure.requested_bytes is not None:
            return [*changes, change]
    if settings.is_trainers and failure.stays_in_batch:
        return [*changes, *_smaller_steps(failure, settings, batches)]
    return changes + _batch_changes(failure, settings, batches)


def _smaller_steps(failure: FailureContext, settings: RunSettings, batches: Batches) -> Iterator[Change]:
    """A Trainer makes all batches of a step before it uses the first: parts of the same step take as much."""
    rows = int(settings.arguments.get("per_device_train_batch_size") or 1)
    accumulation = int(settings.arguments.get("gradient_accumulation_steps") or 1)
    if rows * accumulation == 1:
        return
    fewer = rows // 2
    while fewer > 1 and not _batch_fits(failure, fewer / rows):
        fewer //= 2
    values = {"per_device_train_batch_size": max(1, fewer)}
    if accumulation > 1 and not _batch_fits(failure, max(1, fewer) / rows):
        values["gradient_accumulation_steps"] = 1
    why = "all batches of a step are made before its first is used, so accumulation saves nothing"
    notes = (jump("batch", rows, max(1, fewer)), f"{CHANGES_TRAINING} (smaller steps)", why, NOT_MEASURED)
    yield set_to("; ".join(filter(None, notes)), None, **values)


def _batch_fits(failure: FailureContext, part: float) -> bool:
    """Whether a batch of this part of the size can be created."""
    if failure.used_bytes is None or failure.capacity_bytes is None:
        return part <= 1 / 4
    needed = UNSEEN_DATA * (failure.requested_bytes or 0) * part
    return failure.used_bytes + needed <= (1 - KEPT_FREE_FRAC) * failure.capacity_bytes


def _batch_changes(failure: FailureContext, settings: RunSettings, batches: Batches) -> list[Change]:
    """Changes for a batch that could not be created: memory of the passes plays no part."""
    checkpointing = list(_checkpointing(settings))
    return [change for change in step_changes(failure, settings, batches) if change not in checkpointing]


def _fewer_workers(failure: FailureContext, workers: int) -> Change:
    """The largest number that fits, if known; otherwise none, which always takes least."""
    if not failure.workers_bytes or failure.requested_bytes is None or failure.capacity_bytes is None:
        return set_to(f"samples are made in this process, slower; {NOT_MEASURED}", dataloader_num_workers=0)
    each = failure.workers_bytes / workers
    used = failure.capacity_bytes - (failure.free_bytes or 0)
    over = used + failure.requested_bytes - (1 - KEPT_FREE_FRAC) * failure.capacity_bytes
    left = max(0, int(workers - max(over, each) / each))
    return set_to(
        f"a worker takes {format_bytes(each)}",
        round(used + failure.requested_bytes - (workers - left) * each),
        dataloader_num_workers=left,
    )


def _fits(change: Change, batches: Batches) -> bool:
    rows, parts = change.set.get("per_device_train_batch_size"), change.set.get("gradient_accumulation_steps", 1)
    if not isinstance(rows, int) or not isinstance(parts, int):
        return False
    return batches.fits_in(BatchShape(rows, batches.longest, parts)) is not False


def _smaller_batch(failure: FailureContext, settings: RunSettings, batches: Batches, rows: int) -> Change | None:
    """The largest micro-batch that fits, with the same number of samples per step; None at batch 1.

    If none fits, combined with other savings.
    """
    shapes = list(batches.smaller(rows))
    if not shapes:
        return None
    shape = next((shape for shape in shapes if batches.fits_in(shape)), None)
    if shape is not None:
        return _with_notes(_batch_change(shape, batches, rows), failure, batches)
    if batches.fits_in(shapes[-1]) is None:  # unknown by how much it was too large
        part = 4 if failure.step else 8  # an unwatched loop tells even less
        shape = next((shape for shape in shapes if shape.rows <= rows / part), shapes[-1])
        return _with_notes(_batch_change(shape, batches, rows), failure, batches)
    change = _batch_change(shapes[-1], batches, rows)
    if batches.nearly_fits(shapes[-1]):  # there is none smaller: worth a try before the training is changed otherwise
        return _with_notes(change, failure, batches)
    more = [more.set for more in (*_checkpointing(settings), *_less_state(failure, settings))]
    if not more or failure.phase == "data":
        return change
    together = {name: value for part in (change.set, *more) for name, value in part.items()}
    other = f"{CHANGES_TRAINING} (another optimizer)" if "optim" in together else ""
    notes = (jump("batch", rows, shapes[-1].rows), other, "each alone is not enough", NOT_MEASURED)
    return Change(text=_as_text(together), set=together, note="; ".join(filter(None, notes)))


def _with_notes(change: Change, failure: FailureContext, batches: Batches) -> Change:
    """The change with notes: for which longest sample it fits, and how smaller parts affect the loss."""
    notes = [change.note] if change.note else []
    if batches.longest is not None and batches.longest > (failure.width or 0):
        times = f"{batches.longest / (failure.width or 1):.1f} times as long"
        notes.insert(0, f"for the longest still to come, {times} as this one")
    if failure.rows_each > 1:
        notes.insert(
            0, f"a sample has about {failure.rows_each:,} rows of the model (candidates, views): fewer help, too"
        )
    if compares_rows(failure):
        notes.insert(0, "its rows are compared with each other: parts give another loss (GradCache keeps it)")
    return replace(change, note="; ".join(notes) or None)


def _less_state(failure: FailureContext, settings: RunSettings) -> Iterator[Change]:
    now, then = settings.state_of(settings.optim), settings.adafactor_bytes
    if now is None or then is None or settings.optim == "adafactor":
        return
    saves = now - then
    if saves > 0 and saves >= _WORTH_FRAC * (failure.requested_bytes or 0):
        yield Change(text="optim=adafactor", set={"optim": "adafactor"})


def _batch_change(shape: BatchShape, batches: Batches, rows: int) -> Change:
    settings = {"per_device_train_batch_size": shape.rows, "gradient_accumulation_steps": shape.accumulation}
    estimate = batches.predicted(shape)
    if estimate is None or batches.capacity_bytes is None:
        notes = (jump("batch", rows, shape.rows), "the same step in smaller parts", NOT_MEASURED)
        return Change(text=_as_text(settings), set=settings, note="; ".join(filter(None, notes)))
    most = (1 - KEPT_FREE_FRAC) * batches.capacity_bytes

    def fit(size: str) -> int:
        def small(rows: int) -> bool:
            found = batches.predicted(replace(shape, rows=rows))
            return found is not None and float(getattr(found, size)) <= most

        return largest_that_fits(small, 64 * shape.rows)

    bound = binding(batches.fits, shape.rows, shape.length)
    return Change(
        text=_as_text(settings),
        set=settings,
        predicted_bytes=round(estimate.bytes),
        interval=(fit("high"), fit("low")),
        binds=bound[0] if bound else None,
        note=jump("batch", rows, shape.rows) or None,
    )


def _shorter(failure: FailureContext, settings: RunSettings, batches: Batches, rows: int) -> Iterator[Change]:
    """A limit on the tokens of a sample, at the batch size that was requested."""
    length = failure.length
    failed = batches.failed_shape(rows)
    if length is None or length < 16 or failed is None:
        return
    named = next((name for name in LENGTHS if isinstance(settings.arguments.get(name), int)), None)

    def change(tokens: int, **more: Any) -> Change:
        tokens -= tokens % 8
        notes = (jump("length", length, tokens), more.pop("note", ""))
        more["note"] = "; ".join(filter(None, notes)) or None
        if named is not None:
            return Change(text=f"{named}={tokens}", set={named: tokens}, **more)
        of = f" of `{failure.length_of}`" if failure.length_of else ""
        text = f"max length {tokens:,}{of} at batch {failed.rows}"
        return Change(text=text, in_script={"max_length": tokens}, **more)

    if not batches.known or batches.capacity_bytes is None:
        tokens = length // 2
        while tokens >= 32 and batches.fits_in(replace(failed, length=tokens)) is False:
            tokens //= 2
        gone_well = batches.longest_seen(failed.rows) or 0
        if gone_well < length and batches.fits_in(replace(failed, length=gone_well)):
            tokens = max(tokens, gone_well)
        yield change(tokens, note=f"cuts longer samples; {NOT_MEASURED}")
        return
    most = (1 - KEPT_FREE_FRAC) * batches.capacity_bytes

    def fit(size: str) -> int:
        def small(tokens: int) -> bool:
            found = batches.predicted(replace(failed, length=tokens))
            return found is not None and float(getattr(found, size)) <= most

        return largest_that_fits(small, length)

    safe = fit("high")
    if safe >= 8:
        estimate = batches.predicted(replace(failed, length=safe))
        assert estimate is not None
        yield change(safe, predicted_bytes=round(estimate.bytes), interval=(safe, fit("low")))


def _checkpointing(settings: RunSettings) -> Iterator[Change]:
    name = checkpointing_name(settings)
    if settings.can_checkpoint and not settings.arguments.get(name):
        yield Change(text=f"{name}=True", set={name: True}, note=f"fewer activations, slower; {NOT_MEASURED}")


def checkpointing_name(settings: RunSettings) -> str:
    """The name of gradient checkpointing in the run's version of transformers."""
    return "activation_checkpointing" if "activation_checkpointing" in settings.arguments else "gradient_checkpointing"


def _as_text(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def set_to(note: str | None = None, predicted_bytes: int | None = None, **values: object) -> Change:
    """A change that sets these arguments of a Trainer."""
    text = ", ".join(
        f"{name}={value!r}" if isinstance(value, str) else f"{name}={value}" for name, value in values.items()
    )
    return Change(text=text, set=values, predicted_bytes=predicted_bytes, note=note)
