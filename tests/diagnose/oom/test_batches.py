"""Which batch would have fitted, from uses of memory that are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forgather_mem.diagnose.oom.batches import Batches, BatchShape
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings, StepUse
from forgather_mem.diagnose.oom.optimizer_sizes import family_of
from forgather_mem.units import GIB, KIB


@pytest.mark.parametrize("optim", ["adamw_torch_8bit", "adamw_torch_4bit", "adamw_bnb_8bit"])
def test_what_is_still_to_come_is_the_state_of_the_configured_optimizer(optim: str) -> None:
    states = {"torch_8bit": 2 * GIB, "torch_4bit": GIB, "bnb_8bit": 3 * GIB, "adamw": 8 * GIB}
    settings = RunSettings(arguments={"optim": optim}, trained_bytes=4 * GIB, state_bytes=states)
    failure = FailureContext(where="device", phase="forward", step=1, rows=8)
    assert Batches(failure, settings, ())._optimizer_bytes == states[family_of(optim) or ""]


FAILURE = FailureContext(
    where="device",
    phase="forward",
    step=40,
    rows=8,
    length=4000,
    used_bytes=9 * GIB,
    free_bytes=GIB // 2,
    requested_bytes=GIB,
)
SETTINGS = RunSettings(arguments={"per_device_train_batch_size": 8})


def seen(lengths: range) -> list[StepUse]:
    """Steps of 8 rows that took 1 GiB and 100 KiB a token."""
    return [
        StepUse(step=step, rows=8, length=length, phases={"forward": GIB + 8 * length * 100 * KIB})
        for step, length in enumerate(lengths, 1)
    ]


def test_a_batch_is_judged_by_those_before_it_and_by_the_one_that_failed() -> None:
    batches = Batches(FAILURE, SETTINGS, seen(range(500, 3000, 100)))
    assert batches.known
    estimates = [batches.predicted(BatchShape(rows, 4000)) for rows in (1, 2, 4, 8)]
    sizes = [estimate.bytes for estimate in estimates if estimate is not None]
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 10 * GIB, "it had 9 GiB and wanted one more"
    assert sizes[0] >= GIB + 4000 * 100 * KIB, "no less than one of its size has taken"
    assert [batches.fits_in(BatchShape(rows, 4000)) for rows in (1, 2, 8, 32)] == [True, True, False, False]


def test_samples_that_are_far_longer_than_any_before_are_told_from_a_batch_that_is_a_little_larger() -> None:
    assert not Batches(FAILURE, SETTINGS, seen(range(500, 3000, 100))).is_far_longer
    assert Batches(FAILURE, SETTINGS, seen(range(100, 900, 50))).is_far_longer


def test_without_uses_of_memory_nothing_is_predicted() -> None:
    batches = Batches(FAILURE, SETTINGS, ())
    assert not batches.known
    assert batches.predicted(BatchShape(8, 4000)) is None
    assert batches.failed_shape(None) == BatchShape(8, 4000)
    assert Batches(replace(FAILURE, rows=None), SETTINGS, ()).failed_shape(None) is None


@pytest.mark.parametrize("rows", [8, 6, 7, 1])
def test_smaller_batches_are_the_same_step_in_more_parts(rows: int) -> None:
    settings = RunSettings(arguments={"gradient_accumulation_steps": 2})
    shapes = list(Batches(replace(FAILURE, rows=rows), settings, ()).smaller(rows))
    assert all(shape.rows * shape.accumulation == 2 * rows for shape in shapes), "no sample is lost"
    assert [shape.rows for shape in shapes] == sorted({shape.rows for shape in shapes}, reverse=True)
    assert all(1 <= shape.rows < rows for shape in shapes)
    assert bool(shapes) == (rows > 1)


def test_a_shape_counts_its_tokens() -> None:
    assert (BatchShape(3, 5).tokens, BatchShape(3, 5).squares) == (15, 75)
    assert (BatchShape(3, None).tokens, BatchShape(3, None).squares) == (3, 3)
