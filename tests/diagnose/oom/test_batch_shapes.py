"""The shape of a batch among the arguments of a call."""

import pytest
import torch

from forgather_mem.diagnose.oom.batch_shapes import Batch, BatchFinder, batch_of


def found_by(finder: BatchFinder, *values: object) -> Batch:
    found = finder(values, {})
    return found._replace(sizes="")


def test_batches_are_known_by_their_tokens() -> None:
    ids = torch.zeros(3, 5, dtype=torch.long)
    assert batch_of([object(), {"labels": None, "x": {"input_ids": ids}}], {}) == Batch(3, 5)
    assert batch_of([torch.zeros(7, 3, 32, 32)], {}) == Batch(7, None, (3, 32, 32))
    assert batch_of([1, "a"], {"scale": torch.tensor(2.0)}) is None
    finder = BatchFinder()
    for shape in ((3, 5), (3, 5), (2, 9), (3, 5)):
        inputs = {"weights": torch.zeros(shape[0]), "input_ids": torch.zeros(shape, dtype=torch.long)}
        assert found_by(finder, None, inputs) == Batch(*shape)
    assert found_by(finder, None, {"pixels": torch.zeros(2, 3, 4)}) == Batch(2, None, (3, 4))
    assert finder([], {"input_ids": ids}) == Batch(3, 5, sizes="input_ids=3x5")


def test_states_of_a_recurrent_layer_tell_which_dimension_is_time() -> None:
    tokens, states = torch.zeros(35, 20, dtype=torch.long), (torch.zeros(2, 20, 64), torch.zeros(2, 20, 64))
    assert batch_of([tokens, states], {}) == Batch(20, 35)
    assert batch_of([tokens.T, states], {}) == Batch(20, 35)
    assert batch_of([tokens], {"features": torch.zeros(35, 20, 64)}) == Batch(35, 20), "of each token, no state"


def test_the_longest_tokens_count() -> None:
    inputs = {"input_ids": torch.zeros(8, 32, dtype=torch.long), "labels": torch.zeros(8, 700, dtype=torch.long)}
    assert batch_of([], inputs) == Batch(8, 700)
    finder = BatchFinder()
    assert found_by(finder, inputs) == Batch(8, 700)
    assert found_by(finder, inputs | {"labels": inputs["labels"][:, :40]}) == Batch(8, 40), "not the first alone"


@pytest.mark.parametrize(
    ("values", "batch"),
    [
        ([torch.zeros(20, 32), torch.zeros(2, 500, dtype=torch.long)], Batch(20, None, (32,))),
        ([{"x": torch.zeros(8, 900), "labels": torch.zeros(8, 12, dtype=torch.long)}], Batch(8, None, (900,))),
        ([torch.zeros(2, 30, 3, 8, 8), torch.zeros(2)], Batch(2, None, (30, 3, 8, 8))),
        ([torch.zeros(4, 60, 64, dtype=torch.long)], Batch(4, None, (60, 64))),
        (
            [[torch.zeros(3, 90, 40), torch.zeros(3, 20, 70)], [{"boxes": torch.zeros(5, 4)}]],
            Batch(2, None, (3, 90, 70)),
        ),
        ([[torch.zeros(50, 3), torch.zeros(70, 3), torch.zeros(20, 3)]], Batch(3, None, (70, 3))),
        ([(torch.zeros(6, 3, 9, 9), torch.zeros(6, 3, 9, 9))], Batch(6, None, (3, 9, 9))),
        ([(torch.zeros(6, 5), torch.zeros(24, 5))], Batch(6, None, (5,))),
    ],
    ids=["graph", "sounds", "video", "choices", "pictures", "clouds", "pairs", "negatives"],
)
def test_samples_have_sizes_in_all_dimensions(values: list[object], batch: Batch) -> None:
    assert batch_of(values, {}) == batch
