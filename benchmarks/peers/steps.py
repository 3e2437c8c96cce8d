"""The training by whose steps the cost is measured: `python steps.py`, with PEERS_ROWS and PEERS_STEPS; prints JSON."""

import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from transformers import TrainerCallback

from benchmarks._training import train

WARM_UP_STEPS = 50


class Clock(TrainerCallback):
    """When each step began."""

    def __init__(self) -> None:
        self.began_s: list[float] = []

    def on_step_begin(self, *args: object, **kwargs: object) -> None:
        self.began_s.append(time.perf_counter())


clock = Clock()
train(clock, int(os.environ["PEERS_STEPS"]), Path("trained"), int(os.environ["PEERS_ROWS"]))
began_s = clock.began_s[WARM_UP_STEPS:]
took_ms = [1e3 * (b - a) for a, b in itertools.pairwise(began_s)]
Path("steps.json").write_text(
    json.dumps({"median_ms": statistics.median(took_ms), "mean_ms": statistics.mean(took_ms)})
)
