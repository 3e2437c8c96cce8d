"""What a pass takes at its peak."""

import pytest

from forgather_mem.diagnose.oom.context import StepUse
from forgather_mem.diagnose.oom.shapes.pass_peak import BatchShape, PassPeak
from forgather_mem.units import MIB
from tests.diagnose.oom.failures import failure_of, replace

FAILED = failure_of(
    where="host", phase="forward", step=9, rows=8, length=100, requested_bytes=10 * MIB,
    parts={"activations": 60 * MIB}, live_bytes=40 * MIB,
)  # fmt: skip
WHOLE, HALF = BatchShape(8, 100), BatchShape(4, 100)
SAVED = [StepUse(step=step, rows=8, length=50, phases={}, saved_bytes=30 * MIB) for step in range(1, 9)]


def test_a_shape_counts_its_tokens() -> None:
    assert (BatchShape(3, 5).tokens, BatchShape(3, 5).squares) == (15, 75)
    assert (BatchShape(3, None).tokens, BatchShape(3, None).squares) == (3, 3)


@pytest.mark.parametrize("wanted", [1, 10, 25])
def test_what_batches_have_saved_tells_the_peak_whatever_was_asked_for(wanted: int) -> None:
    here = replace(FAILED, requested_bytes=wanted * MIB, part_done=wanted / 40, parts={"activations": 5 * MIB})
    peak = PassPeak(here, SAVED).needed(HALF, WHOLE)
    assert peak == pytest.approx(1.1 * 2 * 30 * MIB), "4 x 100 tokens are as many as 8 x 50"


def test_what_no_batch_has_saved_passes_beside_it() -> None:
    saved = [replace(use, saved_bytes=100 * MIB) for use in SAVED]
    here = replace(FAILED, requested_bytes=240 * MIB, parts={"activations": 250 * MIB})
    assert PassPeak(here, saved).needed(HALF, WHOLE) == pytest.approx(2 * 490 * MIB / 2)
    early = replace(here, requested_bytes=230 * MIB, parts={"activations": MIB}, phase="backward")
    assert PassPeak(early, saved).needed(HALF, WHOLE) == pytest.approx(1.1 * 2 * 100 * MIB + 115 * MIB)


def test_of_samples_far_longer_than_all_that_were_measured_more_is_expected() -> None:
    peaks = [PassPeak(FAILED, SAVED).of_saved(BatchShape(8, length)) for length in (200, 201)]
    assert peaks == [pytest.approx(1.1 * 2 * 120 * MIB), pytest.approx(1.7 * 2 * 120.6 * MIB)]


def test_the_layer_tells_how_much_is_to_come_in_a_first_step() -> None:
    parts = [PassPeak(replace(FAILED, part_done=part), ()).needed(WHOLE, WHOLE) for part in (0.25, 0.5, 1.0)]
    assert parts == [2 * 70 * MIB / part for part in (0.25, 0.5, 1.0)]


def test_an_evaluation_needs_its_loss_as_well() -> None:
    in_layer = replace(FAILED, phase="evaluate", part_done=0.9, parts={"evaluation": 60 * MIB})
    of_loss = replace(in_layer, part_done=None, live_bytes=50 * MIB)
    sizes = [PassPeak(here, SAVED[:1]).needed(WHOLE, WHOLE) for here in (in_layer, of_loss)]
    assert sizes == [pytest.approx(66 * MIB)] * 2, "twice the tokens of those that have saved 30 MiB"
    large = [replace(here, requested_bytes=80 * MIB) for here in (in_layer, replace(of_loss, live_bytes=120 * MIB))]
    assert [PassPeak(here, SAVED[:1]).needed(WHOLE, WHOLE) for here in large] == [200 * MIB] * 2


def test_gaps_of_the_steps_before_are_used_by_a_step_but_not_by_an_evaluation() -> None:
    assert PassPeak(FAILED, ()).taken_bytes == 60 * MIB
    assert PassPeak(replace(FAILED, phase="evaluate", parts={"evaluation": 60 * MIB}), ()).taken_bytes == 40 * MIB
    assert PassPeak(replace(FAILED, live_bytes=None), ()).taken_bytes == 60 * MIB
