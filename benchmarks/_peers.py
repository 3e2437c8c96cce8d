"""Other people's memory callbacks behind the events of `transformers.Trainer`, for benchmarks/callbacks.py.

Restated: what can't be installed beside this torch does here, in a few lines, the same work at the same events.
`arm` and `disarm` switch on and off what belongs to a whole training, outside the time that is measured.
"""

from __future__ import annotations

import gc
import logging
import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerCallback
from transformers.trainer_utils import TrainerMemoryTracker

logger = logging.getLogger(__name__)


class TwentyScalars(TrainerCallback):
    """What people write by hand: one `add_scalar` for each number."""

    def __init__(self, folder: Path) -> None:
        self.writer = SummaryWriter(str(folder))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for number in range(20):
            self.writer.add_scalar(f"memory/value_{number}", float(number), state.global_step)


def device_stats_monitor(folder: Path) -> TrainerCallback | None:
    """Lightning's own `DeviceStatsMonitor(cpu_stats=True)`, with the logger it would have; None without Lightning."""
    try:
        from lightning.pytorch.accelerators import CPUAccelerator
        from lightning.pytorch.callbacks import DeviceStatsMonitor
        from lightning.pytorch.loggers import TensorBoardLogger
    except ImportError:
        return None
    monitor, tensorboard = DeviceStatsMonitor(cpu_stats=True), TensorBoardLogger(str(folder))
    connector = SimpleNamespace(should_update_logs=True, _batches_that_stepped=0)
    trainer = SimpleNamespace(
        loggers=[tensorboard],
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        accelerator=CPUAccelerator(),
        fit_loop=SimpleNamespace(epoch_loop=connector),
        _logger_connector=connector,
    )

    class Monitored(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            connector._batches_that_stepped = state.global_step
            monitor.on_train_batch_end(trainer, None, None, None, state.global_step)

    return Monitored()


class SystemMetricsMonitor(TrainerCallback):
    """Composer's, restated: the machine's numbers at each batch's start, one `add_scalar` each."""

    def __init__(self, folder: Path) -> None:
        self.writer = SummaryWriter(str(folder))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        metrics: dict[str, float] = {"cpu_percentage": psutil.cpu_percent()}
        for prefix, numbers in (
            ("cpu_memory", psutil.virtual_memory()),
            ("disk_memory", psutil.disk_usage(os.sep)),
            ("network", psutil.net_io_counters()),
        ):
            metrics.update({f"{prefix}_{name}": value for name, value in numbers._asdict().items()})
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, state.global_step)


class ComprehensiveMonitor(TrainerCallback):
    """Forgather's `TraceMalloc`, restated: allocations traced 25 frames deep, and a look at the heap at each step."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.history: list[dict[str, float]] = []

    def arm(self) -> None:
        tracemalloc.start(25)

    def disarm(self) -> None:
        tracemalloc.stop()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        memory = self.process.memory_info()
        snapshot = {"rss": memory.rss / 2**20, "vms": memory.vms / 2**20, "objects": len(gc.get_objects())}
        self.history = [*self.history[-99:], snapshot]
        logger.info("Step %s: %s", state.global_step, snapshot)


class MemoryMetrics(TrainerCallback):
    """`skip_memory_metrics=False`: transformers' own tracker, with the thread that it keeps for a training."""

    def __init__(self) -> None:
        self.tracker = TrainerMemoryTracker(skip_memory_metrics=False)
        self.tracker.init_reported = True

    def arm(self) -> None:
        def train() -> None:  # it learns what is measured from the name of its caller
            self.tracker.start()

        train()

    def disarm(self) -> None:
        self.tracker.stop("train")
