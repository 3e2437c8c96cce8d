"""What an evaluation keeps is measured on real arrays."""

from collections.abc import Callable

import numpy as np
import pytest

from forgather_mem.diagnose.alerts.alert import Alert
from forgather_mem.diagnose.alerts.evaluation import EvaluationGrowth
from forgather_mem.system.headroom import host_rooms

MIB = 2**20
Keep = Callable[[list[np.ndarray], int], object]


def predict(keep: Keep, num_batches: int, predicted: int, *, joins: bool = False) -> tuple[int, Alert | None]:
    """After how many batches something was told, and what; `keep` keeps what it likes of each batch."""
    kept: list[np.ndarray] = []
    growth = EvaluationGrowth(joins)
    for number in range(predicted):
        keep(kept, number)
        found = growth.batch_done(lambda: num_batches)
        if found is not None:
            return number + 1, found
    return predicted, None


def all_of_it(kept: list[np.ndarray], number: int) -> None:
    kept.append(np.empty(MIB, np.uint8))  # nothing touches it: it is in use, but takes no memory


def too_many() -> int:
    return 2 * host_rooms()[0].free_bytes // MIB


@pytest.mark.parametrize("joins", [False, True])
def test_what_is_kept_is_told_long_before_the_end(joins: bool) -> None:
    num_batches = too_many()
    after, found = predict(all_of_it, num_batches, num_batches, joins=joins)
    assert found is not None
    assert after <= 0.2 * num_batches
    times = 2 if joins else 1
    assert found.value == pytest.approx((times * num_batches - after) * MIB, rel=0.02)
    assert found.limit is not None
    assert found.full_at_batch == pytest.approx((after + found.limit / MIB) / times, rel=0.02)
    assert ("while they are joined" in found.text) == joins


def test_nothing_is_told_where_it_fits() -> None:
    assert predict(all_of_it, 60, 40)[1] is None


def test_what_fills_a_cache_is_no_growth() -> None:
    def cached(kept: list[np.ndarray], number: int) -> None:
        if number < 10:
            all_of_it(kept, number)

    assert predict(cached, 100 * too_many(), predicted=200)[1] is None


def test_what_is_freed_again_is_no_growth() -> None:
    def last(kept: list[np.ndarray], number: int) -> None:
        kept[:] = [np.ones(MIB, np.uint8)]

    assert predict(last, 10**6, predicted=200)[1] is None


def test_what_a_loop_writes_to_a_file_now_and_then_is_no_growth() -> None:
    def written(kept: list[np.ndarray], number: int) -> None:
        all_of_it(kept, number)
        if number % 32 == 31:
            kept.clear()

    assert predict(written, too_many(), predicted=200)[1] is None
