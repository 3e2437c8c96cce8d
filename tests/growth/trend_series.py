"""Series of sizes as trainings make them, generated together with the truth: by how much they leak a step."""

import math
import random
from collections.abc import Callable

KIB, MIB = 2**10, 2**20
BASE = 800.0 * MIB
Shape = Callable[[random.Random, int], list[float]]


def make(
    shape: Shape, per_step: float, *, seed: int, steps: int, every: int = 4, begin: float = 0.0
) -> list[tuple[int, float]]:
    """`shape` plus a leak of `per_step` from the share `begin` of the steps on, read every so many steps."""
    chance = random.Random(seed)
    sizes = shape(chance, steps)
    start = int(begin * steps)
    return [(step, sizes[step] + per_step * max(0, step - start)) for step in range(0, steps, every)]


# ---- what a training does without a leak ----


def flat(chance: random.Random, steps: int) -> list[float]:
    return [BASE] * steps


def noisy(chance: random.Random, steps: int) -> list[float]:
    return [BASE + abs(chance.gauss(0, 300 * KIB)) for _ in range(steps)]


def varying_lengths(chance: random.Random, steps: int) -> list[float]:
    return [BASE + chance.randint(8, 512) * 16 * KIB for _ in range(steps)]


def warm_up(chance: random.Random, steps: int) -> list[float]:
    lasting = chance.uniform(3, 0.06 * steps)
    return [BASE + 60 * MIB * (1 - math.exp(-step / lasting)) for step in range(steps)]


def one_late_rise(chance: random.Random, steps: int) -> list[float]:
    at = chance.randint(steps // 10, steps - 1)
    return [BASE + 30 * MIB * (step >= at) for step in range(steps)]


def two_late_rises(chance: random.Random, steps: int) -> list[float]:
    first, second = sorted(chance.randint(steps // 10, steps - 1) for _ in range(2))
    return [BASE + 12 * MIB * (step >= first) + 9 * MIB * (step >= second) for step in range(steps)]


def sawtooth(chance: random.Random, steps: int) -> list[float]:
    tooth = chance.randint(7, steps // 4)
    return [BASE + (step % tooth) * 700 * KIB for step in range(steps)]


def evaluations(chance: random.Random, steps: int) -> list[float]:
    period = chance.randint(20, 60)
    return [BASE + (120 * MIB if step % period == 0 else 0) + abs(chance.gauss(0, 50 * KIB)) for step in range(steps)]


def cache_that_fills(chance: random.Random, steps: int) -> list[float]:
    full = chance.randint(steps // 10, int(0.6 * steps))
    return [BASE + min(step, full) * 200 * KIB for step in range(steps)]


def cache_of_what_is_drawn(chance: random.Random, steps: int) -> list[float]:
    rows = chance.randint(steps // 10, steps // 4)
    return [BASE + 40 * MIB * (1 - math.exp(-step / rows)) for step in range(steps)]


def curriculum(chance: random.Random, steps: int) -> list[float]:
    stages = chance.randint(2, 3)
    return [BASE + (step * stages // steps) * 5 * MIB + chance.randint(0, 4) * MIB for step in range(steps)]


def four_stages(chance: random.Random, steps: int) -> list[float]:
    """Four rises at equal distances, and none when the next one is due and half as long again."""
    apart = steps // chance.choice((6, 7))
    first = apart + chance.randint(0, apart // 4)
    return [BASE + 2 * MIB * min(4, max(0, (step - first) // apart + 1)) for step in range(steps)]


def shrinking(chance: random.Random, steps: int) -> list[float]:
    return [BASE - step * 50 * KIB + abs(chance.gauss(0, 200 * KIB)) for step in range(steps)]


def small_log(chance: random.Random, steps: int) -> list[float]:
    return [BASE + step * 1500.0 for step in range(steps)]


INNOCENT: tuple[Shape, ...] = (
    flat, noisy, varying_lengths, warm_up, one_late_rise, two_late_rises, sawtooth, evaluations, cache_that_fills,
    cache_of_what_is_drawn, curriculum, four_stages, shrinking, small_log,
)  # fmt: skip
# To what a leak may be added so that it shows within the run.
LEAKY_GROUNDS: tuple[Shape, ...] = (flat, noisy, varying_lengths, warm_up, one_late_rise, evaluations, sawtooth)


def in_stairs(per_step: float, period: int) -> Shape:
    """A leak that comes at every so many steps, as from evaluations."""

    def shape(chance: random.Random, steps: int) -> list[float]:
        return [BASE + (step // period) * period * per_step + abs(chance.gauss(0, 20 * KIB)) for step in range(steps)]

    return shape


def fills_up(steps_to_fill: float, noise_bytes: float) -> Shape:
    """A cache that is filled ever more slowly: what is asked for is ever more often there."""

    def shape(chance: random.Random, steps: int) -> list[float]:
        full = [400 * MIB * (1 - math.exp(-step / steps_to_fill)) for step in range(steps)]
        return [BASE + size + abs(chance.gauss(0, noise_bytes)) for size in full]

    return shape


def drawn_rows(rows: int, per_step: int) -> Shape:
    """A cache of so many rows, of which some are drawn at each step."""

    def shape(chance: random.Random, steps: int) -> list[float]:
        drawn: set[int] = set()
        sizes = []
        for _ in range(steps):
            drawn |= {chance.randrange(rows) for _ in range(per_step)}
            sizes.append(BASE + len(drawn) * 20.0 * KIB)
        return sizes

    return shape


def uneven(per_step: float, spread: float, often: float) -> Shape:
    """A leak in pieces of log-normal size, in this share of the steps."""

    def shape(chance: random.Random, steps: int) -> list[float]:
        sizes, size = [], BASE
        for _ in range(steps):
            if chance.random() < often:
                size += per_step / often * math.exp(chance.gauss(0, spread) - spread * spread / 2)
            sizes.append(size)
        return sizes

    return shape
