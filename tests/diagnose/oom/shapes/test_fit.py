"""What a batch takes, fitted to the batches that were seen, on machines whose costs are known."""

import random

import pytest

from forgather_mem.diagnose.oom.context import StepUse
from forgather_mem.diagnose.oom.shapes.fit import fit_phase, fits_of


@pytest.mark.parametrize("square", [0.0, 40.0])
def test_a_fit_finds_what_a_batch_takes_far_beyond_those_it_saw(square: float) -> None:
    rng = random.Random(3)

    def size(rows: int, length: int) -> float:
        return 5e9 + 9e5 * rows * length + square * rows * length**2

    points = []
    for _ in range(200):
        length = rng.randint(100, 1500)
        spike = 3e9 if rng.random() < 0.005 else 0.0
        points.append((8, length, size(8, length) + rng.gauss(0, 3e7) + spike))
    fit = fit_phase("forward", points)
    assert fit is not None
    assert (fit.per_square_bytes > 0) == bool(square)
    for rows, length in ((8, 4096), (4, 4096), (16, 1000)):
        assert fit.at(rows, length).bytes == pytest.approx(size(rows, length), rel=0.03)
        assert fit.at(rows, length).low < size(rows, length) < fit.at(rows, length).high


@pytest.mark.parametrize(
    "points",
    [
        [(8, 512, 1e9)] * 50,  # one shape
        [(8, 500 + step % 3, 1e9 + step) for step in range(50)],  # shapes too much alike
        [(8, length, 1e9) for length in (100, 500)],  # too few
        [(8, 100 * step, 1e9 * (1 + step * 7 % 5)) for step in range(1, 20)],  # no line
    ],
)
def test_too_little_data_gives_no_fit(points: list[tuple[int, int | None, float]]) -> None:
    fit = fit_phase("forward", points)
    assert fit is None or fit.per_token_bytes == 0


def test_resident_memory_that_stays_is_fitted_to_the_batches_that_made_it_grow() -> None:
    rng, highest, uses = random.Random(5), 0, []
    for step in range(1, 300):
        length = rng.randint(50, 1000)
        highest = max(highest, int(1e9 + 1e5 * 8 * length))
        uses.append(StepUse(step=step, rows=8, length=length, phases={"forward": highest}))
    fit = fits_of(uses, retains=True)["forward"]
    assert fit.at(8, 2000).bytes == pytest.approx(1e9 + 1e5 * 8 * 2000, rel=0.02)
