"""Which batch would have fitted, from uses of memory that are known."""

from collections.abc import Sequence

import pytest

from forgather_mem.diagnose.oom.batches import Batches, in_samples
from forgather_mem.diagnose.oom.context import RunSettings, StepUse
from forgather_mem.diagnose.oom.shapes.optimizer_sizes import family_of
from forgather_mem.diagnose.oom.shapes.pass_peak import BatchShape
from forgather_mem.heap.failed_call import FailedOperation
from forgather_mem.units import GIB, KIB
from tests.diagnose.oom.failures import failure_of, replace


@pytest.mark.parametrize("optim", ["adamw_torch_8bit", "adamw_torch_4bit", "adamw_bnb_8bit"])
def test_what_is_still_to_come_is_the_state_of_the_configured_optimizer(optim: str) -> None:
    states = {"torch_8bit": 2 * GIB, "torch_4bit": GIB, "bnb_8bit": 3 * GIB, "adamw": 8 * GIB}
    settings = RunSettings(arguments={"optim": optim}, trained_bytes=4 * GIB, state_bytes=states)
    failure = failure_of(where="device", phase="forward", step=1, rows=8)
    assert Batches(failure, settings, ())._optimizer_bytes == states[family_of(optim) or ""]


FAILURE = failure_of(
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


def shapes(uses: Sequence[StepUse]) -> list[tuple[int, int | None]]:
    return [(use.rows, use.length) for use in uses]


def test_rows_that_a_sample_has_more_than_one_of_are_parts_of_it() -> None:
    uses = [StepUse(step=1, rows=32, length=48, phases={}), StepUse(step=2, rows=6, length=48, phases={})]
    failure, seen_ = in_samples(replace(FAILURE, rows=248, length=48), SETTINGS, uses)
    assert (failure.rows, failure.length) == (8, 31 * 48)
    assert shapes(seen_) == [(8, 4 * 48), (6, 48)]


def test_a_graph_is_one_sample_of_its_loader() -> None:
    whole = replace(FAILURE, rows=5000, length=None, operation=FailedOperation(loader_rows=1))
    failure, _ = in_samples(whole, RunSettings(is_trainers=False), ())
    assert (failure.rows, failure.length) == (1, 5000)


def test_what_batches_have_saved_bounds_what_a_longer_one_takes() -> None:
    host = replace(FAILURE, where="host", parts={"activations": GIB}, requested_bytes=GIB // 4, used_bytes=2 * GIB)
    saved = [
        StepUse(step=step, rows=8, length=length, phases={}, saved_bytes=8 * length * (KIB + 40 * length))
        for step, length in enumerate((100, 400, 200, 50, 300), 1)
    ]
    without = Batches(host, SETTINGS, [replace(use, saved_bytes=None) for use in saved])
    assert without.fits_in(BatchShape(2, 4000, 4))
    with_them = Batches(host, SETTINGS, saved)  # 2 x 2 rows x 4,000 tokens x (1 KiB + 40 B a token beside it): 2.4 GiB
    assert with_them.fits_in(BatchShape(2, 4000, 4)) is False
    assert with_them.fits_in(BatchShape(1, 4000, 8))
