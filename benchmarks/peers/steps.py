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
    """When each step began, and how much of the processor's time the process had taken then."""

    def __init__(self) -> None:
        self.began: dict[str, list[float]] = {"wall": [], "cpu": []}

    def on_step_begin(self, *args: object, **kwargs: object) -> None:
        self.began["wall"].append(time.perf_counter())
        self.began["cpu"].append(time.process_time())


clock = Clock()
train(clock, int(os.environ["PEERS_STEPS"]), Path("trained"), int(os.environ["PEERS_ROWS"]))
told = {}
for name, began_s in clock.began.items():
    took_ms = [1e3 * (b - a) for a, b in itertools.pairwise(began_s[WARM_UP_STEPS:])]
    told[f"{name}_median_ms"], told[f"{name}_mean_ms"] = statistics.median(took_ms), statistics.mean(took_ms)
Path("steps.json").write_text(json.dumps(told))
