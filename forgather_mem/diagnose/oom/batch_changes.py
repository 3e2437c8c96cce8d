"""Changes of a batch and how it is made: its rows, its length, the workers, the sequences of a generation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from forgather_mem.diagnose.oom.batches import KEPT_FREE_FRAC
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.remedy import Case, joined, jump, written
from forgather_mem.diagnose.oom.shapes.fit import binding, largest_that_fits
from forgather_mem.diagnose.oom.shapes.pass_peak import BatchShape, compares_rows
from forgather_mem.telemetry.report import Change
from forgather_mem.units import format_bytes

LENGTHS = ("max_length", "max_seq_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeThresholds:
    """Which changes of a batch are named, as set on the sets of benchmarks/results/ooms.md.

    Attributes:
        shortest: Tokens; shorter samples are not cut.
        worth_frac: Of what was asked for: what another optimizer must save to be named beside a batch.
        huge_frac: Of all memory, for one array of one sample: not a matter of the batch.
        unseen_of_generation: How much more than at its failure a generation takes until its end.
        guessed_part, guessed_part_unwatched: Of a batch of which nothing is known; an unwatched loop tells even less.
    """

    shortest: int = 16
    worth_frac: float = 0.1
    huge_frac: float = 0.5
    unseen_of_generation: float = 4.0
    guessed_part: float = 4.0
    guessed_part_unwatched: float = 8.0


_WHEN = ChangeThresholds()


def step_changes(case: Case) -> Iterator[Change]:
    """For a batch that did not fit, best first: its rows, the length of its samples, activation checkpointing."""
    failure, settings, batches = case
    rows = int(settings.arguments.get("per_device_train_batch_size") or failure.rows or 1)
    shape = _smaller_shape(case, rows)
    smaller = [] if shape is None else [_with_more(_batch_change(shape, case, rows), shape, case)]
    cut = _shorter(case, rows)
    shorter = [] if cut is None else [cut]
    values = _checkpointing(case)
    checkpointing = [Change(text=written(values), set=values, note="fewer activations, slower")] if values else []
    fits = shape is not None and batches.fits_in(shape) is not False
    if cut is not None and (batches.rises or (not fits and (batches.is_far_longer or _has_gone_well(cut, case)))):
        yield from (*shorter, *smaller, *checkpointing)  # longer ones may come, or even one sample does not fit
    elif smaller:
        yield from (*smaller, *shorter, *checkpointing)
    else:
        yield from (*checkpointing, *shorter)
    if failure.rows is None and not settings.is_trainers:
        note = "the same step in smaller parts; with a batch of 1, smaller samples"
        yield Change(text="smaller batches, and gradients of more of them in each step", note=note)


def checkpointing_name(case: Case) -> str:
    """The name of gradient checkpointing in the run's version of transformers."""
    newer = "activation_checkpointing"
    return newer if newer in case.settings.arguments else "gradient_checkpointing"


def _checkpointing(case: Case) -> dict[str, object]:
    name, settings = checkpointing_name(case), case.settings
    can = settings.can_checkpoint and not settings.arguments.get(name) and case.failure.phase != "data"
    return {name: True} if can else {}


def _with_more(change: Change, shape: BatchShape, case: Case) -> Change:
    """The change with its notes; where even the smallest batch does not fit, with all else that saves memory."""
    failure, settings, batches = case
    if batches.fits_in(shape) is not False or batches.nearly_fits(shape):  # there is none smaller: worth a try
        return _with_notes(change, case)
    now, then = settings.state_of(settings.optim), settings.state_of("adafactor")
    more = _checkpointing(case)
    saved = (now or 0) - (then or 0) if then is not None and settings.optim != "adafactor" else 0
    if saved > 0 and saved >= _WHEN.worth_frac * (failure.requested_bytes or 0) and failure.phase != "data":
        more["optim"] = "adafactor"
    if not more:
        return change
    values = {**change.set, **more}
    other = "changes the training (another optimizer)" if "optim" in more else ""
    note = joined(change.note or "", other, "each alone is not enough")
    return Change(text=written(values), set=values, note=note)


def _smaller_shape(case: Case, rows: int) -> BatchShape | None:
    """The largest micro-batch that fits, with as many samples per step; the smallest if none does; None at batch 1."""
    shapes = list(case.batches.smaller(rows))
    if not shapes:
        return None
    part = 1.0
    if case.batches.fits_in(shapes[-1]) is None:  # unknown by how much it was too large
        part = _WHEN.guessed_part if case.failure.step else _WHEN.guessed_part_unwatched
    fitting = (shape for shape in shapes if shape.rows <= rows / part and (part > 1 or case.batches.fits_in(shape)))
    return next(fitting, shapes[-1])


def _batch_change(shape: BatchShape, case: Case, rows: int) -> Change:
    batches = case.batches
    settings = {"per_device_train_batch_size": shape.rows, "gradient_accumulation_steps": shape.accumulation}
    estimate = batches.predicted(shape)
    jumps = jump("batch", rows, shape.rows)
    if estimate is None or batches.capacity_bytes is None:
        return Change(text=written(settings), set=settings, note=joined(jumps, "the same step in smaller parts"))

    def fit(size: str) -> int:
        return largest_that_fits(lambda rows: _is_below(replace(shape, rows=rows), size, case), 64 * shape.rows)

    bound = binding(batches.fits, shape.rows, shape.length)
    return Change(
        text=written(settings),
        set=settings,
        predicted_bytes=round(estimate.bytes),
        interval=(fit("high"), fit("low")),
        binds=bound[0] if bound else None,
        note=jumps or None,
    )


def _is_below(shape: BatchShape, size: str, case: Case) -> bool:
    """Whether this bound of the prediction leaves enough free."""
    found = case.batches.predicted(shape)
    most = (1 - KEPT_FREE_FRAC) * (case.batches.capacity_bytes or 0)
    return found is not None and float(getattr(found, size)) <= most


def _with_notes(change: Change, case: Case) -> Change:
    """The change with notes: for which longest sample it fits, and how smaller parts affect the loss."""
    failure, longest = case.failure, case.batches.longest
    notes = ["", "", "", change.note or ""]
    if compares_rows(failure):
        notes[0] = "its rows are compared with each other: parts give another loss (GradCache keeps it)"
    if failure.rows_each > 1:
        notes[1] = f"a sample has about {failure.rows_each:,} rows of the model (candidates, views): fewer help, too"
    if longest is not None and longest > (failure.width or 0):
        times = f"{longest / (failure.width or 1):.1f} times as long"
        notes[2] = f"for the longest still to come, {times} as this one"
    return replace(change, note=joined(*notes))


def _shorter(case: Case, rows: int) -> Change | None:
    """A limit on the tokens of a sample, at the batch size that was requested."""
    failure, _, batches = case
    length, failed = failure.length, batches.failed_shape(rows)
    if (
        length is None or length < _WHEN.shortest or failed is None or failure.rows_each > 1
    ):  # else the length of no text
        return None
    if not batches.known or batches.capacity_bytes is None:
        tokens = length // 2
        while tokens >= 2 * _WHEN.shortest and batches.fits_in(replace(failed, length=tokens)) is False:
            tokens //= 2
        gone_well = batches.longest_seen(failed.rows) or 0
        if gone_well < length and batches.fits_in(replace(failed, length=gone_well)):
            tokens = max(tokens, gone_well)
        return _cut(case, failed, tokens, note="cuts longer samples")

    def fit(size: str) -> int:
        return largest_that_fits(lambda tokens: _is_below(replace(failed, length=tokens), size, case), length)

    safe = fit("high")
    estimate = batches.predicted(replace(failed, length=safe))
    if safe < _WHEN.shortest // 2 or estimate is None:
        return None
    return replace(_cut(case, failed, safe), predicted_bytes=round(estimate.bytes), interval=(safe, fit("low")))


def _cut(case: Case, failed: BatchShape, tokens: int, note: str = "") -> Change:
    batch, arguments = case.failure.batch, case.settings.arguments
    tokens -= tokens % 8
    notes = joined(jump("length", case.failure.length or 0, tokens), note)
    named = next((name for name in LENGTHS if isinstance(arguments.get(name), int)), None)
    if named is not None:
        return Change(text=f"{named}={tokens}", set={named: tokens}, note=notes)
    of = f" of `{batch.of}`" if batch is not None and batch.of else ""
    text = f"max length {tokens:,}{of} at batch {failed.rows}"
    return Change(text=text, in_script={"max_length": tokens}, note=notes)


def _has_gone_well(cut: Change, case: Case) -> bool:
    """Whether batches with samples of this length have succeeded, or are known to fit."""
    failed, length = case.batches.failed_shape(None), next(iter({**cut.set, **cut.in_script}.values()))
    if failed is None or not case.batches.num_steps or not isinstance(length, int):
        return False
    return bool(case.batches.fits_in(replace(failed, length=length)))


# ---- batches that can't be made ----


def data_changes(case: Case) -> Iterator[Change]:
    """What creates batches, then their number, then their size: memory of the passes plays no part."""
    failure, settings, _ = case
    workers = int(settings.arguments.get("dataloader_num_workers") or 0)
    limits_each = _limits_each(failure)
    if workers and not limits_each and not _is_more_than(1.0, failure):
        yield _fewer_workers(failure, workers)
        if (settings.arguments.get("dataloader_prefetch_factor") or 2) > 1:
            values = {"dataloader_prefetch_factor": 1}
            yield Change(text=written(values), set=values, note="half the batches in flight")
    yield from step_changes(case)


def is_of_one_sample(case: Case) -> bool:
    """Whether one array of one sample is too large, whoever makes it, in whatever batch."""
    failure = case.failure
    wanted, workers = failure.requested_bytes or 0, case.settings.arguments.get("dataloader_num_workers")
    # A worker begins with what this process has, and a limit of each process leaves it as much
    alone = workers and _limits_each(failure) and wanted > (failure.free_bytes or math.inf)
    return bool(failure.in_sample and failure.line and (alone or _is_more_than(_WHEN.huge_frac, failure)))


def _limits_each(failure: Failure) -> bool:
    """Whether the limit is each process's own."""
    return "RLIMIT" in (failure.memory.limit or "")


def _is_more_than(frac: float, failure: Failure) -> bool:
    whole = math.inf if failure.capacity_bytes is None else failure.capacity_bytes
    return failure.where == "host" and (failure.requested_bytes or 0) > frac * whole


def _fewer_workers(failure: Failure, workers: int) -> Change:
    """The largest number that fits, if known; otherwise none, which always takes least."""
    name, taken = "dataloader_num_workers", failure.parts.get("data workers")
    if not taken or failure.requested_bytes is None or failure.capacity_bytes is None:
        return Change(text=f"{name}=0", set={name: 0}, note="samples are made in this process, slower")
    each = taken / workers
    needed = failure.capacity_bytes - (failure.free_bytes or 0) + failure.requested_bytes
    over = needed - (1 - KEPT_FREE_FRAC) * failure.capacity_bytes
    left = max(0, int(workers - max(over, each) / each))
    return Change(
        text=f"{name}={left}",
        set={name: left},
        predicted_bytes=round(needed - (workers - left) * each),
        note=f"a worker takes {format_bytes(each)}",
    )


# ---- evaluation and generation ----


def smaller_evaluation(case: Case) -> Iterator[Change]:
    """Smaller batches of an evaluation; at batch 1 shorter or smaller samples."""
    failure, settings, batches = case
    rows = int(settings.arguments.get("per_device_eval_batch_size") or failure.rows or 1)
    size = rows
    while size > 1:
        size //= 2
        fits = batches.fits_in(BatchShape(size, failure.width))
        if fits or (fits is None and size <= rows / 4):
            break
    if size < rows:
        estimate = batches.predicted(BatchShape(size, failure.width))
        values = {"per_device_eval_batch_size": size}
        yield Change(
            text=written(values),
            set=values,
            predicted_bytes=None if estimate is None else round(estimate.bytes),
            note=jump("batch", rows, size) or None,
        )
    elif failure.length:
        text = f"max length {failure.length // 2:,} in the evaluation set"
        yield Change(text=text, in_script={"max_length": failure.length // 2})


def fewer_sequences(case: Case) -> int:
    """A quarter of the sequences that failed, or fewer if the memory they had taken does not allow as many to
    finish."""
    failure = case.failure
    rows = failure.rows or 4
    few, taken = max(1, rows // 4), failure.parts.get("generation", 0)
    if failure.capacity_bytes is None or failure.used_bytes is None:
        return few
    needed = _WHEN.unseen_of_generation * (taken + (failure.requested_bytes or 0))
    while few > 1 and failure.used_bytes - taken + needed * few / rows > (1 - KEPT_FREE_FRAC) * failure.capacity_bytes:
        few //= 2
    return few
