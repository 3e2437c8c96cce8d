"""Series that look like a leak for a while and are none, and what a detector says of them while they grow."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forgather_mem.diagnose.leaks.alarms import LiveAlarm
from forgather_mem.growth.trend import Series
from forgather_mem.telemetry.report import LeakReport, LeakSuspect

KIB, MIB = 2**10, 2**20
BASE = 800.0 * MIB
LOOK_STEPS = 12  # from the first suspicion until the holder is known, as in the scripts of the zoo
Sizes = npt.NDArray[np.float64]
Kind = Callable[[random.Random, int], Sizes]


@dataclass(frozen=True)
class Told:
    """The steps at which growth was first looked into, first printed, and first taken back."""

    suspected: int | None
    printed: int | None
    taken_back: int | None


def told(sizes: Sizes, every: int = 4, *, held: bool = False) -> Told:
    """What is said of these sizes, one a step, read at every so many steps; `held`: a look finds who holds them."""
    live, series = LiveAlarm(), {"native": Series()}
    steps: dict[str, int] = {}
    for step in range(every, len(sizes), every):
        series["native"].add(step, float(sizes[step]))
        if live.ended(series):
            steps.setdefault("taken back", step)
        growing = live.growing(series)
        if not growing:
            continue
        since = steps.setdefault("suspected", step)
        rate = growing["native"].per_step
        found = named(rate) if held and step >= since + LOOK_STEPS else None
        if live.is_due(growing, step, None, found):
            steps.setdefault("printed", step)
            live.printed(growing, series, step, "host memory grows")
    return Told(steps.get("suspected"), steps.get("printed"), steps.get("taken back"))


def named(rate: float) -> LeakReport:
    """A leak of so much a step whose holder is known."""
    holder = LeakSuspect(type="list", bytes_per_step=rate, count_per_step=1.0, held_by="Keeps.kept", kind="list")
    return LeakReport(verdict="leak", bytes_per_step=rate, suspects=(holder,))


def _size(chance: random.Random) -> float:
    """How far it moves: 4 to 200 MiB."""
    return float(2 ** chance.uniform(math.log2(4 * MIB), math.log2(200 * MIB)))


def _noise(chance: random.Random, steps: int) -> Sizes:
    return np.random.default_rng(chance.getrandbits(32)).normal(size=steps)


def autoregressive(phi: float) -> Kind:
    """Stationary noise that forgets slowly."""

    def kind(chance: random.Random, steps: int) -> Sizes:
        noise, sizes = _noise(chance, steps + 1), np.empty(steps)
        level = noise[-1]
        for step in range(steps):
            level = phi * level + math.sqrt(1 - phi * phi) * noise[step]
            sizes[step] = level
        return BASE + _size(chance) * sizes

    kind.__name__ = f"AR(1), phi {phi}"
    return kind


def bounded_walk(chance: random.Random, steps: int) -> Sizes:
    top, level, sizes = chance.choice([8.0, 16.0, 32.0]), chance.random(), np.empty(steps)
    level *= top
    for step, move in enumerate(_noise(chance, steps)):
        level = top - abs(top - abs(level + move))  # reflected at both ends
        sizes[step] = level
    return BASE + _size(chance) * sizes / top


def sawtooth(period: int) -> Kind:
    """Filled for so many steps, then emptied; the run begins anywhere in a tooth."""

    def kind(chance: random.Random, steps: int) -> Sizes:
        at = (np.arange(steps) + chance.randrange(period)) % period / period
        return BASE + _size(chance) * (at + 0.02 * np.abs(_noise(chance, steps)))

    kind.__name__ = f"sawtooth of {period} steps"
    return kind


def warm_up(chance: random.Random, steps: int) -> Sizes:
    filled = 1 - np.exp(-np.arange(steps) / chance.uniform(20, 300))
    return BASE + _size(chance) * (filled + chance.choice([0, 0.005, 0.02]) * np.abs(_noise(chance, steps)))


def single_jumps(chance: random.Random, steps: int) -> Sizes:
    sizes = 0.02 * np.abs(_noise(chance, steps))
    for _ in range(chance.randint(1, 3)):
        sizes[chance.randrange(steps) :] += chance.uniform(0.3, 1)
    return BASE + _size(chance) * sizes


def evaluations(chance: random.Random, steps: int) -> Sizes:
    """A peak at each 100th step, which lasts for some."""
    at = np.arange(steps) % 100 < chance.choice([1, 4, 10, 30])
    return BASE + _size(chance) * (at * (1 + 0.1 * _noise(chance, steps)) + 0.02 * np.abs(_noise(chance, steps)))


def collector_waves(chance: random.Random, steps: int) -> Sizes:
    """Garbage in cycles: most goes at a young collection, the rest at every tenth."""
    period, sizes, young, old, number = chance.choice([20, 50, 100, 200]), np.empty(steps), 0.0, 0.0, 0
    following = chance.randrange(1, period)
    for step in range(steps):
        young += chance.uniform(0.5, 1.5) / period
        if step >= following:
            number, following = number + 1, step + int(period * chance.uniform(0.7, 1.3))
            young, old = 0.0, (old + 0.15 * young if number % 10 else 0.0)
        sizes[step] = young + old
    return BASE + _size(chance) * sizes


INNOCENT: tuple[Kind, ...] = (
    autoregressive(0.5), autoregressive(0.9), autoregressive(0.99), bounded_walk, sawtooth(50), sawtooth(200),
    sawtooth(500), sawtooth(1500), warm_up, single_jumps, evaluations, collector_waves,
)  # fmt: skip


def leak(per_step: float, noise_bytes: float) -> Kind:
    """A leak of so much a step in independent noise."""

    def kind(chance: random.Random, steps: int) -> Sizes:
        return BASE + per_step * np.arange(steps) + noise_bytes * np.abs(_noise(chance, steps))

    kind.__name__ = f"leak of {per_step / KIB:.0f} KiB a step, noise {noise_bytes / KIB:,.0f} KiB"
    return kind


LEAKS: tuple[Kind, ...] = tuple(leak(rate * KIB, noise * KIB) for rate in (8, 64) for noise in (0, 20, 300, 2000))
