"""The batches of a run, and what is read of its first steps."""

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.batch_uses import BatchUses
from forgather_mem.units import MIB


def step(uses: BatchUses, *lengths: int) -> None:
    for length in lengths:
        uses.see(Batch(4, length))
        for phase in ("data", "forward", "backward"):
            uses.phase_ended(phase)
    uses.step_ended()


def test_the_largest_batch_is_one_of_the_steps_that_are_over() -> None:
    uses = BatchUses()
    step(uses, 7, 90, 8)
    assert uses.largest == Batch(4, 90)
    step(uses, 9)
    uses.see(Batch(4, 1000))
    uses.see(None)
    assert (uses.batch, uses.largest) == (None, Batch(4, 90))
    uses.step_ended()
    assert uses.largest == Batch(4, 1000)
    assert uses.ended == {"data", "forward", "backward"}


def test_the_end_of_a_step_has_to_be_told_while_it_is_read_and_after_a_larger_batch() -> None:
    uses = BatchUses()
    step(uses, 7)
    assert uses.is_urgent
    uses.reading = False
    assert not uses.is_urgent
    uses.see(Batch(4, 7))
    assert not uses.is_urgent
    uses.see(Batch(4, 8))
    assert uses.is_urgent


def test_what_a_step_takes_is_read_at_the_ends_of_its_phases_while_it_is_read() -> None:
    uses = BatchUses()
    step(uses, 7)
    assert uses.between_bytes is not None
    kept = bytearray(64 * MIB)
    kept[::4096] = b"1" * len(kept[::4096])
    uses.phase_ended("forward")
    del kept
    assert uses.left_at_peak_bytes() is None, "no limit is this process's own"
    uses.step_ended()
    assert uses.peak_bytes - uses.between_bytes >= 60 * MIB
