"""How well is the time forecast at which memory will be full, and how often is there a false alarm?

    python benchmarks/alerts.py [--seeds N]

Series of sizes, as the end of each step shows them: linear growth with noise and spikes until the memory is full, then
runs of 10 000 steps that only move. Looks at every fourth step, as `MemoryAlert` does. Prints Markdown.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator

from forgather_mem.diagnose.alerts.forecast import Filling, Forecast

CAPACITY = 64e9
STEPS = 10_000
AHEAD = 20


def forecasts(sizes: Iterator[float]) -> Iterator[tuple[int, Forecast | None]]:
    """Step and forecast, at every fourth step."""
    filling = Filling(200)
    for step, size in enumerate(sizes, 1):
        filling.add(step, size)
        if not step % 4:
            yield step, filling.forecast(CAPACITY)


def growth(rng: random.Random, noise_steps: float, often: float) -> tuple[int, Iterator[float]]:
    """Linear growth; the noise in steps of growth, spikes with this frequency. With the step at which it is full."""
    steps, begins_at, base = rng.randint(60, 3000), rng.choice([0, 0, 500]), rng.uniform(0.05, 0.6)
    slope = (1 - base) / steps

    def sizes() -> Iterator[float]:
        for step in range(1, begins_at + steps):
            level = base + slope * (max(0, step - begins_at) + rng.gauss(0, noise_steps))
            yield CAPACITY * (level + (rng.uniform(0.05, 0.2) if rng.random() < often else 0))

    return begins_at + steps, sizes()


def steady(rng: random.Random) -> Iterator[float]:
    level, noise = rng.uniform(0.3, 0.95), rng.choice([0, 0.001, 0.01])
    return (CAPACITY * (level + rng.gauss(0, noise)) for _ in range(STEPS))


def sawtooth(rng: random.Random) -> Iterator[float]:
    base, height = rng.uniform(0.2, 0.6), rng.uniform(0.05, 0.3)
    period = rng.choice([7, 20, 50, 100, 200, 500, 700, 1500])
    return (CAPACITY * (base + height * (step % period) / period + rng.gauss(0, 0.002)) for step in range(STEPS))


def spiky(rng: random.Random) -> Iterator[float]:
    base, often, height, longest = rng.uniform(0.3, 0.8), rng.choice([0.001, 0.01]), rng.uniform(0.05, 0.18), 20
    left = 0
    for _ in range(STEPS):
        left = max(left - 1, 0) or (rng.randint(1, longest) if rng.random() < often else 0)
        yield CAPACITY * (base + (height * rng.random() if left else 0) + abs(rng.gauss(0, 0.002)))


def batches(rng: random.Random) -> Iterator[float]:
    base, height = rng.uniform(0.2, 0.5), rng.uniform(0.1, 0.4)
    return (CAPACITY * (base + height * rng.random() ** 2) for _ in range(STEPS))


def cache(rng: random.Random) -> Iterator[float]:
    half = rng.choice([30, 100, 300, 1000])
    return (CAPACITY * (0.3 + 0.5 * (1 - 2 ** (-step / half)) + rng.gauss(0, 0.002)) for step in range(STEPS))


def jumps(rng: random.Random) -> Iterator[float]:
    level = 0.3
    for step in range(STEPS):
        if step % 2500 == 1200:
            level += 0.14  # an evaluation, a checkpoint: made once and kept
        yield CAPACITY * (level + rng.gauss(0, 0.002))


INNOCENT: tuple[Callable[[random.Random], Iterator[float]], ...] = (steady, sawtooth, spiky, batches, cache, jumps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    options = parser.parse_args()
    print(f"Error of the forecast about {AHEAD} steps before memory is full; {options.seeds} runs a line.\n")
    print("| noise, in steps of growth | spikes | median error | within 10 % | in the interval | first told (median) |")
    print("|---|---|---|---|---|---|")
    for noise_steps in (0, 1, 5, 20):
        for often in (0.0, 0.03):
            rng, errors, inside, leads = random.Random(f"{noise_steps} {often}"), [], 0, []
            for _ in range(options.seeds):
                full, sizes = growth(rng, noise_steps, often)
                told = [(step, found) for step, found in forecasts(sizes) if found is not None]
                leads.append(full - told[0][0] if told else 0)
                near = min(told, key=lambda one: abs(full - AHEAD - one[0]), default=None)
                if near is None or abs(full - AHEAD - near[0]) > 4:
                    errors.append(1.0)
                    continue
                left = full - near[0]
                errors.append(abs(near[1].steps_left - left) / left)
                inside += near[1].low_step <= full <= near[1].high_step
            tenth = sum(error <= 0.1 for error in errors)
            print(
                f"| {noise_steps} | {'3 % of steps' if often else 'none'} | {statistics.median(errors):.1%} "
                f"| {tenth} of {len(errors)} | {inside} of {len(errors)} "
                f"| {statistics.median(leads):.0f} steps before |"
            )
    print(f"\nFalse alarms in runs of {STEPS:,} steps; {options.seeds} runs a line.\n")
    print("| series | runs with an alarm |\n|---|---|")
    began_s, looked = time.process_time(), 0
    for make in INNOCENT:
        rng, alarms = random.Random(make.__name__), 0
        for _ in range(options.seeds):
            alarms += any(found is not None for _, found in forecasts(make(rng)))
            looked += STEPS
        print(f"| {make.__name__} | {alarms} of {options.seeds} |")
    print(f"\nCost, the series' own making included: {(time.process_time() - began_s) / looked * 1e6:.1f} us a step.")


if __name__ == "__main__":
    main()
