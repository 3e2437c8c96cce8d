"""What an evaluation keeps is measured on real arrays."""

from collections.abc import Callable

import numpy as np
import pytest

from forgather_mem.diagnose.alerts.evaluation import EvaluationGrowth, Keeping
from forgather_mem.diagnose.alerts.foretold import Foretold
from forgather_mem.system.headroom import host_rooms

MIB = 2**20
Keep = Callable[[list[np.ndarray], int], object]


def predict(
    keep: Keep,
    num_batches: int,
    predicted: int = 40,
    *,
    known: bool = True,
    ask: Callable[[float], Keeping] | None = None,
) -> tuple[int, Foretold | None]:
    """After how many batches something was told, and what; `keep` keeps what it likes of each batch."""
    kept: list[np.ndarray] = []
    growth = EvaluationGrowth(ask or (lambda grown_bytes: Keeping(is_known=known)))
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


@pytest.mark.parametrize(("known", "within"), [(True, 0.01), (False, 0.2)])
def test_what_is_kept_is_told_long_before_the_end(known: bool, within: float) -> None:
    num_batches = too_many()
    after, found = predict(all_of_it, num_batches, predicted=num_batches, known=known)
    assert found is not None
    assert after <= within * num_batches
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


def test_what_an_unknown_loop_writes_to_a_file_now_and_then_is_no_growth() -> None:
    def written(kept: list[np.ndarray], number: int) -> None:
        all_of_it(kept, number)
        if number % 32 == 31:
            kept.clear()

    assert predict(written, too_many(), predicted=200, known=False)[1] is None


def test_what_grows_beside_what_a_trainer_keeps_does_not_go_on() -> None:
    """As a data set that caches its first rows: of each batch 4 KiB are kept."""
    keeping = Keeping(is_known=True, kept_bytes=lambda: 4096)
    assert predict(all_of_it, too_many(), predicted=too_many() // 50, ask=lambda _: keeping)[1] is None


def test_how_it_is_kept_is_asked_for_once_when_something_grows() -> None:
    asked: list[float] = []

    def ask(grown_bytes: float) -> Keeping:
        asked.append(grown_bytes)
        return Keeping(is_known=True, joins=True)

    _, found = predict(all_of_it, too_many(), predicted=too_many() // 50, ask=ask)
    assert found is not None
    assert "while they are joined" in found.text
    assert asked == [pytest.approx(4 * MIB, rel=0.5)]
