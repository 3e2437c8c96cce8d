"""The shapes of batches, and what is kept of their use of memory."""

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.batch_uses import USES, BatchUses


def test_uses_are_bounded_and_keep_the_largest() -> None:
    uses = BatchUses()
    for step in range(1, 5 * USES.max_steps):
        uses.reading = True
        uses.see(Batch(4, 1000 if step == 7 else step % 90), step - 1)
        for phase in ("data", "forward", "backward"):
            uses.phase_ended(phase)
        uses.step_ended(step, {})
    uses.close()
    assert len(uses.uses) < USES.max_steps
    assert max(use.length or 0 for use in uses.uses) == 1000
    assert uses.largest == Batch(4, 1000)
    assert uses.peak_of(Batch(4, 1000)) == max(next(use for use in uses.uses if use.step == 7).phases.values())
    assert set(uses.uses[0].phases) == {"forward", "backward"}
    assert uses.ended["data"] == 5 * USES.max_steps - 1
    assert uses.uses[-1].step > 4 * USES.max_steps, "the end of the run is there as well"
