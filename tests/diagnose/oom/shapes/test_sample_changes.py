"""What is said where samples, not rows, are more than before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings, StepUse
from forgather_mem.diagnose.oom.shapes.pass_peak import compares_rows
from forgather_mem.heap.failed_lines import FailedOperation
from forgather_mem.units import MIB

OWN_LOOP = RunSettings(is_trainers=False)
NUMBER_BYTES = 48  # saved for each number of a sample


def seen(*samples: tuple[int, ...], rows: int = 2) -> list[StepUse]:
    """Steps with these samples."""
    return [
        StepUse(
            step=step,
            rows=rows,
            length=None,
            sample=sample,
            phases={"forward": MIB},
            saved_bytes=rows * NUMBER_BYTES * size(sample),
        )
        for step, sample in enumerate(samples, 1)
    ]


def size(sample: tuple[int, ...]) -> int:
    number = 1
    for side in sample:
        number *= side
    return number


CLIPS = seen(*[(frames, 3, 48, 48) for frames in (4, 8, 6, 8, 4)])
FILM = FailureContext(
    where="host", phase="forward", step=6, rows=2, sample=(120, 3, 48, 48), used_bytes=500 * MIB, free_bytes=20 * MIB,
    requested_bytes=30 * MIB, parts={"activations": 120 * MIB},
)  # fmt: skip


def test_a_longer_clip_is_cut_to_what_fits_and_no_row_less() -> None:
    change = advise(FILM, OWN_LOOP, CLIPS).changes[0]
    frames = change.in_script["length"]
    assert isinstance(frames, int)
    assert change.text.startswith(
        f"samples of at most {frames} x 3 x 48 x 48: cut, crop or resize them (this batch has"
    )
    # 140 MiB are left to a pass, which takes about twice what it saves
    assert frames > 8
    assert 2 * 2 * frames * 3 * 48 * 48 * NUMBER_BYTES < 140 * MIB
    assert "until then they had at most 8 x 3 x 48 x 48" in (change.note or "")


def test_where_memory_ended_changes_nothing_of_what_is_told() -> None:
    early = replace(FILM, parts={"activations": 10 * MIB}, used_bytes=390 * MIB, free_bytes=130 * MIB)
    later = replace(FILM, parts={"activations": 60 * MIB}, used_bytes=440 * MIB, free_bytes=80 * MIB)
    both = [advise(failure, OWN_LOOP, CLIPS).changes[0].in_script for failure in (early, later)]
    assert both[0] == both[1]


def test_both_sides_of_a_picture_shrink_and_the_colours_stay() -> None:
    pictures = seen(*[(3, 200 + 8 * step, 200) for step in (0, 2, 1, 3)])
    change = advise(replace(FILM, sample=(3, 900, 1200)), OWN_LOOP, pictures).changes[0]
    assert change.text.startswith("samples of at most 3 x ")
    assert 200 <= int(str(change.in_script["size"])) < 1200


def test_samples_that_are_only_a_little_larger_leave_it_to_the_rows() -> None:
    change = advise(replace(FILM, rows=64, sample=(9, 3, 48, 48)), OWN_LOOP, CLIPS).changes[0]
    assert "per_device_train_batch_size" in change.set


def test_a_batch_fits_the_longest_that_will_come() -> None:
    uses = seen((4000,), (8000,), (16000,), rows=8)
    here = replace(FILM, rows=8, step=4, sample=(20000,), requested_bytes=MIB, parts={"activations": 16 * MIB})
    here = replace(here, used_bytes=500 * MIB, free_bytes=20 * MIB)
    rows = [
        advise(replace(here, times_ahead=times), OWN_LOOP, uses).changes[0].set["per_device_train_batch_size"]
        for times in (1.0, 4.0)
    ]
    assert rows == [4, 1]
    note = advise(replace(here, times_ahead=4.0), OWN_LOOP, uses).changes[0].note or ""
    assert note.startswith("for the longest still to come, 4.0 times as long as this one")


def test_tokens_that_rise_to_nobody_knows_where_are_cut() -> None:
    uses = [StepUse(step=step, rows=8, length=100 * step, phases={"forward": MIB}) for step in range(1, 8)]
    here = replace(FILM, step=8, sample=(), rows=8, length=800)
    assert "max_length" in advise(here, OWN_LOOP, uses).changes[0].in_script
    known = advise(replace(here, times_ahead=1.0), OWN_LOOP, uses).changes[0]
    assert "per_device_train_batch_size" in known.set


@pytest.mark.parametrize("wanted", [4 * 350**2, 4 * 350**3, 8 * 350**2])
def test_rows_that_are_compared_with_each_other_give_another_loss_in_parts(wanted: int) -> None:
    pairs = replace(FILM, rows=350, sample=(256,), requested_bytes=wanted)
    assert compares_rows(pairs)
    assert not compares_rows(replace(pairs, requested_bytes=wanted + 4))
    operation = FailedOperation(function="loss", operands=(("distance", (350, 350)),))
    assert compares_rows(replace(pairs, requested_bytes=None, operation=operation))
    note = advise(pairs, OWN_LOOP, seen((256,), rows=80)).changes[0].note or ""
    assert "parts give another loss" in note
