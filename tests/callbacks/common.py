"""What tests of callbacks share: all of ours, a work that notes its steps, and what was written."""

from collections.abc import Callable
from typing import Any

from transformers import Trainer, TrainerCallback

from forgather_mem import callbacks as our
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.rule import Rule

SAMPLED = {"do_sample": True, "max_new_tokens": 3}
METRICS = ["host", "device", "phases", "gc", "workers", "tensors"]
Make = Callable[..., TrainerCallback]
# All that are exported, each with settings by which much of it is done: what holds for all is tried with each
OF_MEMORY: dict[str, Make] = {
    "SimpleGarbageCollector": lambda **options: our.SimpleGarbageCollector(verbose=True, **options),
    "CudaGarbageCollector": lambda **options: our.CudaGarbageCollector(collect_freq_step=2, verbose=True, **options),
    "ClearCacheCallback": lambda **options: our.ClearCacheCallback("step", 2, garbage_collection=True, **options),
    "TBMemoryLogger": lambda **options: our.TBMemoryLogger(metrics=METRICS, **options),
    "JsonMemoryLogger": our.JsonMemoryLogger,
    "PeakMemory": our.PeakMemory,
    "LeakDetector": lambda **options: our.LeakDetector(every_steps=1, **options),
    "OOMReporter": our.OOMReporter,
    "ScheduledGarbageCollector": lambda **options: our.ScheduledGarbageCollector(every_steps=2, **options),
    "MemoryAlert": our.MemoryAlert,
    "ProfileMemory": our.ProfileMemory,
    "MemoryCallback": our.MemoryCallback,
}
OF_TRAINING: dict[str, Make] = {
    "ProgressCallback": our.ProgressCallback,
    "InfoCallback": lambda **options: our.InfoCallback(True, **options),
    "TBLogger": lambda **options: our.TBLogger(name="x", **options),
    "JsonLogger": lambda **options: our.JsonLogger(name="x", **options),
    "TextgenCallback": lambda **options: our.TextgenCallback(None, ["w3 w4"], SAMPLED, 1, **options),
    "GradLogger": lambda **options: our.GradLogger(log_frequency=1, **options),
}


class FailsInForward(Trainer):
    """In its fourth step."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 3:
            raise RuntimeError("forward failed")
        return super().compute_loss(*args, **kwargs)


def all_callbacks(**options: Any) -> list[TrainerCallback]:
    """Those about memory."""
    return [make(**options) for make in OF_MEMORY.values()]


def of_training(**options: Any) -> list[TrainerCallback]:
    """Those about the training; they want a tokenizer."""
    return [make(**options) for make in OF_TRAINING.values()]


class RunsOutOfMemoryOnce(Trainer):
    """In its third step, so that it begins anew where `auto_find_batch_size` is on."""

    failed = False

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if not self.failed and self.state.global_step == 2:
            self.failed = True
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().training_step(*args, **kwargs)


def captured(rules: list[Rule], **options: Any) -> tuple[our.MemoryCallback, Capture]:
    capture = Capture()
    return our.MemoryCallback(rules, [capture], **options), capture


class Steps:
    """A work that notes when it was called."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def __call__(self, moment: Any, sample: Any) -> dict[str, float]:
        self.steps.append(moment.step)
        return {}
