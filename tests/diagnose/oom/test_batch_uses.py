"""The shapes of batches, and what is kept of their use of memory."""

from __future__ import annotations

import torch

from forgather_mem.diagnose.oom.batch_uses import MAX_STEPS, Batch, BatchFinder, BatchUses, batch_of


def test_batches_are_known_by_their_tokens() -> None:
    ids = torch.zeros(3, 5, dtype=torch.long)
    assert batch_of([object(), {"labels": None, "x": {"input_ids": ids}}], {}) == Batch(3, 5)
    assert batch_of([torch.zeros(7, 3, 32, 32)], {}) == Batch(7, None)
    assert batch_of([1, "a"], {"scale": torch.tensor(2.0)}) is None
    find = BatchFinder()
    for shape in ((3, 5), (3, 5), (2, 9), (3, 5)):
        inputs = {"weights": torch.zeros(shape[0]), "input_ids": torch.zeros(shape, dtype=torch.long)}
        assert find([None, inputs], {}) == Batch(*shape)
    assert find([None, {"pixels": torch.zeros(2, 3, 4)}], {}) == Batch(2, None)
    assert find([], {"input_ids": ids}) == Batch(3, 5)


def test_uses_are_bounded_and_keep_the_largest() -> None:
    uses = BatchUses()
    for step in range(1, 5 * MAX_STEPS):
        uses.reading = True
        uses.see(Batch(4, 1000 if step == 7 else step % 90), step - 1)
        for phase in ("data", "forward", "backward"):
            uses.phase_ended(phase)
        uses.step_ended(step, {})
    uses.close()
    assert len(uses.uses) < MAX_STEPS
    assert max(use.length or 0 for use in uses.uses) == 1000
    assert uses.largest == Batch(4, 1000)
    assert uses.peak_of(Batch(4, 1000)) == max(next(use for use in uses.uses if use.step == 7).phases.values())
    assert set(uses.uses[0].phases) == {"forward", "backward"}
    assert uses.ended["data"] == 5 * MAX_STEPS - 1
    assert uses.uses[-1].step > 4 * MAX_STEPS, "the end of the run is there as well"


def test_states_of_a_recurrent_layer_tell_which_dimension_is_time() -> None:
    tokens, states = torch.zeros(35, 20, dtype=torch.long), (torch.zeros(2, 20, 64), torch.zeros(2, 20, 64))
    assert batch_of([tokens, states], {}) == (20, 35)
    assert batch_of([tokens.T, states], {}) == (20, 35)
    assert batch_of([tokens], {"features": torch.zeros(35, 20, 64)}) == (35, 20), "of each token, no state"
