"""What an evaluation keeps is measured on real arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from forgather_mem.diagnose.alerts.evaluation import EvaluationGrowth, Keeping
from forgather_mem.diagnose.alerts.foretold import Foretold
from forgather_mem.system.headroom import host_rooms

MIB = 2**20
Keep = Callable[[list[np.ndarray], int], object]


def predict(keep: Keep, num_batches: int, predicted: int = 40, *, known: bool = True) -> tuple[int, Foretold | None]:
    """After how many batches something was told, and what; `keep` keeps what it likes of each batch."""
    kept: list[np.ndarray] = []
    growth = EvaluationGrowth(Keeping(is_known=known))
    for number in range(predicted):
        keep(kept, number)
        found = growth.batch_done(lambda: num_batches)
        if found is not None:
            return number + 1, found
    return predicted, None


def all_of_it(kept: list[np.ndarray], number: int) -> None:
    kept.append(np.ones(MIB, np.uint8))


def too_many() -> int:
    return 2 * host_rooms()[0].free_bytes // MIB


@pytest.mark.parametrize("known", [True, False])
def test_what_is_kept_is_told_within_a_hundredth_of_the_batches(known: bool) -> None:
    num_batches = too_many()
    after, found = predict(all_of_it, num_batches, predicted=num_batches, known=known)
    assert found is not None
    assert after <= num_batches / 100
    assert found.needed_bytes == pytest.approx((num_batches - after) * MIB, rel=0.02)
    assert found.at_batch == pytest.approx(after + found.left_bytes / MIB, rel=0.02)


def test_nothing_is_told_where_it_fits() -> None:
    assert predict(all_of_it, 60)[1] is None


def test_what_fills_a_cache_is_no_growth() -> None:
    def cached(kept: list[np.ndarray], number: int) -> None:
        if number < 10:
            all_of_it(kept, number)

    assert predict(cached, 100 * too_many(), predicted=200, known=False)[1] is None


def test_what_is_freed_again_is_no_growth() -> None:
    def last(kept: list[np.ndarray], number: int) -> None:
        kept[:] = [np.ones(MIB, np.uint8)]

    assert predict(last, 10**6, predicted=200)[1] is None
