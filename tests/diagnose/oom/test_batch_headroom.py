"""The room that a run had, read as a watched training reads it, on a device that torch tells of."""

import random

import pytest
import torch

from forgather_mem.diagnose.oom.batch_headroom import room, room_left
from forgather_mem.diagnose.oom.batch_uses import BatchUses
from forgather_mem.diagnose.oom.context import RunSettings, StepUse
from forgather_mem.diagnose.oom.shapes.batch_shapes import Batch
from forgather_mem.telemetry.report import Change
from forgather_mem.units import GIB, MIB
from tests.simulated_device import TOTAL_MIB, simulated_devices

HELD_MIB, TOKEN_MIB = 1024, 0.5
SETTINGS = RunSettings(arguments={"per_device_train_batch_size": 8}, trained_bytes=256 * MIB)


def room_after(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], transient: float = 1.0, other: tuple[int, int] | None = None
) -> Change | None:
    """A training with these batches of 8; its backward pass goes `transient` times as high as is seen at its end.

    Another device of the process holds `other[0]` MiB, and in the steps `other[1]` MiB more.
    """
    with simulated_devices(monkeypatch, 2) as (device, second):
        if other is not None:
            second.hold(other[0])
            second.spike(other[1])
        device.hold(512)
        uses = BatchUses()
        began_bytes = uses.read()
        for step, length in enumerate(lengths, 1):
            uses.see(Batch(8, length), step - 1)
            device.hold(HELD_MIB)
            device.hold(HELD_MIB + TOKEN_MIB * 8 * length)
            uses.phase_ended("forward")
            device.spike(TOKEN_MIB * 8 * length * (transient - 1))
            uses.phase_ended("backward")
            device.hold(HELD_MIB)
            uses.step_ended(step, {})
        found = room_left(uses, SETTINGS, began_bytes, None, None)
        uses.close()
        return found


def largest(lengths: list[int], transient: float = 1.0) -> float:
    return (0.98 * TOTAL_MIB - HELD_MIB) / (transient * TOKEN_MIB * max(lengths))


LENGTHS = [random.Random(step).randint(100, 600) for step in range(40)]


def test_it_is_the_largest_batch_that_fits_the_longest_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    found = room_after(monkeypatch, LENGTHS)
    assert found is not None
    assert found.set["per_device_train_batch_size"] == pytest.approx(largest(LENGTHS), abs=1)
    by = "the backward pass" if found.binds == "backward" else "the forward pass"
    assert found.text.endswith(f"would still fit (now 8), limited by {by} and the memory of GPU 0")


def test_a_peak_that_nothing_shows_at_the_ends_of_phases_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = room_after(monkeypatch, LENGTHS, transient=1.5)
    assert found is not None
    assert found.set["per_device_train_batch_size"] == pytest.approx(largest(LENGTHS, 1.5), abs=1.5)
    assert found.set["per_device_train_batch_size"] <= largest(LENGTHS, 1.5)


def test_from_one_shape_it_names_less_than_would_fit_and_a_short_run_names_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = room_after(monkeypatch, [600] * 20)
    assert found is not None
    assert 8 < found.set["per_device_train_batch_size"] <= largest([600])
    assert room_after(monkeypatch, [600] * 4) is None


@pytest.mark.parametrize(("held", "passing"), [(5000, 2000), (1000, 3000)])
def test_of_two_devices_the_tighter_one_limits_the_batch_and_is_named(
    monkeypatch: pytest.MonkeyPatch, held: int, passing: int
) -> None:
    found = room_after(monkeypatch, LENGTHS, other=(held, passing))
    fits = int(8 * (0.98 * TOTAL_MIB - held) / passing)
    assert found is not None
    assert found.text == f"batch {fits} would still fit (now 8), limited by the memory of GPU 1"
    assert found.set == {"per_device_train_batch_size": fits}
    assert found.predicted_bytes == pytest.approx((held + passing * fits / 8) * MIB)


def test_a_second_device_with_more_room_changes_nothing_and_a_full_one_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = room_after(monkeypatch, LENGTHS)
    assert room_after(monkeypatch, LENGTHS, other=(1000, 100)) == alone
    assert room_after(monkeypatch, LENGTHS, other=(TOTAL_MIB - 1000, 0)) == alone, "nothing passes there"
    assert room_after(monkeypatch, LENGTHS, other=(1000, TOTAL_MIB - 1100)) is None


def test_a_full_device_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    full = int((0.95 * TOTAL_MIB - HELD_MIB) / (8 * TOKEN_MIB))
    assert room_after(monkeypatch, [full - 10 * (step % 40) for step in range(80)]) is None


@pytest.mark.parametrize("lengths", [LENGTHS, [600] * 20])
def test_what_is_predicted_is_near_what_the_larger_batch_takes_and_never_below_what_is_in_use(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int]
) -> None:
    found = room_after(monkeypatch, lengths)
    assert found is not None
    assert found.predicted_bytes is not None
    count = found.set["per_device_train_batch_size"]
    assert isinstance(count, int)
    taken = (HELD_MIB + TOKEN_MIB * count * max(lengths)) * MIB
    assert found.predicted_bytes == pytest.approx(taken, rel=0.1)
    assert found.predicted_bytes >= (HELD_MIB + TOKEN_MIB * 8 * max(lengths)) * MIB


def test_a_hosts_prediction_counts_what_its_peak_counts() -> None:
    uses = [StepUse(step=step, rows=8, length=600, phases={"backward": 400 * MIB}) for step in range(1, 20)]
    found = room(
        SETTINGS, uses, 60 * GIB, 200 * MIB,
        uncounted_bytes=165 * MIB, least_bytes=(400 + 165) * MIB, between_bytes=380 * MIB, retains=True,
    )  # fmt: skip
    assert found is not None
    assert found.set == {"per_device_train_batch_size": 32}
    surely, at_most = 3 * 20, 3 * 200  # grown, with four times the batch
    assert found.predicted_bytes == pytest.approx((400 + (surely * at_most) ** 0.5 + 165) * MIB)


def test_what_the_passes_save_is_what_grows_with_the_batch_on_a_host() -> None:
    uses = [StepUse(step=step, rows=8, length=600, phases={"backward": 400 * MIB}) for step in range(1, 20)]
    found = room(
        SETTINGS, uses, 60 * GIB, 200 * MIB,
        uncounted_bytes=165 * MIB, least_bytes=(400 + 165) * MIB, between_bytes=330 * MIB, saved_bytes=20 * MIB,
        retains=True,
    )  # fmt: skip
    assert found is not None
    assert found.predicted_bytes == (400 + 2 * 3 * 20 + 165) * MIB


@pytest.mark.fresh  # in a heap of many free blocks the question is too expensive to be asked
def test_what_a_forward_pass_saves_is_read_from_the_c_librarys_account_of_its_heap() -> None:
    uses = BatchUses()
    kept = [torch.zeros(3 * MIB)]  # parameters
    for step in range(1, 4):
        uses.see(Batch(8, 600), step - 1)
        saved = torch.zeros(10 * MIB)
        uses.phase_ended("forward")
        del saved
        gradients = torch.zeros(3 * MIB)
        uses.phase_ended("backward")
        del gradients
        uses.step_ended(step, {})
    uses.close()
    assert uses.saved_bytes == pytest.approx(40 * MIB, abs=MIB)
    assert kept
