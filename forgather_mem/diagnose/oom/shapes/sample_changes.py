"""Changes of the samples of a batch: their sizes in all dimensions, and what comparing them with each other takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from forgather_mem.diagnose.oom.batches import KEPT_FREE_FRAC, Batches
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings
from forgather_mem.diagnose.oom.own_lines import NOT_MEASURED
from forgather_mem.diagnose.oom.shapes.pass_peak import UNSEEN, BatchShape
from forgather_mem.telemetry.report import Change
from forgather_mem.units import by_sides

_LARGER = 2.0  # times as large as any before: what is new about a batch, no next stage of growing pictures
_STEP = 0.8  # from one size that is tried to the next
_FEWEST_TRIED = 1 / 4096
_SIDE = 16  # smaller dimensions are colours, channels, coordinates


def smaller_in_size(failure: FailureContext, batches: Batches) -> Change | None:
    """Samples no larger than fits, where they are larger in a dimension than those of all batches before.

    None where they are not, or where tokens are counted instead.
    """
    now, before = failure.sample, batches.widest_sample
    failed = batches.failed_shape(None)
    if before is None or failed is None or failure.rows is None:
        return None
    least = 1.0 if batches.rises else _LARGER
    grown = [side for side, (size, seen) in enumerate(zip(now, before, strict=True)) if size > least * max(1, seen)]
    if not grown:
        return None
    then, part = before, 1.0
    while part > _FEWEST_TRIED:
        part *= _STEP
        tried = _scaled(now, before, grown, part)
        if tried == before or batches.fits_in(BatchShape(failure.rows, math.prod(tried), failed.accumulation)):
            then = tried
            break
    name = "length" if len(grown) == 1 else "size"
    return Change(
        text=f"samples of at most {by_sides(then)}: cut, crop or resize them (this batch has {by_sides(now)})",
        in_script={name: max(then[side] for side in grown)},
        note=f"until then they had at most {by_sides(before)}; {NOT_MEASURED}",
    )


def _scaled(now: Sequence[int], before: Sequence[int], grown: Sequence[int], part: float) -> tuple[int, ...]:
    """A sample scaled by this factor, but in no dimension below the sizes that earlier batches had."""
    each = part ** (1 / len(grown))
    sizes = [min(size, seen) if size < seen else size for size, seen in zip(now, before, strict=True)]
    for side in grown:
        size = int(now[side] * each)
        sizes[side] = max(before[side], size - size % (8 if size >= _SIDE else 2))  # pooling likes no odd ones
    return tuple(sizes)


def smaller_samples(failure: FailureContext, settings: RunSettings, alone: bool) -> Iterator[Change]:
    """A batch of 1, or one of which nothing is known, as where a picture itself is trained."""
    operands = failure.operation.operands if failure.operation is not None else ()
    name, shape = next(((name, shape) for name, shape in operands if shape[0] == 1 and len(shape) > 2), ("", ()))
    part = _part_that_fits(failure)
    if shape and part is not None:
        num_sides = len(shape) - 2
        sides = by_sides(int(size * part ** (1 / num_sides)) for size in shape[2:])
        text = f"smaller samples: `{name}` ({by_sides(shape)}) of at most {sides}"
        yield Change(text=text, note=f"there is no batch to make smaller; {NOT_MEASURED}")
    elif failure.rows == 1 and part is not None and any(size >= _SIDE for size in failure.sample):
        num_sides = sum(size >= _SIDE for size in failure.sample)
        sizes = [int(size * part ** (1 / num_sides)) if size >= _SIDE else size for size in failure.sample]
        text = f"smaller samples, or each in parts with its own backward pass: at most {by_sides(sizes)}"
        yield Change(text=text, note=f"its batch is 1 already ({by_sides(failure.sample)}); {NOT_MEASURED}")
    elif failure.rows is None and not settings.is_trainers:
        note = f"the same step in smaller parts; with a batch of 1, smaller samples; {NOT_MEASURED}"
        yield Change(text="smaller batches, and gradients of more of them in each step", note=note)
    elif alone and failure.rows_each > 1:
        text = f"fewer than {failure.rows_each:,} rows of the model for one sample: candidates, views, nodes of a graph"
        yield Change(text=text, note=f"its batch is 1 already; {NOT_MEASURED}")
    elif alone:
        text = "one sample in parts, as tiles of an image or a part of a graph, or smaller samples"
        yield Change(text=text, note=f"its batch is 1 already; {NOT_MEASURED}")


def _part_that_fits(failure: FailureContext) -> float | None:
    """The part of a sample that fits, by what it had taken when it failed; None if unknown."""
    taken = failure.parts.get("activations", 0)
    if failure.capacity_bytes is None or failure.used_bytes is None or not taken:
        return None
    left = (1 - KEPT_FREE_FRAC) * failure.capacity_bytes - (failure.used_bytes - taken)
    return min(0.5, max(0.0, left) / (UNSEEN["forward"] * (taken + (failure.requested_bytes or 0))))
